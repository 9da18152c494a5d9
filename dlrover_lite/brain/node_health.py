"""What stage 3 looks at of a job, as the brain keeps it."""

from __future__ import annotations

from collections.abc import Sequence

from dlrover_lite.brain.capacity import Capacity
from dlrover_lite.brain.healing.mitigation import HealInputs, NodeNow
from dlrover_lite.brain.job_tracker import RegisteredJob
from dlrover_lite.protocol.acts import WorkRole
from dlrover_lite.protocol.demands import Demand, Standing, within
from dlrover_lite.protocol.hosts import by_name, less
from dlrover_lite.protocol.plans import RolePlan
from dlrover_lite.protocol.profiles import Level

__all__ = ["heal_inputs"]


def heal_inputs(known: RegisteredJob, room: Capacity, *, at: float, spare: bool = True) -> HealInputs | None:
    """Collect what stage 3 looks at; None while nothing is known of the nodes that run. Without profiles, where the last one is of other
    nodes, only memory can be looked after. ``room``: what no job has; ``spare``: as ``HealInputs`` has it."""
    standing, demand = known.standing, known.demand
    if standing is None:
        return None
    there = {node.node for node in standing.nodes}
    servers = {node.node for node in standing.nodes if node.role == "ps"}
    last = known.profiles[-1] if known.profiles else None
    present = last is not None and {use.node for use in last.workers} | {use.node for use in last.ps} == there
    levels: Sequence[Level] = ()
    if len(known.levels) and {use.node for use in known.levels[-1].ps} == servers:
        levels = known.levels
    if not present and not levels:
        return None
    most = within(demand)
    left = known.left_of(room, less(most, [its for _, its in known.held()]))
    free, named = by_name(left.hosts), {node.host for node in standing.nodes if node.host}
    if len(free) == 1:  # hosts are known by their nodes
        free = dict.fromkeys(sorted(named), left.total)
    in_place = left.total.memory >= known.policies.tracking.least_relief_share * sum(
        node.resources.memory for node in standing.nodes if node.role == "ps"
    )
    return HealInputs(
        job=known.job,
        at=at,
        profiles=tuple(known.profiles) if present else (),
        levels=levels,
        nodes=tuple(NodeNow(node.node, node.role, node.host, node.resources, node.used) for node in standing.nodes),
        free=free,
        shared=len(left.hosts) == 1 < len(named),
        facts=demand.facts,
        most=most,
        least=_least(demand),
        worker_peak=known.worker_peak,
        worker_steady=known.worker_steady,
        evaluated=standing.evaluated,
        spill_part=known.spill_part,
        seconds_to_act=known.seconds_to_resize if in_place else _seconds_to_move(known, standing),
        start_seconds=known.seconds_to_replace,
        total_samples=demand.total_samples,
        epoch_samples=demand.epoch_samples,
        past=tuple(known.treated.values()),
        spare=spare,
        policy=known.policies.health,
    )


def _seconds_to_move(known: RegisteredJob, standing: Standing) -> float:
    """Estimate the seconds until another PS is there and has its share of all rows."""
    held = known.levels[-1].ps if len(known.levels) else known.profiles[-1].ps
    share = sum(use.row_bytes for use in held) / (len(held) + 1)
    policy = known.policies.tracking
    start = max(policy.move_start_seconds, standing.launch_seconds)
    return start + share / (standing.move_rate or policy.move_bytes_per_second)


def _least(demand: Demand) -> dict[WorkRole, int]:
    roles: dict[WorkRole, RolePlan | None] = {"ps": demand.ps, "worker": demand.worker}
    return {role: fixed.each.memory for role, fixed in roles.items() if fixed is not None}
