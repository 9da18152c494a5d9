"""What the config database holds, a struct for each table. Times are seconds since the epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dlrover_lite.core.decoding import convert
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.outcomes import JobOutcome

if TYPE_CHECKING:  # they bring numpy along, which those who only read and write have no use for
    from dlrover_lite.brain.effect import Effect
    from dlrover_lite.brain.planning.decision import Decision
    from dlrover_lite.protocol.demands import DecisionOutcome, Demand
    from dlrover_lite.protocol.profiles import Profile

__all__ = [
    "FIT_KINDS",
    "FitRecord",
    "JobEntry",
    "ProfileRecord",
    "StoredDecision",
    "demand_in",
    "profile_of",
    "profile_record",
]


FIT_KINDS = ("bottleneck", "memory", "plan")
"""Kinds of ``FitRecord``: what a job's end tells of its throughput, its memory, and its plan."""


class JobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A job, past or present, and what it is told apart from others by."""

    id: str
    name: str
    owner: str = ""
    model: str = ""
    state: str
    """State as job directories call it: starting, running, succeeded, failed, stopped, lost; or queued."""
    priority: float = 1.0
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    samples: int = 0
    """Number of samples consumed so far."""
    message: str = ""
    """Why the job failed or was stopped."""
    directory: str = ""
    """Directory with the job's files; empty: they aren't on this machine."""
    source: str = ""
    """Cluster that the job runs in, whose own brain it reports to: what is here is a copy. Empty: it reports to this brain."""
    outcome: JobOutcome = JobOutcome()
    """What came of the job, as far as it is known: complete once it has ended."""
    features: dict[str, Any] = {}
    """Model, tables, dims, batch size, rows of the data set, and so on: what similar jobs share."""


class ProfileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One interval of a job."""

    job: str
    at: float
    """Time at which the interval ended."""
    seconds: float
    samples_per_second: float
    workers: int
    servers: int
    data: Any = {}
    """The profile as a whole: a ``Profile``, or one by its field names, as it is read."""


def profile_record(profile: Profile) -> ProfileRecord:
    return ProfileRecord(
        job=profile.job,
        at=profile.at,
        seconds=profile.seconds,
        samples_per_second=profile.samples_per_second if profile.seconds else 0.0,
        workers=len(profile.workers),
        servers=len(profile.ps),
        data=profile,
    )


def profile_of(record: ProfileRecord) -> Profile:
    """Return the profile that ``profile_record`` was made of. Raises HistoryError for what can't be read any more."""
    from dlrover_lite.protocol.profiles import Profile

    try:
        return convert(record.data, Profile)
    except msgspec.ValidationError as error:
        raise HistoryError(
            f"A stored profile of {record.job} can't be read: {error}",
            hint="It was stored by another version of dlrover-lite.",
        ) from error


def demand_in(features: dict[str, Any]) -> Demand | None:
    """Return what a job asks for, as it is kept with its features; None where it isn't, or another version has stored it."""
    from dlrover_lite.protocol.demands import Demand

    try:
        return convert(features["demand"], Demand) if features.get("demand") is not None else None
    except msgspec.ValidationError:
        return None


class FitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A model fitted to a job's profiles."""

    job: str
    at: float
    kind: str
    """Kind of the model, of ``FIT_KINDS``."""
    error: float
    """Relative error on what it was fitted to."""
    windows: int
    data: dict[str, Any]
    """The fit as a whole."""


class StoredDecision(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """Number of the decision within its job, from 1 on."""
    round: int
    decision: Decision
    effect: Effect | None = None
    done: DecisionOutcome | None = None
    """What the job's master said has become of the decision."""
