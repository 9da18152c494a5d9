"""One job in the config database, from its beginning to its end: all that has happened to it, with the times at which it became known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from dlrover_lite.brain.store.watch import JOB_COLUMNS, Reader, decoded, job_news
from dlrover_lite.brain.store.watch_job import chosen
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.news import Chosen, JobNews, PlanNews

__all__ = ["Happened", "Known", "Measured", "Timeline", "Used", "jobs_known", "timeline"]


class Used(msgspec.Struct, frozen=True):
    """A node over an interval."""

    node: str
    cores: float
    minibatches: int = 0
    cpu_seconds: float = 0.0
    throttled_seconds: float = 0.0
    used_bytes: int = 0
    """Bytes of memory at the interval's end; 0: not known, as of workers."""
    peak_bytes: int = 0


class Measured(msgspec.Struct, frozen=True):
    """An interval."""

    at: float
    """Time at which the interval ended."""
    seconds: float
    samples_per_second: float
    batch_size: int = 0
    samples_so_far: int | None = None
    workers: tuple[Used, ...] = ()
    ps: tuple[Used, ...] = ()


class Happened(msgspec.Struct, frozen=True):
    """Something that happened to a node: launched, up, resized or ended."""

    at: float
    node: str
    event: str
    reason: str = ""
    role: str = ""
    cores: float | None = None
    memory: int | None = None
    follows: str = ""
    """The node in whose place this one was launched."""


class Known(msgspec.Struct, frozen=True):
    """A decision as it was known from then on: first without what it brought, later with that."""

    at: float
    decision: Chosen


class Timeline(msgspec.Struct, frozen=True):
    """All that has happened to a job. Each list is in order of times."""

    job: JobNews
    """The job as it is now."""
    total_samples: int | None
    """Number of samples to train on, over all epochs."""
    measured: tuple[Measured, ...] = ()
    plans: tuple[PlanNews, ...] = ()
    decisions: tuple[Known, ...] = ()
    nodes: tuple[Happened, ...] = ()


class _Demand(msgspec.Struct):
    total_samples: float | None = None


class _Features(msgspec.Struct):
    demand: _Demand = msgspec.field(default_factory=_Demand)


class _Profile(msgspec.Struct):
    """The parts of a stored profile that ``Measured`` has."""

    batch_size: int = 0
    samples_so_far: int | None = None
    workers: tuple[Used, ...] = ()
    ps: tuple[Used, ...] = ()


class _At(msgspec.Struct):
    at: float


class _Node(msgspec.Struct):
    role: str = ""
    cores: float | None = None
    memory: int | None = None
    follows: str = ""


def timeline(path: Path, job: str) -> Timeline | None:
    """Read the timeline of a job; None for one that the database at ``path`` doesn't know. Raises HistoryError when it can't be read."""
    reader = _History(path)
    try:
        return reader.timeline(job)
    finally:
        reader.close()


def jobs_known(path: Path) -> list[str]:
    """List the ids of all jobs of the database at ``path``, the newest first; none where there is no database. Raises as ``timeline``."""
    reader = _History(path)
    try:
        return reader.jobs()
    finally:
        reader.close()


class _History(Reader):
    def jobs(self) -> list[str]:
        with self.opened():
            if self._connection is None:
                return []
            return [job for (job,) in self.all("select id from jobs order by created_at desc, id")]

    def timeline(self, job: str) -> Timeline | None:
        with self.opened():
            if self._connection is None:
                return None
            rows = self.all(f"select {JOB_COLUMNS}, features from jobs where id = ?", (job,))
            if not rows:
                return None
            *fields, features = rows[0]
            total: float | None = None
            with suppress(HistoryError):  # of another version
                total = decoded(features, _Features).demand.total_samples
            return Timeline(
                job_news(tuple(fields)),
                None if total is None else round(total),
                measured=tuple(self._measured(job)),
                plans=tuple(self._plans(job)),
                decisions=tuple(sorted(self._decisions(job), key=lambda known: known.at)),
                nodes=tuple(self._nodes(job)),
            )

    def _measured(self, job: str) -> Iterator[Measured]:
        question = "select at, seconds, samples_per_second, data from profiles where job = ? order by at"
        for at, seconds, rate, data in self.all(question, (job,)):
            one = _Profile()
            with suppress(HistoryError):  # of another version: then how fast it was is all that is known
                one = decoded(data, _Profile)
            yield Measured(at, seconds, rate, one.batch_size, one.samples_so_far, one.workers, one.ps)

    def _plans(self, job: str) -> Iterator[PlanNews]:
        from dlrover_lite.protocol.plans import Plan

        for at, data in self.all(
            "select at, data from plans where job = ? and kind = 'granted' order by at, id", (job,)
        ):
            yield PlanNews(job, at, decoded(data, Plan))

    def _decisions(self, job: str) -> Iterator[Known]:
        question = "select number, data, effect, done from decisions where job = ? order by number"
        for number, data, effect, done in self.all(question, (job,)):
            with suppress(HistoryError):  # of another version
                made = chosen(number, data, None, None)
                yield Known(made.at, made)
                done_at = None if done is None else decoded(done, _At).at
                effect_at = None if effect is None else decoded(effect, _At).at
                for at in sorted(at for at in (done_at, effect_at) if at is not None):
                    known = (
                        (effect if effect_at is not None and effect_at <= at else None),
                        (done if done_at is not None and done_at <= at else None),
                    )
                    yield Known(max(at, made.at), chosen(number, data, *known))

    def _nodes(self, job: str) -> Iterator[Happened]:
        question = "select at, node, event, reason, data from node_events where job = ? order by at, id"
        for at, node, event, reason, data in self.all(question, (job,)):
            one = decoded(data, _Node)
            yield Happened(at, node, event, reason, one.role, one.cores, one.memory, one.follows)
