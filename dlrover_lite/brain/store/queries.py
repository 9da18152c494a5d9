"""Questions to the config database."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dlrover_lite.brain.store.database import ConfigStore, unpack_inputs
from dlrover_lite.brain.store.records import FitRecord, JobEntry, ProfileRecord, StoredDecision
from dlrover_lite.core.errors import HistoryError, UsageError
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan
from dlrover_lite.protocol.records import NodeRecord, PlanRecord

if TYPE_CHECKING:
    from dlrover_lite.brain.healing.mitigation import HealInputs
    from dlrover_lite.brain.planning.job_view import RoundInputs

__all__ = [
    "JobFilter",
    "decisions",
    "fitted_jobs",
    "inputs_of",
    "jobs",
    "newest_fit",
    "newest_plan",
    "node_events",
    "parse_filter",
    "plans",
    "profiles",
]

T = TypeVar("T")
_JOB_COLUMNS = JobEntry.__struct_fields__

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])\Z")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_GLOBS = ("id", "name", "owner", "model", "state")


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list; all conditions must hold. Patterns are globs (``ads-*``); "" is any."""

    id: str = ""
    name: str = ""
    owner: str = ""
    model: str = ""
    state: str = ""
    """Several states, separated by commas."""
    since: float | None = None
    """Time at or after which the jobs were created."""
    until: float | None = None
    text: tuple[str, ...] = ()
    """Words of which each is somewhere in id, name, owner, model, state, message or features, whatever the case."""
    limit: int | None = None
    """Number of jobs at most, the newest ones."""


def parse_filter(words: Iterable[str], *, now: float) -> JobFilter:
    """Parse ``model=dcn state=failed,lost name=ads-* since=7d until=12h limit=20 text``: spans count back from ``now``.

    Raises UsageError naming what can't be understood.
    """
    fields: dict[str, Any] = {}
    text = []
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            text.append(word)
        elif key in _GLOBS:
            fields[key] = value
        elif key in ("since", "until"):
            if (match := _SPAN.match(value)) is None:
                raise UsageError(f"{word!r}: {value!r} is no span of time", hint="Write 90s, 30m, 12h, 7d or 2w.")
            fields[key] = now - float(match[1]) * _SECONDS[match[2]]
        elif key == "limit":
            if not value.isdecimal() or int(value) < 1:
                raise UsageError(f"{word!r}: {value!r} is no number of jobs")
            fields[key] = int(value)
        else:
            raise UsageError(
                f"Jobs can't be filtered by {key!r}", hint=f"Known: {', '.join((*_GLOBS, 'since', 'until', 'limit'))}."
            )
    return JobFilter(**fields, text=tuple(text))


def jobs(store: ConfigStore, which: JobFilter | None = None) -> list[JobEntry]:
    """List the jobs that match, the newest first."""
    which = which or JobFilter()
    conditions, values = _conditions(which)
    limit = "" if which.limit is None else f" limit {int(which.limit)}"
    where = f" where {' and '.join(conditions)}" if conditions else ""
    columns = ", ".join(_JOB_COLUMNS)
    rows = _rows(store, f"select {columns} from jobs{where} order by created_at desc, id{limit}", values)
    return [_job(store, row) for row in rows]


def _job(store: ConfigStore, row: Sequence[Any]) -> JobEntry:
    *fields, outcome, features = row
    decoded = _decoded(store, outcome, JobOutcome), _decoded(store, features, dict[str, Any])
    return JobEntry(**dict(zip(_JOB_COLUMNS, (*fields, *decoded), strict=True)))


def _conditions(which: JobFilter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []
    for name in ("id", "name", "owner", "model"):
        if pattern := getattr(which, name):
            conditions.append(f"{name} glob ?")
            values.append(pattern)
    if states := [state.strip() for state in which.state.split(",") if state.strip()]:
        conditions.append(f"state in ({', '.join('?' * len(states))})")
        values += states
    for bound, sign in ((which.since, ">="), (which.until, "<=")):
        if bound is not None:
            conditions.append(f"created_at {sign} ?")
            values.append(bound)
    for word in which.text:
        everything = " || ' ' || ".join(("id", "name", "owner", "model", "state", "message", "features"))
        conditions.append(f"instr(lower({everything}), lower(?)) > 0")
        values.append(word)
    return conditions, values


def profiles(
    store: ConfigStore, job: str, *, since: float = 0.0, until: float = 1e18, newest: int | None = None
) -> list[ProfileRecord]:
    """List a job's profiles, the oldest first; ``newest``: only so many of the newest."""
    question = (
        "select job, at, seconds, samples_per_second, workers, servers, data from profiles "
        f"where job = ? and at >= ? and at <= ? order by at desc{_limit(newest)}"
    )
    rows = _rows(store, question, (job, since, until))
    names = ProfileRecord.__struct_fields__
    found = [
        ProfileRecord(**dict(zip(names, (*row[:-1], _decoded(store, row[-1], dict[str, Any])), strict=True)))
        for row in rows
    ]
    return found[::-1]


def decisions(
    store: ConfigStore, job: str, *, number: int | None = None, newest: int | None = None, lenient: bool = False
) -> list[StoredDecision]:
    """List a job's decisions, the oldest first; the one with that ``number``, or the ``newest`` only. Raises HistoryError for what can't be
    read any more; ``lenient``: that is left out."""
    from dlrover_lite.brain.effect import Effect
    from dlrover_lite.brain.planning.decision import Decision
    from dlrover_lite.protocol.demands import Done

    condition, values = ("", (job,)) if number is None else (" and number = ?", (job, number))
    question = f"select number, round, data, effect, done from decisions where job = ?{condition} order by number desc{_limit(newest)}"
    found = []
    for one, of_round, data, effect, done in _rows(store, question, values):
        try:
            found.append(
                StoredDecision(
                    number=one,
                    round=of_round,
                    decision=msgspec.json.decode(data, type=Decision),
                    effect=None if effect is None else msgspec.json.decode(effect, type=Effect),
                    done=None if done is None else msgspec.json.decode(done, type=Done),
                )
            )
        except msgspec.DecodeError as error:
            if lenient:
                continue
            raise HistoryError(
                f"Decision {one} of {job} can't be read: {error}",
                hint="It was stored by another version of dlrover-lite.",
            ) from error
    return found[::-1]


def inputs_of(store: ConfigStore, stored: StoredDecision) -> RoundInputs | HealInputs:
    """Return what the decision follows from. Raises HistoryError if that isn't there any more."""
    rows = _rows(store, "select inputs, kind from rounds where id = ?", (stored.round,))
    if not rows:
        raise HistoryError(f"The inputs of decision {stored.number} of {stored.decision.job} were pruned")
    return unpack_inputs(*rows[0])


def plans(store: ConfigStore, job: str, *, kind: str = "", newest: int | None = None) -> list[PlanRecord]:
    """List a job's plans, the oldest first; of a ``kind``, desired or granted, or all."""
    condition, values = (" and kind = ?", (job, kind)) if kind else ("", (job,))
    question = f"select job, at, kind, data, decision from plans where job = ?{condition} order by at desc, id desc{_limit(newest)}"
    found = [
        PlanRecord(job=of, at=at, kind=its_kind, plan=_decoded(store, data, Plan), decision=decision)
        for of, at, its_kind, data, decision in _rows(store, question, values)
    ]
    return found[::-1]


def newest_plan(store: ConfigStore, job: str, kind: str) -> PlanRecord | None:
    """Return a job's newest plan of a ``kind``: desired or granted; None: there is none."""
    return next(iter(plans(store, job, kind=kind, newest=1)), None)


def node_events(store: ConfigStore, job: str, *, newest: int | None = None) -> list[NodeRecord]:
    """List a job's node events, the oldest first."""
    question = f"select job, at, node, event, reason, data from node_events where job = ? order by at desc, id desc{_limit(newest)}"
    names = NodeRecord.__struct_fields__
    rows = _rows(store, question, (job,))
    found = [
        NodeRecord(**dict(zip(names, (*row[:-1], _decoded(store, row[-1], dict[str, Any])), strict=True)))
        for row in rows
    ]
    return found[::-1]


_FIT = "fits.job, fits.at, fits.kind, fits.error, fits.windows, fits.data"


def newest_fit(store: ConfigStore, job: str, kind: str) -> FitRecord | None:
    question = f"select {_FIT} from fits where job = ? and kind = ? order by at desc, id desc limit 1"
    return next((_fit(store, row) for row in _rows(store, question, (job, kind))), None)


def fitted_jobs(store: ConfigStore, kind: str, *, newest: int = 500) -> list[tuple[JobEntry, FitRecord]]:
    """List jobs with the newest fit of that kind, newest jobs first: what a warm start chooses from."""
    columns = ", ".join(f"jobs.{name}" for name in _JOB_COLUMNS)
    question = (
        f"select {columns}, {_FIT} from jobs join fits on fits.id = "
        "(select id from fits where job = jobs.id and kind = ? order by at desc, id desc limit 1) "
        "order by jobs.created_at desc, jobs.id limit ?"
    )
    rows, split = _rows(store, question, (kind, newest)), len(_JOB_COLUMNS)
    return [(_job(store, row[:split]), _fit(store, row[split:])) for row in rows]


def _fit(store: ConfigStore, row: Sequence[Any]) -> FitRecord:
    names = FitRecord.__struct_fields__
    return FitRecord(**dict(zip(names, (*row[:-1], _decoded(store, row[-1], dict[str, Any])), strict=True)))


def _rows(store: ConfigStore, question: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    with store.errors():
        return store.db.conn.execute(question, values).fetchall()


def _limit(newest: int | None) -> str:
    return "" if newest is None else f" limit {int(newest)}"


def _decoded(store: ConfigStore, text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise HistoryError(
            f"{store.path} holds what can't be understood: {error}",
            hint="It is damaged, or was edited by hand. Move it away; a new one is made, without history.",
        ) from error
