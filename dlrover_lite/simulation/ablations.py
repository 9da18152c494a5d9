"""Parts that a simulation with the real brain does without, one at a time, so that it is seen what each of them brings."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from dlrover_lite.brain.healing.policies import HealthPolicy
from dlrover_lite.brain.policies import Policies, StartPolicy, TrackingPolicy
from dlrover_lite.simulation.fluid_nodes.job_rates import Slowing
from dlrover_lite.simulation.policies.costs import BY_PAPER

__all__ = ["ABLATIONS", "POLICIES", "WHOLE", "Ablation"]

POLICIES = Policies(decide_seconds=60.0)
"""What the brain goes by in a simulation: rounds a minute apart, as the policies of other papers have."""


@dataclass(frozen=True)
class Ablation:
    """What a simulated brain and simulated nodes do otherwise."""

    meaning: str
    """What is missing, in words for a table."""
    policies: Policies = POLICIES
    slowing: Slowing = field(default_factory=Slowing)


_NEVER = 1e9
"""More than anything is ever: what is infinite can't be kept with decisions."""
WHOLE = Ablation("nothing is missing")
_UNHEEDED = HealthPolicy(
    evidence=_NEVER,
    slow_below=1e-9,
    hot_busy=_NEVER,
    hot_queue=_NEVER,
    least_excess=_NEVER,
    throttled=_NEVER,
    most_replacements=0,
    spare_share=_NEVER,
    act_on_oom=_NEVER,
    act_on_oom_by_end=_NEVER,
)
ABLATIONS = {
    "warm start": Ablation(
        "jobs begin as if none like them had run before",
        msgspec.structs.replace(POLICIES, start=StartPolicy(heeds_past_jobs=False)),
    ),
    "scaling": Ablation(
        "jobs keep the plan that they begin with, but for troubled nodes",
        msgspec.structs.replace(POLICIES, tracking=TrackingPolicy(changes_plans=False)),
    ),
    "stage 3": Ablation(
        "slow nodes, hot servers and memory are left as they are; the master still gives a little to a server that is nearly full",
        msgspec.structs.replace(POLICIES, health=_UNHEEDED),
    ),
    "OOM prevention": Ablation(
        "the brain foresees no lack of memory; the master still gives a little to a server that is nearly full",
        msgspec.structs.replace(POLICIES, health=HealthPolicy(act_on_oom=_NEVER, act_on_oom_by_end=_NEVER)),
    ),
    "reclaim": Ablation(
        "memory that nodes don't need stays with them",
        msgspec.structs.replace(POLICIES, health=HealthPolicy(spare_share=_NEVER)),
    ),
    "seamless migration": Ablation(
        "training stands still while rows move, and for half a minute whenever a node joins or leaves",
        slowing=Slowing(move=0.0, change_seconds=BY_PAPER["optimus"].stop_seconds),
    ),
    "flash checkpoint": Ablation(
        "training stands still while a checkpoint is written", slowing=Slowing(checkpoint=0.0)
    ),
    "dynamic shards": Ablation(
        "all workers get as many minibatches as the slowest one trains", slowing=Slowing(is_even=True)
    ),
}
"""What a simulation can do without, by the name of that part."""
