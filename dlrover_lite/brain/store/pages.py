"""Answers out of stored rows, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.history_messages import (
    DecisionsQuestion,
    EffectsQuestion,
    EventsQuestion,
    FittedJobsQuestion,
    HistoryAnswer,
    InputsQuestion,
    JobIdsQuestion,
    JobsQuestion,
    KeptDecision,
    KeptEffect,
    KeptEvent,
    KeptFit,
    KeptFittedJob,
    KeptInputs,
    KeptJob,
    KeptJobId,
    KeptPlan,
    KeptProfile,
    KeptRow,
    PagedQuestion,
    Place,
    PlansQuestion,
    ProfilesQuestion,
    RowsPage,
    RowsQuestion,
)

__all__ = ["Execute", "PageRoom", "answer", "decoded"]

PAGE_ROWS = 1000
"""The most rows of a page."""
PAGE_BYTES = 1 << 20
"""Bytes of text from which on a page takes no further row: it is made, sent and read within milliseconds."""

T = TypeVar("T")
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


def decoded(text: str, kind: type[T]) -> T:
    """Decode stored JSON. Raises HistoryError for what can't be understood."""
    try:
        return from_json(text, kind)
    except msgspec.MsgspecError as error:
        raise HistoryError(
            f"What the brain has stored can't be understood: {error}",
            hint="It was stored by another version of dlrover-lite, or edited by hand.",
        ) from error


class _Kind(NamedTuple):
    """How the rows that answer a question are found."""

    row: Callable[..., KeptRow]
    """Function that makes a row of its columns."""
    source: str
    """Columns and tables."""
    order: str
    behind: str
    """Condition for rows behind a place."""
    place: Callable[[Any], Place]
    """Function that returns the place of a row."""


def answer(execute: Execute, question: RowsQuestion) -> HistoryAnswer:
    """Answer a question for rows."""
    if isinstance(question, InputsQuestion):
        packed = execute("select inputs, kind from rounds where id = ?", (question.round,))
        return next((KeptInputs(*row) for row in packed), KeptInputs())
    kind, room = _KINDS[type(question)], PageRoom()
    where, values = _where(*_conditions(question), (kind.behind, question.after))
    limit = "" if question.most is None else f" limit {int(question.most)}"
    rows = room.take(execute(f"select {kind.source}{where} order by {kind.order}{limit}", values))
    found = [kind.row(*row) for row in rows]
    return RowsPage(found, kind.place(found[-1]) if room.more else None)


def _where(*conditions: tuple[str, Sequence[Any] | None]) -> tuple[str, list[Any]]:
    """Join conditions, each with its values: one that has None isn't asked for."""
    asked = [(condition, values) for condition, values in conditions if values is not None]
    where = f" where {' and '.join(condition for condition, _ in asked)}" if asked else ""
    return where, [value for _, values in asked for value in values]


def _one(value: object) -> Sequence[Any] | None:
    return None if value is None else (value,)


def _conditions(question: PagedQuestion) -> Iterator[tuple[str, Sequence[Any] | None]]:
    match question:
        case JobsQuestion():
            yield from _of_jobs(question)
        case FittedJobsQuestion():
            yield f"fits.id = ({_NEWEST_FIT})", (question.kind,)
        case PlansQuestion() | ProfilesQuestion() | DecisionsQuestion() | EventsQuestion():
            yield "job = ?", (question.job,)
        case EffectsQuestion():
            yield "effect is not null", ()
            yield "job = ?", _one(question.job or None)
    match question:
        case PlansQuestion():
            yield "kind = ?", _one(question.kind or None)
        case ProfilesQuestion():
            yield "at between ? and ?", (question.since, question.until)
        case DecisionsQuestion():
            yield "number = ?", _one(question.number)


def _of_jobs(which: JobsQuestion) -> Iterator[tuple[str, Sequence[Any] | None]]:
    for name in ("id", "name", "owner", "model"):
        yield f"{name} glob ?", _one(getattr(which, name) or None)
    if states := [state.strip() for state in which.state.split(",") if state.strip()]:
        yield f"state in ({', '.join('?' * len(states))})", states
    yield "created_at >= ?", _one(which.since)
    yield "created_at <= ?", _one(which.until)
    everything = " || ' ' || ".join(("id", "name", "owner", "model", "state", "message", "features"))
    for word in which.text:
        yield f"instr(lower({everything}), lower(?)) > 0", (word,)


def _fitted(*row: Any) -> KeptFittedJob:
    split = len(KeptJob.__struct_fields__)
    return KeptFittedJob(KeptJob(*row[:split]), KeptFit(*row[split:]))


_NEWEST_PLAN = "select data from plans where job = jobs.id and kind = 'granted' order by at desc, id desc limit 1"
_NEWEST_FIT = "select id from fits where job = jobs.id and kind = ? order by at desc, id desc limit 1"
_JOB = ", ".join((*(f"jobs.{name}" for name in KeptJob.__struct_fields__[:-1]), f"({_NEWEST_PLAN})"))
_JOB_ID, _PLAN, _PROFILE, _DECISION, _EVENT = (
    ", ".join(kept.__struct_fields__) for kept in (KeptJobId, KeptPlan, KeptProfile, KeptDecision, KeptEvent)
)
_EFFECT = "rowid, job, number, at, action, json_extract(data, '$.predicted.throughput'), effect"
_FIT = ", ".join(f"fits.{name}" for name in KeptFit.__struct_fields__)
_OF_JOBS = "jobs.created_at desc, jobs.id", "(-jobs.created_at, jobs.id) > (-?, ?)"
_OF_RECORDS = "at desc, id desc", "(at, id) < (?, ?)"

_KINDS: dict[type, _Kind] = {
    JobsQuestion: _Kind(KeptJob, f"{_JOB} from jobs", *_OF_JOBS, lambda job: (job.created_at, job.id)),
    JobIdsQuestion: _Kind(KeptJobId, f"{_JOB_ID} from jobs", *_OF_JOBS, lambda job: (job.created_at, job.id)),
    PlansQuestion: _Kind(KeptPlan, f"{_PLAN} from plans", *_OF_RECORDS, lambda plan: (plan.at, plan.id)),
    EventsQuestion: _Kind(KeptEvent, f"{_EVENT} from node_events", *_OF_RECORDS, lambda event: (event.at, event.id)),
    ProfilesQuestion: _Kind(KeptProfile, f"{_PROFILE} from profiles", "at desc", "at < ?", lambda one: (one.at,)),
    DecisionsQuestion: _Kind(
        KeptDecision, f"{_DECISION} from decisions", "number desc", "number < ?", lambda one: (one.number,)
    ),
    EffectsQuestion: _Kind(KeptEffect, f"{_EFFECT} from decisions", "rowid desc", "rowid < ?", lambda one: (one.id,)),
    FittedJobsQuestion: _Kind(
        _fitted, f"{_JOB}, {_FIT} from jobs, fits", *_OF_JOBS, lambda one: (one.job.created_at, one.job.id)
    ),
}
