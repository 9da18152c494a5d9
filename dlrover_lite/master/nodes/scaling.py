"""Whether a wish for another number of nodes can be granted."""

from __future__ import annotations

from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.protocol.plans import scaling_refusal
from dlrover_lite.protocol.questions import ScaleRequest
from dlrover_lite.transport.frames import UNUSABLE, Failure

__all__ = ["newcomer_refusal", "refusal", "replacement_refusal"]

_NONE_CAN = {"worker": "workers can't train", "ps": "parameter servers can't hold a model"}


def refusal(wish: ScaleRequest, fleet: Fleet, *, total: Resources | None) -> Failure | None:
    """Return why not, and what to do instead; None if it can be. ``total``: the recipe's ceiling."""
    asked = {"worker": wish.workers, "ps": wish.ps}
    for role, count in asked.items():
        if count is not None and count < 1:
            return Failure(UNUSABLE, f"{count} {_NONE_CAN[role]}", "Ask for at least 1, or stop the job.")
    if wish.ps is not None and wish.ps > SLOTS:
        return Failure(UNUSABLE, f"{wish.ps} parameter servers can't have a slot each", f"Ask for at most {SLOTS}.")
    plan = fleet.plan
    found = scaling_refusal(
        plan,
        plan.worker.count if wish.workers is None else wish.workers,
        plan.ps.count if wish.ps is None else wish.ps,
        memory=fleet.capacity.memory,
        cores=None if total is None else total.cores,
        more_memory=_beyond_the_plan(fleet),
    )
    return None if found is None else Failure(UNUSABLE, found.why, found.hint)


def _beyond_the_plan(fleet: Fleet) -> int:
    """Return the memory that nodes were given, or are to have, on top of the plan's, in bytes."""
    return sum(max(0, node.most.memory - fleet.planned(node.role).each.memory) for node in fleet.running)


def newcomer_refusal(each: Resources, fleet: Fleet, *, total: Resources | None) -> Failure | None:
    """Return why there can't be one more parameter server with ``each`` beside all that run; None if there can."""
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
    """Return why there can't be one more of its role for a while, with ``each`` or of the plan's size, beside all that run; None if there
    can."""
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
