"""News of one job: plans, intervals, decisions and nodes, each told once, and again when more is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from dlrover_lite.brain.store.all_jobs import JOB_COLUMNS, news_of_row
from dlrover_lite.brain.store.pages import Execute, PageRoom, decoded
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.history_messages import JobNewsPage, JobNewsQuestion, JobSeen
from dlrover_lite.protocol.news import Chosen, NodeNews, PlanNews, RateNews, WatchedJob
from dlrover_lite.protocol.plans import Plan

__all__ = ["DECISIONS", "choice_of", "chosen", "news_of_job", "node_news"]

_Told = tuple[int, bool, bool]
"""Number of a decision, whether its effect was known, and what became of it."""
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


class _Happened(msgspec.Struct):
    """The parts of a stored node event that ``NodeNews`` has."""

    role: str = ""
    cores: float | None = None
    memory: int | None = None
    follows: str = ""


def news_of_job(execute: Execute, source: str, moment: int, question: JobNewsQuestion) -> JobNewsPage:
    """Tell what is new of the job since ``question.seen``; at first, and of another source, all there is. ``source`` names who tells it,
    and is empty where there is nothing to tell of; ``moment`` is the number of the database's last change."""
    job, seen = question.job, question.seen
    if not source or (seen.source, seen.moment) == (source, moment):
        return JobNewsPage(WatchedJob(), seen, more=False)
    if anew := seen.source != source:
        seen = JobSeen(source)
    room = PageRoom()
    jobs = tuple(map(news_of_row, execute(f"select {JOB_COLUMNS} from jobs where id = ?", (job,))))
    decisions, told = _decided(execute, job, seen.decisions, room)
    rate, rates = seen.rate, []
    statement = "select job, at, seconds, samples_per_second from profiles where job = ? and at > ? order by at"
    for row in room.take(execute(statement, (job, rate))):
        rate = row[1]
        rates.append(RateNews(*row))
    plan, plans = seen.plan, []
    statement = "select id, job, at, data from plans where job = ? and kind = 'granted' and id > ? order by id"
    for number, of, at, data in room.take(execute(statement, (job, plan))):
        plan = number
        plans.append(PlanNews(of, at, decoded(data, Plan)))
    event, nodes = seen.event, []
    statement = "select id, at, node, event, reason, data from node_events where job = ? and id > ? order by id"
    for number, at, node, what, reason, data in room.take(execute(statement, (job, event))):
        event = number
        nodes.append(node_news(at, node, what, reason, data))
    news = WatchedJob(anew, jobs, tuple(rates), tuple(plans), tuple(decisions), tuple(nodes))
    following = JobSeen(source, seen.moment if room.more else moment, rate, plan, event, tuple(told))
    return JobNewsPage(news, following, room.more)


def _decided(execute: Execute, job: str, told: Sequence[_Told], room: PageRoom) -> tuple[list[Chosen], list[_Told]]:
    """Return the newest decisions that are new, or of which more is known than was ``told``; and what has been told with them."""
    statement = (
        "select number, effect is not null, done is not null from decisions where job = ? order by number desc limit ?"
    )
    states = [(number, bool(judged), bool(done)) for number, judged, done in execute(statement, (job, DECISIONS))]
    known = set(told)
    found, after = [], [state for state in states if state in known]
    for state in states[::-1]:
        if state in known or room.more:
            continue
        statement = "select number, data, effect, done from decisions where job = ? and number = ?"
        for row in room.take(execute(statement, (job, state[0]))):
            after.append(state)
            with suppress(HistoryError):  # stored by another version
                found.append(chosen(*row))
    return found, after


def node_news(at: float, node: str, event: str, reason: str, data: str) -> NodeNews:
    """Make news of a stored node event."""
    happened = _Happened()
    with suppress(HistoryError):  # stored by another version
        happened = decoded(data, _Happened)
    return NodeNews(at, node, event, reason, happened.role, happened.cores, happened.memory, happened.follows)


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
