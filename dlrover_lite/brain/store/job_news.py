"""News of one job: plans, intervals, decisions and nodes, each told once, and again when more is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from dlrover_lite.brain.store.all_jobs import JOB_COLUMNS, news_of_row
from dlrover_lite.brain.store.decision_news import CHANGING, chosen
from dlrover_lite.brain.store.pages import Execute, PageRoom, decoded
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.history_messages import JobNewsPage, JobNewsQuestion, JobSeen
from dlrover_lite.protocol.news import Chosen, NodeNews, PlanNews, RateNews, WatchedJob
from dlrover_lite.protocol.plans import Plan

__all__ = ["DECISIONS", "news_of_job", "node_news"]

_Told = tuple[int, bool, bool]
"""Number of a decision, whether its effect was known, and what became of it."""
DECISIONS = 200
"""Number of decisions of a job that are told, the newest."""
_CHANGES = 50
"""Number of decisions that changed something that are told, the newest, however many have changed nothing since."""
_NUMBERS = (
    "select number, effect is not null, done is not null from decisions where job = ? and (number in (select number from decisions "
    "where job = ? order by number desc limit ?) or number in (select number from decisions where job = ? and "
    f"action in ({', '.join(map(repr, CHANGING))}) order by number desc limit ?)) order by number desc"
)


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
    rows = execute(_NUMBERS, (job, job, DECISIONS, job, _CHANGES))
    states = [(number, bool(judged), bool(done)) for number, judged, done in rows]
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
