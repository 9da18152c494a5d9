"""Whether a wish for another number of nodes can be granted."""

from __future__ import annotations

from dlrover_lite.master.fleet import Fleet
from dlrover_lite.master.lifecycle import Node
from dlrover_lite.slots import SLOTS
from dlrover_lite.units import Resources, format_bytes
from dlrover_lite.wire.frames import UNUSABLE, Failure
from dlrover_lite.wire.messages import ScaleRequest

__all__ = ["newcomer_refusal", "refusal", "replacement_refusal"]

_WHAT = {"worker": "workers", "ps": "parameter servers"}
_NONE_CAN = {"worker": "workers can't train", "ps": "parameter servers can't hold a model"}


def refusal(wish: ScaleRequest, fleet: Fleet, *, total: Resources | None) -> Failure | None:
    """Why not, and what to do instead; None if it can be. ``total``: the recipe's ceiling."""
    asked = {"worker": wish.workers, "ps": wish.ps}
    plans = {"worker": fleet.plan.worker, "ps": fleet.plan.ps}
    for role, count in asked.items():
        if count is not None and count < 1:
            return Failure(UNUSABLE, f"{count} {_NONE_CAN[role]}", "Ask for at least 1, or stop the job.")
    if wish.ps is not None and wish.ps > SLOTS:
        return Failure(UNUSABLE, f"{wish.ps} parameter servers can't have a slot each", f"Ask for at most {SLOTS}.")
    counts = {role: plans[role].count if count is None else count for role, count in asked.items()}
    for role, other in (("worker", "ps"), ("ps", "worker")):
        count, each, beside = counts[role], plans[role].each, plans[other].each
        if count <= plans[role].count:
            continue
        memory, others = count * each.memory, counts[other] * beside.memory + _beyond_the_plan(fleet)
        if memory + others > fleet.capacity.memory:
            most = max(0, (fleet.capacity.memory - others) // each.memory)
            return Failure(
                UNUSABLE,
                f"{count} {_WHAT[role]} of {format_bytes(each.memory)} beside the {_WHAT[other]} need "
                f"{format_bytes(memory + others)}; there are {format_bytes(fleet.capacity.memory)}",
                f"Ask for at most {most}." if most else f"Give each of the {_WHAT[role]} less memory in the recipe.",
            )
        cores, other_cores = count * each.cores, counts[other] * beside.cores
        if total is not None and cores + other_cores > total.cores:
            most = max(0, int((total.cores - other_cores) / each.cores))
            return Failure(
                UNUSABLE,
                f"{count} {_WHAT[role]} need {cores + other_cores:g} cores with the {_WHAT[other]}; "
                f"resources.total allows {total.cores:g}",
                f"Ask for at most {most}." if most else "Raise resources.total.",
            )
    return None


def _beyond_the_plan(fleet: Fleet) -> int:
    """Memory that nodes were given, or are to have, on top of the plan's."""
    return sum(max(0, node.most.memory - fleet.planned(node.role).each.memory) for node in fleet.running)


def newcomer_refusal(each: Resources, fleet: Fleet, *, total: Resources | None) -> Failure | None:
    """Why there can't be one more parameter server with ``each`` beside all that run; None if there can."""
    held = [node.most for node in fleet.running] + [late.resources for late in fleet.pending]
    memory, cores = sum(one.memory for one in held), sum(one.cores for one in held)
    if memory + each.memory > fleet.capacity.memory:
        return Failure(
            UNUSABLE,
            f"another parameter server with {format_bytes(each.memory)} has no room beside the {format_bytes(memory)} that others may "
            f"take of {format_bytes(fleet.capacity.memory)}",
        )
    if total is not None and cores + each.cores > total.cores:
        return Failure(
            UNUSABLE,
            f"another parameter server with {each.cores:g} cores beside the other nodes' {cores:g} is more than the {total.cores:g} that "
            "resources.total allows",
        )
    return None


def replacement_refusal(node: Node, fleet: Fleet, each: Resources | None = None) -> Failure | None:
    """Why there can't be one more of its role for a while, with ``each`` or of the plan's size, beside all that run; None if there can."""
    each = each or fleet.planned(node.role).each
    used = node.most.memory + fleet.memory_beside(node)
    if used + each.memory <= fleet.capacity.memory:
        return None
    return Failure(
        UNUSABLE,
        f"the one that replaces {node.id} needs {format_bytes(each.memory)} beside all others while it takes over; they may take "
        f"{format_bytes(used)} of {format_bytes(fleet.capacity.memory)}",
        "Scale the workers down first, or drain it without --replace.",
    )
