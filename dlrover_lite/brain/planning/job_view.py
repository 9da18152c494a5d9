"""What a decision is made from: each job as the brain sees it, the capacity, the policy. Data only, and all of it is stored."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, MemoryNeed
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.acts import PolicyName, WorkRole
from dlrover_lite.protocol.hosts import Host, HostNodes

__all__ = [
    "FORMAT",
    "Action",
    "Exploration",
    "JobView",
    "LastChange",
    "MeasuredPlan",
    "ModelData",
    "Policy",
    "RoundInputs",
    "Stage",
    "WorkShift",
    "held_milli",
    "index_of",
]

FORMAT = 1
"""Format of stored rounds and decisions; rises when what they say is read in another way."""

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]


Action = Literal["start", "stay", "change", "explore", "queue", "preempt", "refuse", "heal", "tell"]
"""Actions of the stages 1 and 2, and (the last two) of stage 3, where ``Decision.treatment`` says what is done."""
Stage = Literal["initial", "scale", "heal"]


class ModelData(msgspec.Struct, frozen=True):
    """A fitted throughput model as data: its name, and what a loader makes it of."""

    kind: str
    parameters: dict[str, Any]


class LastChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change that a job's plan follows from."""

    left: Candidate
    """The plan that the job had before."""
    fresh_windows: int = 0
    """Number of windows measured since the change took effect: evidence that it was decided without."""
    taken: bool = False
    """Others needed what the plan before had: the job may have that again as soon as they don't."""


class MeasuredPlan(msgspec.Struct, frozen=True):
    """A plan that the job had before, and samples/s that were measured with it."""

    plan: Candidate
    throughput: Band


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that is tried. All in seconds, but for the chance."""

    back: Candidate
    """The plan that the job goes back to if the one that is tried isn't better."""
    seconds: NonNegative
    """Length of the try: seconds of intervals that are measured."""
    saves_seconds: NonNegative
    """Expected improvement: the mean of what the plan saves, 0 where it isn't better."""
    chance: NonNegative
    """Chance that the plan is better than the best that was measured."""
    costs_seconds: NonNegative
    """Expected cost of the try."""
    costs_at_most_seconds: NonNegative
    """Cost of the try where the plan is as slow as the lower end of its band says."""


class WorkShift(msgspec.Struct, frozen=True, kw_only=True):
    """A change of what a job's minibatches cost. What was measured before it says nothing of the job any more."""

    at: float
    """Seconds since the epoch when the first interval since began."""
    windows: int
    """Number of intervals measured since."""
    role: WorkRole
    """Role whose work has changed."""
    times: float
    """CPU seconds of a minibatch since, over those before."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What is weighed how. Times in seconds."""

    name: PolicyName = "lite"
    """Which policy decides. The paper's goes by ``rho`` and ``horizon_seconds`` alone of what follows, and by what lets jobs in."""
    search: Literal["exact", "nsga2"] = "exact"
    """How the front is found where ``lite`` decides: exactly, or as the paper does."""
    rho: NonNegative = 1.75
    """value = priority x the integral of dt / t ** rho over the seconds saved, t being what remains: the larger, the more those near their
    end are favoured (2: all for the shortest, 0: seconds count alike)."""
    horizon_seconds: Positive = 3600.0
    """Remaining seconds that are assumed of a job that doesn't say how much work is left."""
    tie_share: NonNegative = 0.01
    """Completion times that differ by less than this share are equal, and cost decides."""
    fewer_nodes_share: NonNegative = 0.03
    """Share of the remaining time that half as many workers of twice the size may take longer: each takes time to start, and memory, and
    the more train at once, the staler is what they train on."""
    least_saving: NonNegative = 0.1
    """Least part of its cores that a job that is alone gives away, if they make no difference."""
    saving_risk: NonNegative = 0.1
    """The most of the remaining time, as a share, that may be lost by that at the lower end of the band."""
    reading_risk: NonNegative = 0.15
    """The same of a job that reading limits: by then plans with more cores have been measured to gain nothing, and it goes back soon if one
    with fewer is slower."""
    saving_share: NonNegative = 0.025
    """Share by which a job that reading limits may be slower than it ever was, for fewer cores: where another limit comes as near, the
    model rounds off the corner by more than that."""
    ageing_seconds: Positive = 600.0
    """Seconds after which a job that waits counts twice its priority in the queue, and so on."""
    reserve_after_seconds: Positive = 1800.0
    """Seconds after which none behind the first of the queue is let in before it."""
    room_seconds: NonNegative = 10.0
    """About how many seconds it takes until others have given up what a job that comes is to have."""
    preempt_ratio: Annotated[float, Meta(gt=1)] = 2.0
    """Least ratio of priorities for one job to preempt another."""
    reversal_windows: int = 4
    """Number of windows to be measured after a change before it may be reversed."""
    saving_windows: int = 2
    """The same where reading is what limits the job, and cores are given back that make no difference: one window may be disturbed."""
    exploration_share: NonNegative = 0.075
    """Share of a job's expected time that may be spent on trying plans that nothing yet says are better."""
    exploration_seconds: Positive = 30.0
    """Length of the longest try: seconds of intervals that are measured. Three of 10 s tell plans apart that differ by 3%."""
    exploration_difference: Positive = 0.03
    """Difference of throughputs that a try of that length tells, as a share. Where more is expected, a shorter one does."""
    least_exploration_seconds: Positive = 10.0
    """Length of the shortest try: an interval."""
    exploration_step: Annotated[float, Meta(gt=1)] = 2.0
    """Factor of the present plan's counts and sizes within which those of a plan to be tried are."""


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job. ``now`` is None for one that doesn't run yet (or has been preempted)."""

    job: str
    bounds: Bounds
    model: ModelData
    additive: ModelData | None = None
    """The paper's throughput model of the job, by the same profiles; None: nothing was measured, or the paper's policy doesn't decide."""
    similar: tuple[Candidate, ...] = ()
    """Plans of similar jobs of the past, the most similar first: where the paper's policy decides, of a job that hasn't begun."""
    need: MemoryNeed = MemoryNeed()
    priority: Positive = 1.0
    remaining_samples: NonNegative | None = None
    """Number of samples that are left to train on; None: not known."""
    now: Candidate | None = None
    """The plan that the job has, or is to have once what its master was told is done."""
    changes_from: Candidate | None = None
    """The plan that its nodes still have, while the change to ``now`` is under way; None: they have ``now``."""
    nodes: tuple[HostNodes, ...] = ()
    """Number of the job's nodes on each host, where there are several; those of which the host isn't known don't count."""
    node_resources: tuple[Host, ...] = ()
    """Resources that these nodes have together, on each host."""
    host_speeds: dict[str, float] = {}
    """Speed of a core of each host that the job has been on, 1 being their mean; 1 for the others."""
    measured: Band | None = None
    """Samples/s with ``now``; None: not measured yet, the model's word is taken."""
    measured_before: tuple[MeasuredPlan, ...] = ()
    """What was measured with plans that the job had before, the newest first: it counts, whatever a model says of them."""
    exploration: Exploration | None = None
    """The try that the present plan is; None: it is none."""
    tried_seconds: NonNegative = 0.0
    """Seconds of intervals measured in that try."""
    shift: WorkShift | None = None
    """The last change of what the job's minibatches cost; None: there was none."""
    suspected: WorkShift | None = None
    """A change of that which only the newest intervals speak of, too few to be sure; None: there is none."""
    scale_seconds: NonNegative = 0.0
    """Seconds of training that a change of the plan costs (``effect.cost_of_change``)."""
    change_seconds: NonNegative = 0.0
    """Seconds from a decision until a change of the plan has taken effect."""
    waited_seconds: NonNegative = 0.0
    """Seconds for which the job has waited in the queue."""
    room_promised: bool = False
    """It waits for room that others were told to make for it."""
    ran_seconds: NonNegative = 0.0
    explored_seconds: NonNegative = 0.0
    """Seconds spent on trying plans so far."""
    doubt: Annotated[float, Meta(ge=1)] = 1.0
    """Factor on the model's bands: above 1 when its predictions for this job have missed (``effect.doubt_after``)."""
    last_change: LastChange | None = None
    most: Resources | None = None
    """The recipe's ceiling for all nodes; None: the capacity."""
    fixed: bool = False
    """The plan is not to be changed while the job runs (autoscaling is off or paused)."""
    busy: bool = False
    """It is ``fixed`` for a few seconds alone, as a change of it is under way."""
    gives_way: bool = False
    """It has been told to give way: what it has comes free within seconds."""
    guessed: bool = False
    """Its costs are a guess, as neither it nor a job like it was ever measured. Cores that seem to make no difference aren't saved."""
    unmeasured: bool = False
    """The present plan hasn't been measured yet. It is kept until then, but for what other jobs need at the least."""
    held: str = ""
    """Why the job is ``fixed``, in words."""
    stays: str = ""
    """Why the job can't give way to another one while it runs, in words; empty: it can."""
    declined: tuple[Candidate, ...] = ()
    """Plans that were refused a short while ago: they aren't wanted again for now, and the job keeps what it has at the least."""


def held_milli(view: JobView) -> int:
    """Compute the thousandths of a core that nobody else can have just now: what is to be given up is held until it is."""
    return max((plan.milli for plan in (view.now, view.changes_from) if plan is not None), default=0)


class RoundInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All that the decisions of one round follow from."""

    at: float
    """Seconds since the epoch; nothing is computed from it."""
    capacity: Resources
    """The most that all these jobs may have together: what all hosts have, or what the person prefers."""
    hosts: tuple[Host, ...] = ()
    """What there is on each host; empty: all of the capacity is on one."""
    jobs: tuple[JobView, ...]
    policy: Policy = Policy()
    format: int = FORMAT


def index_of(inputs: RoundInputs, job: str) -> str:
    """Name the world as the plan for ``job`` depends on it: capacity, policy, what is known of the job, who else is there with which plan.
    Two rounds with the same index give it the same chances, so a plan that was shown is still one that can be had."""
    views = {view.job: view for view in inputs.jobs}
    own = views.pop(job, None)
    world = {
        "format": inputs.format,
        "capacity": inputs.capacity,
        "hosts": inputs.hosts,
        "policy": inputs.policy,
        "own": None if own is None else msgspec.structs.replace(own, job="", waited_seconds=0.0),
        "others": sorted(
            (
                [other.job, other.priority, *map(msgspec.to_builtins, (other.now, other.changes_from))]
                for other in views.values()
            ),
            key=lambda other: str(other[0]),
        ),
    }
    return hashlib.blake2b(msgspec.json.encode(world, order="sorted"), digest_size=6).hexdigest()
