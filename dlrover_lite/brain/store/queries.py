"""The history, asked: questions and answers in the types that the rest of the code has."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from dlrover_lite.brain.store.history import Rows
from dlrover_lite.brain.store.records import FitRecord, JobEntry, ProfileRecord, StoredDecision, profile_of
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import HistoryError, UsageError
from dlrover_lite.protocol.history_messages import (
    LATEST,
    DecisionsQuestion,
    EffectsQuestion,
    EventsQuestion,
    FittedJobsQuestion,
    InputsQuestion,
    JobIdsQuestion,
    JobsQuestion,
    KeptDecision,
    KeptEffect,
    KeptEvent,
    KeptFittedJob,
    KeptInputs,
    KeptJob,
    KeptJobId,
    KeptPlan,
    KeptProfile,
    KeptRow,
    PagedQuestion,
    PlansQuestion,
    ProfilesQuestion,
    RowsPage,
)
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan
from dlrover_lite.protocol.records import NodeRecord, PlanRecord

if TYPE_CHECKING:
    from dlrover_lite.brain.calibration import JudgedDecision
    from dlrover_lite.brain.healing.mitigation import HealInputs
    from dlrover_lite.brain.planning.job_view import RoundInputs
    from dlrover_lite.protocol.profiles import Profile

__all__ = [
    "JobsQuestion",
    "decisions",
    "fitted_jobs",
    "inputs_of",
    "job_ids",
    "job_with_plan",
    "jobs",
    "jobs_with_plans",
    "judged_decisions",
    "kept",
    "node_events",
    "parse_filter",
    "plans",
    "profiles",
    "readable_profiles",
]

R = TypeVar("R", bound=KeptRow)
S = TypeVar("S", FitRecord, NodeRecord, ProfileRecord)
T = TypeVar("T")

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])\Z")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_GLOBS = ("id", "name", "owner", "model", "state")


def parse_filter(words: Iterable[str], *, now: float) -> JobsQuestion:
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
            fields["most"] = int(value)
        else:
            raise UsageError(
                f"Jobs can't be filtered by {key!r}", hint=f"Known: {', '.join((*_GLOBS, 'since', 'until', 'limit'))}."
            )
    return JobsQuestion(**fields, text=tuple(text))


def kept(history: Rows, question: PagedQuestion, kind: type[R]) -> list[R]:
    """List all rows of this kind, which the question asks for, however many pages they take."""
    found: list[R] = []
    while True:
        page = history.ask(question, RowsPage)
        found += cast("list[R]", page.rows)
        if page.next is None:
            return found
        left = None if question.most is None else question.most - len(page.rows)
        question = replace(question, most=left, after=page.next)


def jobs(history: Rows, which: JobsQuestion | None = None) -> list[JobEntry]:
    """List the jobs that match, the newest first."""
    return [_job(history, row) for row in kept(history, which or JobsQuestion(), KeptJob)]


def jobs_with_plans(history: Rows, which: JobsQuestion) -> list[tuple[JobEntry, Plan | None]]:
    """List the jobs that match, the newest first, each with the newest plan that it was given."""
    return [job_with_plan(history, row) for row in kept(history, which, KeptJob)]


def job_with_plan(history: Rows, row: KeptJob) -> tuple[JobEntry, Plan | None]:
    """Return a job, and the newest plan that it was given. Raises HistoryError for what can't be read."""
    return _job(history, row), None if row.plan is None else _decoded(history, row.plan, Plan)


def job_ids(history: Rows) -> list[str]:
    """List the ids of all jobs, the newest first."""
    return [row.id for row in kept(history, JobIdsQuestion(), KeptJobId)]


def _job(history: Rows, row: KeptJob) -> JobEntry:
    fields = {name: getattr(row, name) for name in JobEntry.__struct_fields__}
    fields["outcome"] = _decoded(history, row.outcome, JobOutcome)
    fields["features"] = _decoded(history, row.features, dict[str, Any])
    return JobEntry(**fields)


def profiles(
    history: Rows, job: str, *, since: float = 0.0, until: float = LATEST, newest: int | None = None
) -> list[ProfileRecord]:
    """List a job's profiles, the oldest first; ``newest``: only so many of the newest."""
    rows = kept(history, ProfilesQuestion(job, since, until, most=newest), KeptProfile)
    return [_record(history, row, ProfileRecord) for row in rows[::-1]]


def readable_profiles(
    history: Rows, job: str, *, since: float = 0.0, until: float = LATEST, newest: int | None = None
) -> list[Profile]:
    """List a job's profiles as ``profiles`` does; those that another version has stored are left out."""
    found: list[Profile] = []
    for record in profiles(history, job, since=since, until=until, newest=newest):
        with suppress(HistoryError):
            found.append(profile_of(record))
    return found


def decisions(
    history: Rows, job: str, *, number: int | None = None, newest: int | None = None, lenient: bool = False
) -> list[StoredDecision]:
    """List a job's decisions, the oldest first; the one with that ``number``, or the ``newest`` only. Raises HistoryError for what can't be
    read any more; ``lenient``: that is left out."""
    rows = kept(history, DecisionsQuestion(job, number, most=newest), KeptDecision)
    if not rows:
        return []  # before anything is imported for them, which takes a moment
    from dlrover_lite.brain.effect import Effect
    from dlrover_lite.brain.planning.decision import Decision
    from dlrover_lite.protocol.demands import DecisionOutcome

    found = []
    for row in rows[::-1]:
        try:
            found.append(
                StoredDecision(
                    number=row.number,
                    round=row.round,
                    decision=from_json(row.data, Decision),
                    effect=None if row.effect is None else from_json(row.effect, Effect),
                    done=None if row.done is None else from_json(row.done, DecisionOutcome),
                )
            )
        except msgspec.DecodeError as error:
            if lenient:
                continue
            raise HistoryError(
                f"Decision {row.number} of {job} can't be read: {error}",
                hint="It was stored by another version of dlrover-lite.",
            ) from error
    return found


def judged_decisions(history: Rows, job: str = "") -> list[JudgedDecision]:
    """List the decisions of a job, or of all, whose effect was measured, the oldest first. What another version has stored in another way
    is left out."""
    rows = kept(history, EffectsQuestion(job), KeptEffect)
    if not rows:
        return []
    from dlrover_lite.brain.calibration import JudgedDecision
    from dlrover_lite.brain.effect import Effect
    from dlrover_lite.brain.planning.pareto import Band

    found = []
    for row in rows[::-1]:
        with suppress(msgspec.DecodeError):
            predicted = from_json(row.predicted, Band)
            effect = from_json(row.effect, Effect)
            found.append(JudgedDecision(row.job, row.number, row.at, row.action, predicted, effect))
    return found


def inputs_of(history: Rows, stored: StoredDecision) -> RoundInputs | HealInputs:
    """Return what the decision follows from. Raises HistoryError if that isn't there any more, or can't be read."""
    from dlrover_lite.brain.healing.mitigation import HealInputs
    from dlrover_lite.brain.planning.job_view import RoundInputs

    packed = history.ask(InputsQuestion(stored.round), KeptInputs)
    if packed.inputs is None:
        raise HistoryError(f"The inputs of decision {stored.number} of {stored.decision.job} were pruned")
    try:
        text = zlib.decompress(packed.inputs)
        if packed.kind == "heal":
            return from_json(text, HealInputs)
        return from_json(text, RoundInputs)
    except (zlib.error, msgspec.DecodeError) as error:
        raise HistoryError(
            f"The inputs of a stored decision can't be read: {error}",
            hint="They were stored by another version; decide anew.",
        ) from error


def plans(history: Rows, job: str, *, kind: str = "", newest: int | None = None) -> list[PlanRecord]:
    """List a job's plans, the oldest first; of a ``kind``, desired or granted, or all."""
    rows = kept(history, PlansQuestion(job, kind, most=newest), KeptPlan)
    return [
        PlanRecord(job=row.job, at=row.at, kind=row.kind, plan=_decoded(history, row.data, Plan), decision=row.decision)  # type: ignore[arg-type]
        for row in rows[::-1]
    ]


def node_events(history: Rows, job: str) -> list[NodeRecord]:
    """List a job's node events, the oldest first."""
    return [_record(history, row, NodeRecord) for row in kept(history, EventsQuestion(job), KeptEvent)[::-1]]


def fitted_jobs(history: Rows, kind: str, *, newest: int = 500) -> list[tuple[JobEntry, FitRecord]]:
    """List jobs with the newest fit of that kind, newest jobs first: what a warm start chooses from."""
    rows = kept(history, FittedJobsQuestion(kind, most=newest), KeptFittedJob)
    return [(_job(history, row.job), _record(history, row.fit, FitRecord)) for row in rows]


def _record(history: Rows, row: msgspec.Struct, kind: type[S]) -> S:
    """Make a record of a row that has the same fields, and its ``data`` as JSON."""
    fields = {name: getattr(row, name) for name in kind.__struct_fields__}
    return kind(**{**fields, "data": _decoded(history, fields["data"], dict[str, Any])})


def _decoded(history: Rows, text: str, kind: type[T]) -> T:
    try:
        return from_json(text, kind)
    except msgspec.MsgspecError as error:
        raise HistoryError(
            f"{history.path} holds what can't be understood: {error}",
            hint="It is damaged, or was edited by hand. Move it away; a new one is made, without history.",
        ) from error
