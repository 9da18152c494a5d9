"""What keeping a job healthy starts from and comes to, as data: nodes, settings, and treatments of nodes with their reasons."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dlrover_lite.brain.healing.policies import HealthPolicy
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
    shared: bool = False
    """The hosts have these resources together: it isn't known which part of them is on which."""
    resizable: bool = True
    """Limits can be changed in place."""
    levels: Sequence[Level] = ()
    """What the PS held, by time, the newest last; empty: as the profiles have it. Memory is looked after by these alone, so ``profiles``
    may be empty."""
    facts: TableFacts | None = None
    most: Resources | None = None
    """The most that all nodes of the job may have together: its recipe's ceiling, or all there is; None: not known."""
    least: dict[WorkRole, int] = {}
    """Bytes of memory that the recipe gives each node, by role; they aren't taken from it."""
    worker_peak: int = 0
    """The most bytes of memory that any worker of the job has used, those that have ended included; 0: not known."""
    worker_steady: bool = False
    """The workers' memory use is steady: for minutes no worker has used more than ``worker_peak``."""
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
    spare: bool = True
    """Memory that nodes don't need may be taken back."""
    policy: HealthPolicy = HealthPolicy()

    def as_stored(self) -> HealInputs:
        """Return the same as plain data."""
        return msgspec.structs.replace(self, levels=tuple(self.levels))

    @property
    def held(self) -> Sequence[Level]:
        """What is known of the PS' memory."""
        return self.levels or tuple(map(Level.of, self.profiles))
