"""News of all jobs: each that asks is told what has changed since it was told last, however many ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from dlrover_lite.brain.store.decision_news import CHANGING, chosen, listed
from dlrover_lite.brain.store.pages import Execute, PageRoom, Row, decoded
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.history_messages import JobsNewsPage, JobsSeen
from dlrover_lite.protocol.news import DecisionNews, JobNews, PlanNews, RateNews, WatchedJobs
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan

__all__ = ["JOB_COLUMNS", "RATES", "AllJobs", "news_of_row"]

RATES = 60
"""Number of intervals of each job that runs that are told at first, the newest."""
JOB_COLUMNS = ", ".join(JobNews.__struct_fields__)
_LIVE = ("starting", "running", "queued")
_STATE = JobNews.__struct_fields__.index("state")
_MOST_GONE = 10_000
"""Number of jobs that are gone from which on all is told anew, instead of keeping them."""
_HIGHEST = "select " + ", ".join(
    f"(select coalesce(max(rowid), 0) from {table})" for table in ("profiles", "plans", "decisions")
)
_FIRST_RATES = (
    "select job, at, seconds, samples_per_second from profiles where job = ? and rowid <= ? order by at desc limit ?"
)
_CHANGING = "action in (" + ", ".join(f"'{action}'" for action in CHANGING) + ")"
_DECISION = f"job, number, at, action, reason, case when {_CHANGING} then data end, effect, done"
"""Columns of a decision; what it was decided from, which is much, only where it changes something."""
_NEWEST_DECISIONS = tuple(
    f"select {_DECISION} from decisions where job = ? and rowid <= ?{which} order by number desc limit 1"
    for which in (f" and {_CHANGING}", "")
)
"""The newest that changes something, and the newest of all."""
_NEWEST_CHANGE = f"select rowid from decisions where job = ? and {_CHANGING} order by number desc limit 1"
_NEW_CHANGES = f"select rowid, job from decisions where rowid > ? and {_CHANGING} order by rowid"
_AT_ONCE = 500
"""Number of decisions that are asked for in one question."""


class _Newest(NamedTuple):
    """The highest number of a row of each table."""

    rates: int
    plans: int
    decisions: int


class AllJobs:
    """The rows of all jobs, as they were when they were looked at last; each change of one has a number."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, Row]] = {}
        """Number of the last change, and the row, by job, in the order of these numbers."""
        self._gone: dict[str, int] = {}
        self._version = 0
        """Number of the newest change."""
        self._changes: dict[str, int] = {}
        """Number, in its table, of the last decision that changed something about a job that runs, until what it brought is known."""
        self._measured: dict[str, tuple[int, int]] = {}
        """Number of the change of a job with which that became known, and the number of the decision in its table, by job."""
        self._newest = _Newest(0, 0, 0)
        self.moment = 0
        """The moment at which they were looked at."""

    def look(self, execute: Execute, moment: int) -> bool:
        """Look at the jobs as they are at this moment; return False where it isn't the tables that were looked at before, or too much is
        gone."""
        (highest,) = execute(_HIGHEST, ())
        newest = _Newest(*highest)
        if any(now < before for now, before in zip(newest, self._newest, strict=True)):
            return False
        before, self.moment, self._newest = self._newest, moment, newest
        there = set()
        for row in execute(f"select {JOB_COLUMNS} from jobs", ()):
            job = row[0]
            there.add(job)
            known = self._rows.get(job)
            if known is None or known[1] != row:
                self._put(job, row)
                self._gone.pop(job, None)
        for job in sorted(self._rows.keys() - there) if len(there) < len(self._rows) else ():
            self._version += 1
            self._gone[job] = self._version
            del self._rows[job]
        self._look_at_changes(execute, before.decisions)
        return len(self._gone) <= _MOST_GONE

    def _put(self, job: str, row: Row) -> None:
        """Note that a job has changed."""
        self._version += 1
        self._rows.pop(job, None)
        self._rows[job] = self._version, row

    def _look_at_changes(self, execute: Execute, since: int) -> None:
        """Find the last changes of jobs that run of which has become known what they brought, and note that these jobs have changed."""
        if not since:
            live = [job for job, (_, row) in self._rows.items() if row[_STATE] in _LIVE]
            self._changes = {job: number for job in live for (number,) in execute(_NEWEST_CHANGE, (job,))}
        else:
            self._changes |= {job: number for number, job in execute(_NEW_CHANGES, (since,))}
        numbers = list(self._changes.values())
        for start in range(0, len(numbers), _AT_ONCE):
            asked = ", ".join(map(str, numbers[start : start + _AT_ONCE]))
            question = f"select rowid, job from decisions where rowid in ({asked}) and effect is not null"
            for number, job in execute(question, ()):
                del self._changes[job]
                if job in self._rows:
                    self._put(job, self._rows[job][1])
                    self._measured[job] = self._version, number
        for job in [job for job in self._changes if job not in self._rows or self._rows[job][1][_STATE] not in _LIVE]:
            del self._changes[job]
        for job in self._measured.keys() - self._rows.keys():
            del self._measured[job]

    def news(self, execute: Execute, source: str, seen: JobsSeen) -> JobsNewsPage:
        """Tell what is new since ``seen``; ``source`` names who tells it, and is empty where there is nothing to tell of."""
        if anew := seen.source != source:
            newest = self._newest
            seen = JobsSeen(source, version=self._version, rates=newest.rates, decisions=newest.decisions)
        if not source:
            return JobsNewsPage(WatchedJobs(anew=anew), seen, more=False)
        return self._later(execute, seen) if seen.first is None else self._first(execute, seen, seen.first, anew)

    def _first(self, execute: Execute, seen: JobsSeen, first: str, anew: bool) -> JobsNewsPage:
        """Tell of jobs for the first time, in the order of their ids: only the newest few intervals of those that run, since there may be a
        month of them, and the newest decision."""
        room = PageRoom()
        jobs, rates, decisions = [], [], []
        last = first
        for job, *row in room.take((job, *self._rows[job][1]) for job in sorted(self._rows) if job > first):
            last = job
            jobs.append(news_of_row(tuple(row)))
            if row[_STATE] in _LIVE:
                for rate in list(execute(_FIRST_RATES, (job, seen.rates, RATES)))[::-1]:
                    room.fill(rate)
                    rates.append(RateNews(*rate))
            newest = (row for which in _NEWEST_DECISIONS for row in execute(which, (job, seen.decisions)))
            decisions += _distinct(_decision_news(row) for row in newest)
        news = WatchedJobs(anew, tuple(jobs), rates=tuple(rates), decisions=tuple(decisions))
        return JobsNewsPage(news, replace(seen, first=last if room.more else None), more=True)

    def _later(self, execute: Execute, seen: JobsSeen) -> JobsNewsPage:
        room = PageRoom()
        version, jobs, measured = self._version, [], []
        for number, *row in room.take(self._changed(seen.version)):
            version = number
            jobs.append(news_of_row(tuple(row)))
            since, decision = self._measured.get(jobs[-1].id, (0, 0))
            if since > seen.version:
                for told in execute(f"select {_DECISION} from decisions where rowid = ?", (decision,)):
                    room.fill(told)
                    measured.append(_decision_news(told))
        if not room.more:
            version = self._version
        gone = tuple(job for job, number in self._gone.items() if seen.version < number <= version)
        rates, plans, decisions, newest = [], [], [], self._newest
        last = _Newest(seen.rates, seen.plans, seen.decisions)
        if last.rates < newest.rates:
            question = "select rowid, job, at, seconds, samples_per_second from profiles where rowid > ? order by rowid"
            for number, *row in room.take(execute(question, (last.rates,))):
                last = last._replace(rates=number)
                rates.append(RateNews(*row))
        if last.plans < newest.plans:
            question = "select id, job, at, data from plans where id > ? and kind = 'granted' order by id"
            for number, job, at, data in room.take(execute(question, (last.plans,))):
                last = last._replace(plans=number)
                plans.append(PlanNews(job, at, decoded(data, Plan)))
        if last.decisions < newest.decisions:
            question = f"select rowid, {_DECISION} from decisions where rowid > ? order by rowid"
            for number, *row in room.take(execute(question, (last.decisions,))):
                last = last._replace(decisions=number)
                decisions.append(_decision_news(row))
        if not room.more:
            last = newest
        news = WatchedJobs(False, tuple(jobs), gone, tuple(rates), tuple(plans), (*measured, *decisions))
        return JobsNewsPage(news, JobsSeen(seen.source, None, version, *last), room.more)

    def _changed(self, since: int) -> Iterator[Row]:
        """Yield the changes since that one, in the order of their numbers, each with its number."""
        found: list[Row] = []
        for version, row in reversed(self._rows.values()):
            if version <= since:
                break
            found.append((version, *row))
        yield from reversed(found)


def _decision_news(row: Sequence[Any]) -> DecisionNews:
    """Make news of a row of ``_DECISION``."""
    job, number, at, action, reason, data, effect, done = row
    if data is not None:
        with suppress(HistoryError):  # stored by another version
            return listed(job, chosen(number, data, effect, done))
    return DecisionNews(job, number, at, action, reason)


def _distinct(news: Iterable[DecisionNews]) -> list[DecisionNews]:
    return list({one.number: one for one in news}.values())


def news_of_row(row: Sequence[Any]) -> JobNews:
    """Make news of a row of ``JOB_COLUMNS``."""
    fields = (*row[:-1], decoded(row[-1], JobOutcome))
    return JobNews(*fields)
