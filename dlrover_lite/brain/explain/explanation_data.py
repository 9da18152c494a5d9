"""What a decision rests on, as data to be shown: light, so that whoever only shows it imports nothing else. ``explained`` makes it.

Times are seconds since the epoch, memory is in bytes.
"""

from __future__ import annotations

import math

import msgspec

__all__ = [
    "Coefficient",
    "Explained",
    "Fact",
    "FitPoint",
    "Like",
    "Limit",
    "MemoryAhead",
    "MemoryCurve",
    "ModelShown",
    "Peer",
    "PlanFit",
    "Used",
    "WeighedPlan",
]


class Fact(msgspec.Struct, frozen=True):
    """Something that was known."""

    name: str
    text: str


# --- plans ----------------------------------------------------------------------------------------------------------


class WeighedPlan(msgspec.Struct, frozen=True):
    """A plan that a decision could have chosen."""

    mark: str
    """Mark of the plan: ``*`` the chosen one, ``=`` the one until then, else empty."""
    workers: int
    worker_cores: float
    servers: int
    ps_cores: float
    cores: float
    memory: int
    rate: float
    """Samples/s by the model; 80% are within ``lower`` and ``upper``."""
    lower: float
    upper: float
    seconds: float
    """Seconds that the job has still to go with this plan."""
    verdict: str
    """What spoke for or against it."""


# --- the throughput model -------------------------------------------------------------------------------------------


class FitPoint(msgspec.Struct, frozen=True, array_like=True):
    """An interval: samples/s that were measured, and what the model says of it, with the ends of its 80% band."""

    measured: float
    predicted: float
    lower: float
    upper: float

    @property
    def inside(self) -> bool:
        return self.lower <= self.measured <= self.upper


class PlanFit(msgspec.Struct, frozen=True):
    """A plan that was measured: the mean of its intervals."""

    plan: str
    intervals: int
    measured: float
    predicted: float
    lower: float
    upper: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1 if self.measured else math.inf


class Coefficient(msgspec.Struct, frozen=True):
    """A cost that was fitted."""

    name: str
    seconds: float
    meaning: str
    known: str
    """How the cost is known: ``measured``, ``in a sum`` (with others, and divided as in past jobs) or ``not measured``."""


class Limit(msgspec.Struct, frozen=True):
    """One of the things that can be the slowest."""

    name: str
    meaning: str
    samples_per_second: float
    """Samples/s that this limit alone would allow, under the plan that the limits are of."""


class ModelShown(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted throughput model."""

    form: str
    formula: str
    exponent: float
    intervals: int
    """Number of intervals that the model was fitted to; 0: none of this job."""
    error: float
    """Median relative error of the model where it was fitted."""
    noise: float
    """Relative standard deviation of an interval about the model."""
    coefficients: tuple[Coefficient, ...] = ()
    identifiable: str = ""
    """What measurements could tell apart, in words."""
    plan: str = ""
    """The plan that ``limits`` are of."""
    limits: tuple[Limit, ...] = ()
    """Limits of the throughput, the nearest first."""
    points: tuple[FitPoint, ...] = ()
    """Intervals that were measured, the oldest first; none where what was measured isn't kept any more."""
    plans: tuple[PlanFit, ...] = ()
    """Plans that were measured, by measured samples/s."""


# --- memory ---------------------------------------------------------------------------------------------------------


class Used(msgspec.Struct, frozen=True, array_like=True):
    at: float
    bytes: int


class MemoryAhead(msgspec.Struct, frozen=True, array_like=True):
    """The most that a parameter server is expected to need until then; ``lower`` to ``upper`` holds 80%."""

    at: float
    expected: int
    lower: int
    upper: int


class MemoryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a parameter server: as it was, as it is foreseen, and its limits."""

    node: str
    used: tuple[Used, ...] = ()
    ahead: tuple[MemoryAhead, ...] = ()
    """Memory that is foreseen until the job's end, or as far as is looked where that isn't known; empty: nothing can be foreseen so far."""
    limits: tuple[Used, ...] = ()
    """Limits of the memory, each with the time from which it holds."""
    to_the_end: bool = True
    """The last of ``ahead`` is the job's end."""
    full_at: float | None = None
    """Time at which it is as likely as not to have crossed its limit; None: it isn't."""

    @property
    def now(self) -> int:
        return self.used[-1].bytes if self.used else 0

    @property
    def limit(self) -> int:
        """Present limit in bytes; 0: not known."""
        return self.limits[-1].bytes if self.limits else 0

    @property
    def most(self) -> MemoryAhead | None:
        """Memory at the end of what is foreseen; None: nothing can be foreseen."""
        return self.ahead[-1] if self.ahead else None


# --- nodes and jobs -------------------------------------------------------------------------------------------------


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the role that a treatment is about, over the intervals that it rests on. None: not known, or nothing to do with it."""

    node: str
    treated: bool
    cores: float
    rate: float | None = None
    """Minibatches/s of a worker."""
    expected: float | None = None
    """A worker's rate over what its peers' rates let expect."""
    busy: float | None = None
    """Share of the time that a parameter server worked on requests."""
    waiting: float | None = None
    """Mean number of requests that waited for a parameter server."""
    minibatch_seconds: float | None = None
    """Seconds that a parameter server worked on each minibatch."""
    held: float | None = None
    """Share of the time in which its CPU limit held the node back."""
    used: int | None = None
    """Bytes of memory that are in use."""
    limit: int | None = None


class Like(msgspec.Struct, frozen=True):
    """A past job that a first plan was made from."""

    job: str
    distance: float
    """Distance from 0 (the same in all that is compared) to 1 (different in all of it)."""
    weight: float
    """Share that this job counts for, of all that were pooled."""
    intervals: int
    """Number of intervals that the job's costs were fitted to."""


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """All that a decision follows from, as far as it is kept."""

    facts: tuple[Fact, ...] = ()
    model: ModelShown | None = None
    memory: tuple[MemoryCurve, ...] = ()
    """Memory of the parameter servers that the decision is about, the fullest first."""
    peers: tuple[Peer, ...] = ()
    cause: str = ""
    """Cause of a treatment: what ``peers`` are compared for."""
    like: tuple[Like, ...] = ()
    """Past jobs that a first plan was made from, the nearest first."""
    missing: tuple[str, ...] = ()
    """What isn't kept any more, a sentence each."""
    room_cores: float | None = None
    """The most cores that the job could have had: its own and what others left; None: not known, or there was no choice."""
