"""What keeping a job healthy starts from and comes to, as data: nodes, settings, and treatments of nodes with their reasons."""

from __future__ import annotations

import msgspec

from dlrover_lite.brain.models.memory_forecast import TableCurve
from dlrover_lite.brain.planning.plan_grid import MemoryBand
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.acts import Act, Cause, WorkRole
from dlrover_lite.protocol.demands import TableFacts
from dlrover_lite.protocol.profiles import Level, Profile

__all__ = [
    "HealInputs",
    "HealthPolicy",
    "NodeNow",
    "Treatment",
]


class Treatment(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    """Seconds since the epoch when it was decided."""
    node: str
    host: str
    """Host of the node."""
    cause: Cause
    act: Act
    reason: str
    """Reason in words, with the figures that it rests on."""
    gain_seconds: float | None = None
    """Seconds by which the job is predicted to end sooner, what the treatment takes counted; None: it isn't about time."""
    memory: MemoryBand | None = None
    """Memory that the node (or the one that takes its place) will need at its peak, with its limit afterwards."""
    done_at: float | None = None
    """Seconds since the epoch when the treatment had taken effect; None: it is under way."""


# --- what it follows from -------------------------------------------------------------------------------------------


class NodeNow(msgspec.Struct, frozen=True):
    """A node that runs."""

    node: str
    role: WorkRole
    host: str
    resources: Resources
    """Limits of the node."""
    used_bytes: int = 0
    """The most bytes of memory that the node has used; 0: not known."""


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When something is amiss, and what may be done. Shares are parts of 1."""

    windows: int = 3
    """Number of profiles, one after the other, in which trouble has to be seen, unless it came all at once."""
    slow_below: float = 0.6
    """Share of what its peers' rates let expect below which a worker is slow."""
    hot_busy: float = 0.6
    """Least share of the time that a hot PS works."""
    hot_queue: float = 0.3
    """Least mean number of requests that wait for a hot PS."""
    hot_over_peers: float = 1.5
    """Least factor by which a hot PS is busy longer than its peers, or works longer on each minibatch than it used to."""
    evidence: float = 4.0
    """Evidence that a node has got slower than it was, as ``slowing`` counts it, that is needed to act before so many windows are over: a
    node that takes four times as long has it after 2.1 s, one that takes twice as long after 8 s."""
    uneven: float = 1.25
    """Factor on the work that a PS is due above which it has too many hot slots."""
    throttled: float = 0.1
    """Share of the time that a node is held back by its limit above which it needs more cores."""
    act_on_oom: float = 0.02
    """Chance of running out of memory before a relief takes effect from which on a relief is begun."""
    act_on_oom_by_end: float = 0.5
    """Chance of running out of memory before the job ends from which on a relief is begun, if it is likely to happen within
    ``ahead_seconds``."""
    ahead_seconds: float = 1800.0
    """Seconds that memory is looked ahead. New limits hold for twice as long, at least."""
    ahead_share: float = 1.0
    """How far memory is looked ahead at most, as a multiple of what has been trained so far: tables are forecast from that, and memory that
    was given comes back late."""
    spare_windows: int = 3
    """Number of profiles in a row of the nodes that run now after which memory may be taken from a node."""
    spare_share: float = 0.25
    """Least part of its limit that is taken from a node."""
    spare_seconds: float = 3600.0
    """Seconds for which a node should do without the memory that is taken."""
    spare_again_seconds: float = 180.0
    """Seconds since memory was given to a node or taken from it last, before any is taken."""
    most_replacements: int = 3
    """The most slow nodes of a role that are replaced in one job."""
    horizon_seconds: float = 3600.0
    """Remaining seconds that are assumed of a job that doesn't say how much work is left."""


class HealInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``heal`` follows from."""

    job: str
    at: float
    """Seconds since the epoch."""
    profiles: tuple[Profile, ...]
    """Profiles by time, the newest last; the last ones are of the nodes that run now."""
    nodes: tuple[NodeNow, ...]
    free: dict[str, Resources] = {}
    """Resources that nodes of this job could be given beside what they have, by host."""
    resizable: bool = True
    """Limits can be changed in place."""
    levels: tuple[Level, ...] = ()
    """What the PS held, by time, the newest last; empty: as the profiles have it. Memory is looked after by these alone, so ``profiles``
    may be empty."""
    facts: TableFacts | None = None
    most: Resources | None = None
    """The most that all nodes of the job may have together: its recipe's ceiling, or all there is; None: not known."""
    least: dict[WorkRole, int] = {}
    """Bytes of memory that the recipe gives each node, by role; they aren't taken from it."""
    worker_peak: int = 0
    """The most bytes of memory that any worker of the job has used, those that have ended included; 0: not known."""
    evaluated: bool = True
    """An evaluation has ended, or the job has none to come: as ``Standing.evaluated``."""
    seconds_to_act: float = 10.0
    """Seconds that a relief of memory takes, as measured."""
    start_seconds: float = 15.0
    """Seconds until a replacement has taken over; the job is as slow as it is until then."""
    total_samples: float | None = None
    """Number of samples in the whole job, all epochs; None: not known."""
    epoch_samples: float | None = None
    """Number of samples in one epoch: later ones bring no new rows. None: not known."""
    curves: tuple[TableCurve, ...] = ()
    """Growth of the tables' rows; empty: as the profiles have it."""
    spill_part: float = 0.0
    """Share of the rows' memory that snapshots take at their peak (``memory_model.PsMemory``)."""
    past: tuple[Treatment, ...] = ()
    """Treatments of this job, the newest last."""
    policy: HealthPolicy = HealthPolicy()

    @property
    def held(self) -> tuple[Level, ...]:
        """What is known of the PS' memory."""
        return self.levels or tuple(map(Level.of, self.profiles))
