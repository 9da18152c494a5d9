"""Answers out of stored rows, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from dlrover_lite.protocol.history_messages import (
    DecisionsPage,
    DecisionsQuestion,
    EventsPage,
    EventsQuestion,
    FittedJobsPage,
    FittedJobsQuestion,
    HistoryAnswer,
    InputsQuestion,
    JobFilter,
    JobIdsPage,
    JobIdsQuestion,
    JobPlace,
    JobsPage,
    JobsQuestion,
    KeptDecision,
    KeptEvent,
    KeptFit,
    KeptFittedJob,
    KeptInputs,
    KeptJob,
    KeptPlan,
    KeptProfile,
    PlansPage,
    PlansQuestion,
    ProfilesPage,
    ProfilesQuestion,
    RowsQuestion,
)

__all__ = ["Execute", "PageRoom", "answer"]

PAGE_ROWS = 1000
"""The most rows of a page."""
PAGE_BYTES = 1 << 20
"""Bytes of text from which on a page takes no further row: it is made, sent and read within milliseconds."""

Row = tuple[Any, ...]
Execute = Callable[[str, Sequence[Any]], Iterable[Row]]
"""Finds the rows of a statement with these values."""


class PageRoom:
    """What still fits in a page."""

    def __init__(self) -> None:
        self._rows, self._bytes = PAGE_ROWS, PAGE_BYTES
        self.more = False
        """There are rows that didn't fit."""

    def take(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield rows as long as there is room; of the first ones of a page at least one."""
        for row in rows:
            if self._rows <= 0 or self._bytes <= 0:
                self.more = True
                return
            self.fill(row)
            yield row

    def fill(self, row: Row) -> None:
        self._rows -= 1
        self._bytes -= sum(len(cell) for cell in row if isinstance(cell, str | bytes))


def answer(execute: Execute, question: RowsQuestion) -> HistoryAnswer:
    """Answer a question for rows."""
    match question:
        case JobsQuestion():
            return _jobs(execute, question)
        case JobIdsQuestion():
            return _job_ids(execute, question)
        case PlansQuestion():
            return _plans(execute, question)
        case ProfilesQuestion():
            return _profiles(execute, question)
        case DecisionsQuestion():
            return _decisions(execute, question)
        case InputsQuestion():
            rows = execute("select inputs, kind from rounds where id = ?", (question.round,))
            return next((KeptInputs(*row) for row in rows), KeptInputs())
        case EventsQuestion():
            return _events(execute, question)
        case FittedJobsQuestion():
            return _fitted_jobs(execute, question)


_JOB = ", ".join(f"jobs.{name}" for name in KeptJob.__struct_fields__[:-1]) + (
    ", (select data from plans where job = jobs.id and kind = 'granted' order by at desc, id desc limit 1)"
)
_FIT = ", ".join(f"fits.{name}" for name in KeptFit.__struct_fields__)
_PLAN, _PROFILE, _DECISION, _EVENT = (
    ", ".join(kept.__struct_fields__) for kept in (KeptPlan, KeptProfile, KeptDecision, KeptEvent)
)


def _page(execute: Execute, statement: str, values: Sequence[Any], most: int | None = None) -> tuple[list[Row], bool]:
    """Return the rows of a page, at ``most`` so many, and whether there are more."""
    room = PageRoom()
    limit = "" if most is None else f" limit {int(most)}"
    found = list(room.take(execute(statement + limit, values)))
    return found, room.more


def _left(most: int | None, rows: Sequence[object]) -> int | None:
    return None if most is None else most - len(rows)


def _where(*conditions: tuple[str, Sequence[Any] | None]) -> tuple[str, list[Any]]:
    """Join conditions, each with its values: one that has None isn't asked for."""
    asked = [(condition, values) for condition, values in conditions if values is not None]
    where = f" where {' and '.join(condition for condition, _ in asked)}" if asked else ""
    return where, [value for _, values in asked for value in values]


def _one(value: object) -> Sequence[Any] | None:
    return None if value is None else (value,)


def _behind(place: JobPlace | None) -> tuple[str, Sequence[Any] | None]:
    """Return the condition for jobs that come after this place."""
    condition = "(jobs.created_at < ? or (jobs.created_at = ? and jobs.id > ?))"
    return condition, None if place is None else (place[0], *place)


def _jobs(execute: Execute, question: JobsQuestion) -> JobsPage:
    which = question.which
    where, values = _where(_behind(question.after), *_conditions(which))
    statement = f"select {_JOB} from jobs{where} order by created_at desc, id"
    rows, more = _page(execute, statement, values, which.limit)
    found = [KeptJob(*row) for row in rows]
    rest = replace(which, limit=_left(which.limit, found))
    return JobsPage(found, JobsQuestion(rest, (found[-1].created_at, found[-1].id)) if more else None)


def _conditions(which: JobFilter) -> Iterator[tuple[str, Sequence[Any] | None]]:
    for name in ("id", "name", "owner", "model"):
        yield f"{name} glob ?", _one(getattr(which, name) or None)
    if states := [state.strip() for state in which.state.split(",") if state.strip()]:
        yield f"state in ({', '.join('?' * len(states))})", states
    yield "created_at >= ?", _one(which.since)
    yield "created_at <= ?", _one(which.until)
    everything = " || ' ' || ".join(("id", "name", "owner", "model", "state", "message", "features"))
    for word in which.text:
        yield f"instr(lower({everything}), lower(?)) > 0", (word,)


def _job_ids(execute: Execute, question: JobIdsQuestion) -> JobIdsPage:
    where, values = _where(_behind(question.after))
    statement = f"select created_at, id from jobs{where} order by created_at desc, id"
    rows, more = _page(execute, statement, values)
    return JobIdsPage([job for _, job in rows], JobIdsQuestion((rows[-1][0], rows[-1][1])) if more else None)


def _plans(execute: Execute, question: PlansQuestion) -> PlansPage:
    where, values = _where(
        ("job = ?", (question.job,)), ("kind = ?", _one(question.kind or None)), ("(at, id) < (?, ?)", question.before)
    )
    statement = f"select {_PLAN} from plans{where} order by at desc, id desc"
    rows, more = _page(execute, statement, values, question.most)
    found = [KeptPlan(*row) for row in rows]
    left = _left(question.most, found)
    return PlansPage(found, replace(question, most=left, before=(found[-1].at, found[-1].id)) if more else None)


def _profiles(execute: Execute, question: ProfilesQuestion) -> ProfilesPage:
    where, values = _where(
        ("job = ?", (question.job,)),
        ("at between ? and ?", (question.since, question.until)),
        ("at < ?", _one(question.before)),
    )
    statement = f"select {_PROFILE} from profiles{where} order by at desc"
    rows, more = _page(execute, statement, values, question.most)
    found = [KeptProfile(*row) for row in rows]
    left = _left(question.most, found)
    return ProfilesPage(found, replace(question, most=left, before=found[-1].at) if more else None)


def _decisions(execute: Execute, question: DecisionsQuestion) -> DecisionsPage:
    where, values = _where(
        ("job = ?", (question.job,)), ("number = ?", _one(question.number)), ("number < ?", _one(question.below))
    )
    statement = f"select {_DECISION} from decisions{where} order by number desc"
    rows, more = _page(execute, statement, values, question.most)
    found = [KeptDecision(*row) for row in rows]
    left = _left(question.most, found)
    return DecisionsPage(found, replace(question, most=left, below=found[-1].number) if more else None)


def _events(execute: Execute, question: EventsQuestion) -> EventsPage:
    where, values = _where(("job = ?", (question.job,)), ("(at, id) < (?, ?)", question.before))
    statement = f"select {_EVENT} from node_events{where} order by at desc, id desc"
    rows, more = _page(execute, statement, values)
    found = [KeptEvent(*row) for row in rows]
    return EventsPage(found, replace(question, before=(found[-1].at, found[-1].id)) if more else None)


def _fitted_jobs(execute: Execute, question: FittedJobsQuestion) -> FittedJobsPage:
    where, values = _where(_behind(question.after))
    statement = (
        f"select {_JOB}, {_FIT} from jobs join fits on fits.id = "
        "(select id from fits where job = jobs.id and kind = ? order by at desc, id desc limit 1)"
        f"{where} order by jobs.created_at desc, jobs.id"
    )
    rows, more = _page(execute, statement, [question.kind, *values], question.most)
    split = len(KeptJob.__struct_fields__)
    found = [KeptFittedJob(KeptJob(*row[:split]), KeptFit(*row[split:])) for row in rows]
    if not more:
        return FittedJobsPage(found, None)
    last, left = found[-1].job, _left(question.most, found)
    return FittedJobsPage(found, replace(question, most=left, after=(last.created_at, last.id)))
