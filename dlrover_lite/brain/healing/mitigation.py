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
    """When it was decided, seconds since the epoch."""
    node: str
    host: str
    """Of the node."""
    cause: Cause
    act: Act
    reason: str
    """In words, with the figures that it rests on."""
    gain_seconds: float | None = None
    """That the job is predicted to end sooner, what it takes counted; None: it isn't about time."""
    memory: MemoryBand | None = None
    """What the node (or the one that takes its place) will need at its peak, with its limit afterwards."""
    done_at: float | None = None
    """When it had taken effect; None: it is under way."""


# --- what it follows from -------------------------------------------------------------------------------------------


class NodeNow(msgspec.Struct, frozen=True):
    """A node that runs."""

    node: str
    role: WorkRole
    host: str
    resources: Resources
    """Its limits."""
    used_bytes: int = 0
    """Memory that it has used at most; 0: not known."""


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When something is amiss, and what may be done. Shares are parts of 1."""

    windows: int = 3
    """Profiles, one after the other, in which it has to be seen, unless it came all at once."""
    slow_below: float = 0.6
    """A worker is slow below this share of what its peers' rates let expect."""
    hot_busy: float = 0.6
    """A PS is hot only if it works for this share of the time at least,"""
    hot_queue: float = 0.3
    """with so many requests waiting on average,"""
    hot_over_peers: float = 1.5
    """and is busy so many times as long as its peers, or works so much longer on each minibatch than it used to."""
    evidence: float = 4.0
    """That a node has got slower than it was, as ``slowing`` counts it, to act on before so many windows are over: one that takes four
    times as long has it after 2.1 s, one that takes twice as long after 8 s."""
    uneven: float = 1.25
    """A PS that does so many times the work it is due has too many hot slots."""
    throttled: float = 0.1
    """A node that is held back by its limit for more of the time needs more cores."""
    act_on_oom: float = 0.02
    """Chance of running out of memory before a relief takes effect, from which on one is begun;"""
    act_on_oom_by_end: float = 0.5
    """and the chance that it happens before the job ends,"""
    ahead_seconds: float = 1800.0
    """if it is likely to happen within this time. New limits hold for twice as long, at least."""
    ahead_share: float = 1.0
    """Nor is looked further ahead than so many times what has been trained so far: tables are forecast from that, and memory that was
    given comes back late."""
    spare_windows: int = 3
    """Memory is taken from a node after so many profiles in a row of the nodes that run now,"""
    spare_share: float = 0.25
    """if it is so large a part of its limit at least,"""
    spare_seconds: float = 3600.0
    """that it should do without for so long,"""
    spare_again_seconds: float = 180.0
    """and if none was given to it or taken from it for so long."""
    most_replacements: int = 3
    """Of slow nodes of a role in one job."""
    horizon_seconds: float = 3600.0
    """Remaining time of a job that doesn't say how much work is left."""


class HealInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``heal`` follows from."""

    job: str
    at: float
    """Seconds since the epoch."""
    profiles: tuple[Profile, ...]
    """By time, the newest last; the last ones are of the nodes that run now."""
    nodes: tuple[NodeNow, ...]
    free: dict[str, Resources] = {}
    """By host: what nodes of this job could be given there beside what they have."""
    resizable: bool = True
    """Whether limits can be changed in place."""
    levels: tuple[Level, ...] = ()
    """What the PS held, by time, the newest last; empty: as the profiles have it. Memory is looked after by these alone, so ``profiles``
    may be empty."""
    facts: TableFacts | None = None
    most: Resources | None = None
    """That all nodes of the job may have together: its recipe's ceiling, or all there is; None: not known."""
    least: dict[WorkRole, int] = {}
    """By role: bytes that the recipe gives each node, which aren't taken from it."""
    worker_peak: int = 0
    """Bytes that any worker of the job has used at most, those that have ended included; 0: not known."""
    evaluated: bool = True
    """As ``Standing.evaluated``."""
    seconds_to_act: float = 10.0
    """What a relief of memory takes, as measured."""
    start_seconds: float = 15.0
    """Until a replacement has taken over; the job is as slow as it is until then."""
    total_samples: float | None = None
    """Of the whole job, all epochs; None: not known."""
    epoch_samples: float | None = None
    """Of one epoch: later ones bring no new rows. None: not known."""
    curves: tuple[TableCurve, ...] = ()
    """Of the tables' rows; empty: as the profiles have them."""
    spill_part: float = 0.0
    """Of the rows' memory, that snapshots take at their peak (``memory_model.PsMemory``)."""
    past: tuple[Treatment, ...] = ()
    """Of this job, the newest last."""
    policy: HealthPolicy = HealthPolicy()

    @property
    def held(self) -> tuple[Level, ...]:
        """What is known of the PS' memory."""
        return self.levels or tuple(map(Level.of, self.profiles))
