"""One job in the config database, watched: plans, intervals, decisions and nodes, each told once, and again when more is known of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dlrover_lite.brain.store.watch import JOB_COLUMNS, Reader, decoded, job_news
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.news import Chosen, JobNews, NodeNews, PlanNews, RateNews, WatchedJob
from dlrover_lite.protocol.plans import Plan

__all__ = ["DECISIONS", "JobWatch", "choice_of", "chosen"]

DECISIONS = 200
"""Number of decisions of a job that are told, the newest."""


class _Candidate(msgspec.Struct):
    workers: int
    servers: int
    worker_cores: float
    ps_cores: float

    @property
    def cores(self) -> float:
        return self.workers * self.worker_cores + self.servers * self.ps_cores

    def describe(self) -> str:
        return _in_words(self.workers, self.worker_cores, self.servers, self.ps_cores)


class _Treatment(msgspec.Struct):
    node: str = ""


class _Predicted(msgspec.Struct):
    throughput: tuple[float, float, float]
    gain: tuple[float, float, float]


class _Decision(msgspec.Struct):
    """The parts of a stored decision that ``Chosen`` has: the rest is skipped unread."""

    at: float
    action: str
    reason: str
    stage: str = "scale"
    before: _Candidate | None = None
    choice: _Candidate | None = None
    predicted: _Predicted | None = None
    treatment: _Treatment | None = None


class _Effect(msgspec.Struct):
    measured: tuple[float, float, float]
    error: float


class _Done(msgspec.Struct):
    state: str
    why: str = ""


class _Follows(msgspec.Struct):
    follows: str = ""


class JobWatch(Reader):
    """A watch of one ``job``."""

    def __init__(self, path: Path, job: str) -> None:
        super().__init__(path)
        self.job = job
        self._row: tuple[Any, ...] | None = None
        self._told: dict[int, tuple[bool, bool]] = {}
        """Number of each decision told -> whether its effect, and what became of it, was known."""
        self._rate_at = 0.0
        self._plan = self._event = 0

    def look(self) -> WatchedJob:
        """Tell what is new since the last look; at first, and ``anew``, all there is."""
        with self.opened() as anew:
            if not self.changed(anew):
                return WatchedJob()
            if anew:
                self._row = None
                self._told.clear()
                self._rate_at, self._plan, self._event = 0.0, 0, 0
            return WatchedJob(
                anew=anew,
                jobs=tuple(self._job()),
                rates=tuple(self._rates()),
                plans=tuple(self._plans()),
                decisions=tuple(self._decided()),
                nodes=tuple(self._happened()),
            )

    def _job(self) -> Iterator[JobNews]:
        for row in self.all(f"select {JOB_COLUMNS} from jobs where id = ?", (self.job,)):
            if row != self._row:
                self._row = row
                yield job_news(row)

    def _plans(self) -> Iterator[PlanNews]:
        question = "select id, job, at, data from plans where job = ? and kind = 'granted' and id > ? order by id"
        for number, job, at, data in self.all(question, (self.job, self._plan)):
            self._plan = number
            yield PlanNews(job, at, decoded(data, Plan))

    def _rates(self) -> Iterator[RateNews]:
        question = "select job, at, seconds, samples_per_second from profiles where job = ? and at > ? order by at"
        for row in self.all(question, (self.job, self._rate_at)):
            self._rate_at = row[1]
            yield RateNews(*row)

    def _decided(self) -> Iterator[Chosen]:
        states = (
            "select number, effect is not null, done is not null from decisions where job = ? "
            "order by number desc limit ?"
        )
        changed = []
        for number, judged, done in self.all(states, (self.job, DECISIONS)):
            if self._told.get(number) != (judged, done):
                self._told[number] = (judged, done)
                changed.append(number)
        for number in changed[::-1]:
            question = "select number, data, effect, done from decisions where job = ? and number = ?"
            for row in self.all(question, (self.job, number)):
                with suppress(HistoryError):  # stored by another version
                    yield chosen(*row)

    def _happened(self) -> Iterator[NodeNews]:
        question = "select id, at, node, event, reason, data from node_events where job = ? and id > ? order by id"
        for number, at, node, event, reason, data in self.all(question, (self.job, self._event)):
            self._event = number
            yield NodeNews(at, node, event, reason, decoded(data, _Follows).follows)


def choice_of(plan: Plan) -> str:
    """Return the words that a decision for this plan has as its ``choice``."""
    return _in_words(plan.worker.count, plan.worker.each.cores, plan.ps.count, plan.ps.each.cores)


def _in_words(workers: int, worker_cores: float, servers: int, ps_cores: float) -> str:
    return f"{workers} worker x {worker_cores:g}, {servers} ps x {ps_cores:g}"


def chosen(number: int, data: str, effect: str | None, done: str | None) -> Chosen:
    """Make a decision to show of a row of the table. Raises HistoryError for one that another version has stored."""
    one = decoded(data, _Decision)
    rate = one.predicted.throughput if one.predicted else (None, None, None)
    brought = decoded(effect, _Effect) if effect is not None else None
    became = decoded(done, _Done) if done is not None else None
    choice = one.choice.describe() if one.choice else one.treatment.node if one.treatment else ""
    return Chosen(
        number=number,
        at=one.at,
        stage=one.stage,
        action=one.action,
        reason=one.reason,
        before=one.before.describe() if one.before else "",
        choice=choice,
        grows=one.choice is not None and one.choice.cores > (one.before.cores if one.before else 0.0),
        predicted=rate[0],
        lower=rate[1],
        upper=rate[2],
        gain_seconds=one.predicted.gain[0] if one.predicted else None,
        measured=brought.measured[0] if brought else None,
        error=brought.error if brought else None,
        done=became.state if became else "",
        why=became.why if became else "",
    )
