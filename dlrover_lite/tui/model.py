"""What is shown, as data: of all jobs, and of one in detail. It is the same whether it comes from jobs that run or from a recording.

All times are seconds since the epoch, memory is in bytes, CPU in cores. Nothing in it grows older by itself (no ages, no remaining
times): a value changes only when something has happened, so that what hasn't changed needn't be drawn again.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from dlrover_lite.brain.explain.explanation_data import Explained, MemoryCurve, WeighedPlan
from dlrover_lite.core.expected_end import ExpectedEnd
from dlrover_lite.core.units import MOST_CORES, MOST_MEMORY
from dlrover_lite.protocol.news import Chosen

__all__ = [
    "OVER",
    "Autoscaling",
    "Checkpoint",
    "Checkpoints",
    "Cost",
    "Evaluated",
    "Explanation",
    "Given",
    "HostRow",
    "HostShare",
    "JobDetail",
    "JobRow",
    "JobsView",
    "LastDecision",
    "Look",
    "NodeRow",
    "Problem",
    "PsStrip",
    "Rate",
    "RoleNow",
    "Room",
    "Shards",
]

OVER = ("succeeded", "failed", "stopped", "suspended", "lost")
"""States that a job doesn't leave."""


class Rate(msgspec.Struct, frozen=True, array_like=True):
    """An interval: when it ended, the samples/s in it, and how long it was."""

    at: float
    value: float
    seconds: float | None = None
    """Length of the interval in seconds; None: it isn't known, in recordings of earlier versions."""


class LastDecision(msgspec.Struct, frozen=True):
    number: int
    at: float
    action: str
    reason: str


class Cost(msgspec.Struct, frozen=True):
    """What a job has had, whether or not it used it."""

    core_seconds: float = 0.0
    byte_seconds: float = 0.0
    cores: float = 0.0
    """Cores that it has now, as of ``at``."""
    memory: int = 0
    at: float = 0.0

    def until(self, at: float) -> Cost:
        """Return the cost as of a later time, with what it has now."""
        seconds = max(0.0, at - self.at) if self.at else 0.0
        core_seconds = self.core_seconds + seconds * self.cores
        return replace(self, core_seconds=core_seconds, byte_seconds=self.byte_seconds + seconds * self.memory, at=at)

    def given(self, at: float, cores: float, memory: int) -> Cost:
        """Return the cost with so much given from a time on."""
        return replace(self.until(at), cores=cores, memory=memory)


class Given(msgspec.Struct, frozen=True, array_like=True):
    """What a job is given from a time on."""

    at: float
    cores: float
    memory: int


class HostShare(msgspec.Struct, frozen=True, array_like=True):
    """What of a job is on a host."""

    host: str
    """Name of the host; empty: it isn't known, or this machine."""
    workers: int
    servers: int
    cores: float
    memory: int


class HostRow(msgspec.Struct, frozen=True, array_like=True):
    """A host that jobs run on, with what their nodes may use there."""

    source: str
    """Cluster of the host; empty: this machine."""
    name: str
    cores: float
    memory: int


class Look(msgspec.Struct, frozen=True):
    """When the brain looks next whether something is to be done about a job."""

    at: float | None = None
    """Time when the brain looks next; None: not for now."""
    why: str = ""
    """Reason why not; or what it waits for until then."""


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job among others. None is what isn't known."""

    id: str
    name: str = ""
    owner: str = ""
    model: str = ""
    state: str
    """``starting``, ``queued``, ``running`` or what its master calls it (``training``, ``evaluating``, ``exporting``), or one of OVER."""
    message: str = ""
    """Reason why it failed or was stopped, or what it waits for."""
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    samples: int = 0
    total_samples: int | None = None
    rate: float | None = None
    """Samples/s of the last seconds; of a job that is over: over all its time."""
    rates: tuple[float, ...] = ()
    """Samples/s of the last intervals, the oldest first."""
    expected: ExpectedEnd | None = None
    workers: int | None = None
    servers: int | None = None
    cores: float | None = None
    """Number of cores given to its nodes."""
    used_cores: float | None = None
    memory: int | None = None
    """Bytes of memory given to its nodes."""
    used_memory: int | None = None
    cost: Cost | None = None
    decision: LastDecision | None = None
    """The last decision, whatever it was."""
    change: Chosen | None = None
    """The last decision that changed something, as it was known when it was made; None: there was none, or it isn't known."""
    is_changed: bool = False
    """Whether the job has had the plan of ``change``."""
    silent_since: float | None = None
    """Time of the master's last word, for a job that runs and whose master has said nothing for a while."""
    directory: str = ""
    """Directory of its files; empty: they aren't on this machine."""
    look: Look | None = None
    """When the brain looks next; None: its master doesn't say, or it is over."""
    source: str = ""
    """Cluster that it runs in; empty: this machine."""
    given: tuple[Given, ...] = ()
    """What it was given by its newest plans, the oldest first; what is left of it after its end isn't among them."""
    hosts: tuple[HostShare, ...] = ()
    """Where its nodes are."""

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def share(self) -> float | None:
        """Share of its samples that it has gone through, 0 to 1."""
        if self.total_samples:
            return min(1.0, self.samples / self.total_samples)
        return 1.0 if self.state == "succeeded" else None


class Problem(msgspec.Struct, frozen=True):
    """Why something shown may be old."""

    what: str
    """Name of what has the problem: ``the brain``, ``the master``, …"""
    why: str
    since: float
    """Time as of which is what is shown of it."""


class JobsView(msgspec.Struct, frozen=True):
    """All jobs, as of one moment."""

    jobs: dict[str, JobRow] = {}
    """Jobs by id, the newest first. A row that hasn't changed is the very same object as in the view before."""
    brain: str = ""
    """The process that advises the jobs, in words."""
    problem: Problem | None = None
    hosts: tuple[HostRow, ...] = ()
    """Hosts that there are, as far as that is known."""


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node: a parameter server or a worker."""

    id: str
    role: str
    state: str
    cores: float
    used_cores: float | None = None
    memory: int
    used_memory: int = 0
    peak_memory: int = 0
    rate: float = 0.0
    """Samples/s of a worker."""
    share: float | None = None
    """Share of all workers' samples/s, 0 to 1."""
    leased: int | None = None
    """Number of minibatches that a worker has leases of."""
    slots: int | None = None
    throttled: float | None = None
    """Share of the time in which it was ready to run that its limit held it back; with ``shared_cores`` of that in which any node was."""
    shared_cores: bool = False
    """It shares its cores with the other nodes of its job: it may use more than it was given."""
    restarts: int = 0
    """Number of nodes that it is the successor of."""
    note: str = ""
    """What the node waits for, in words."""
    host: str = ""
    """Host that a node of a cluster runs on; empty: it isn't known, or this machine."""

    @property
    def alive(self) -> bool:
        return not self.state.startswith("ended")


class Shards(msgspec.Struct, frozen=True):
    """Numbers of minibatches of training over all epochs."""

    done: int
    leased: int
    left: int
    quarantined: int = 0


class PsStrip(msgspec.Struct, frozen=True):
    """A parameter server's slots, of all the slots there are."""

    node: str
    slots: int
    busy: float | None
    """Number of cores that the work on its rows takes."""
    heat: tuple[float, ...] = ()
    """Heat of equal ranges of slots: the busiest slot of its own in each, as a share of the busiest of all; a little where it has idle
    ones, 0 where it has none."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint that is complete."""

    number: int
    at: float
    seconds: float
    """Seconds from its beginning until it was durable."""
    rows: int
    bytes: int
    held_up: float | None = None
    """Seconds by which the longest step of a worker meanwhile was longer than its usual one; None: not known (yet)."""
    usual: float | None = None
    """Seconds of the same while as much time passed without a checkpoint."""


class Checkpoints(msgspec.Struct, frozen=True):
    newest: Checkpoint | None = None
    under_way: str = ""
    """The checkpoint under way, in words."""
    problem: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """All that a decision follows from and came to, as far as it is kept."""

    job: str
    number: int
    text: tuple[str, ...]
    """Paragraphs: what was decided, what was predicted, what it brought."""
    plans: tuple[WeighedPlan, ...] = ()
    """Plans by cost; none where there was no choice."""
    rests_on: Explained = Explained()


class Evaluated(msgspec.Struct, frozen=True):
    """The newest evaluation of a job."""

    at_samples: int
    """Number of samples that were trained on by then."""
    auc: float | None
    """AUC of the evaluation; None, as of the loss: it isn't finite."""
    loss: float | None
    unknown: str = ""
    """Shares of ids that had never been trained, by column, in words; empty: no column has ids."""
    warnings: tuple[str, ...] = ()
    """Warnings: a sentence for each column where that share is far above the usual one."""


class Autoscaling(msgspec.Struct, frozen=True):
    """How the brain's changes of a job stand."""

    mode: str
    """Mode of autoscaling: ``off``, ``suggest`` (it asks first) or ``on``."""
    paused: str = ""
    """Reason why it is paused; empty: it isn't."""
    decision: int | None = None
    """Number of the decision that is under way, or waits to be accepted."""
    what: str = ""
    """The same decision in words."""
    under_way: bool = False

    @property
    def suggests(self) -> bool:
        return self.decision is not None and not self.under_way


class RoleNow(msgspec.Struct, frozen=True):
    """Nodes of a role that run and stay, and what most of them have each."""

    count: int
    cores: float
    memory: int


class Room(msgspec.Struct, frozen=True):
    """What a job's nodes have, and what all of them together may have."""

    workers: RoleNow
    servers: RoleNow
    memory: int
    """Bytes of memory that all nodes may have: of the machine or cluster, or the recipe's ceiling, whichever is less."""
    machine_cores: float
    """Number of cores of the machine, or that the cluster leaves to this job."""
    cores: float | None = None
    """Number of cores of the recipe's ceiling; None: it has none."""
    place: str = "this machine"
    """What has the cores and memory, in words."""

    @property
    def is_known(self) -> bool:
        """Whether anything says how much there is: a cluster's namespace may have no quota, and its nodes may not be seen."""
        cores = self.machine_cores if self.cores is None else self.cores
        return cores < MOST_CORES and self.memory < MOST_MEMORY


class JobDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One job. What can't be told yet, or no more, is empty."""

    row: JobRow
    rates: tuple[Rate, ...] = ()
    """Samples/s over all of the job's time, by interval."""
    decisions: tuple[Chosen, ...] = ()
    """Decisions, the oldest first."""
    nodes: tuple[NodeRow, ...] = ()
    """Parameter servers, then workers, the oldest first; those that have ended are last."""
    shards: Shards | None = None
    slots: tuple[PsStrip, ...] = ()
    slot_map_version: int = 0
    moving_slots: int = 0
    moves_end_in: float | None = None
    """Seconds until all moves under way have ended, None where that isn't known."""
    checkpoints: Checkpoints | None = msgspec.field(default=None, name="cuts")  # as recordings have it
    memory: MemoryCurve | None = None
    """Memory of the parameter server that comes nearest to its limit; None: nothing can be foreseen so far."""
    epoch: int = 0
    epochs: int = 0
    auc: float | None = None
    """AUC on the latest training samples, as the loss."""
    loss: float | None = None
    evaluated: Evaluated | None = None
    """The newest evaluation; None: nothing was evaluated so far."""
    autoscale: str = ""
    """How the brain's changes of the job stand, in words."""
    autoscaling: Autoscaling | None = None
    """How the brain's changes of the job stand; None: its master hasn't said so far."""
    master_restarts: int = 0
    problem: Problem | None = None
    heard: bool = True
    """Whether its master has said how it is, as far as it can be asked: until then what is empty says nothing."""
    missing: str = ""
    """What the job's source hasn't got of it, in words: that it is empty then says nothing."""
