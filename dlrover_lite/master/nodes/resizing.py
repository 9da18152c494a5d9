"""Whether one node's limits may be changed while it runs, and when: pure functions.

More of anything is given at once. Memory is taken only from a node that doesn't need it: a parameter server has to be tidy first (its
arenas compacted, their memory given back), and then what is in use must leave a tenth of the new limit free.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.transport.frames import UNUSABLE, Failure

__all__ = ["MOST_USED", "Step", "next_step", "refusal", "too_full"]

MOST_USED = 0.9
"""Share of a lowered memory limit that what is in use must be below, so that the node isn't killed at once."""


class Step(NamedTuple):
    """What to ask the backend for now."""

    resources: Resources
    waits_for: str = ""
    """Why the step isn't all that is wanted yet."""
    refused: str = ""
    """Why the rest isn't wanted any more: the node keeps what it has of it."""


def refusal(
    node: Node, wanted: Resources, fleet: Fleet, *, total: Resources | None, used: int, tidy: bool
) -> Failure | None:
    """Return why a wish can't be granted, and what to do instead; None if it can, now or once the node is tidy. ``total``: the recipe's
    ceiling; ``used``: memory that is in use, in bytes, with what is on its way to the node."""
    if node.state in ("draining", "ending", "ended"):
        how = "has ended already" if node.state == "ended" else "is about to end"
        return Failure(UNUSABLE, f"{node.id} {how}", "dlrover-lite status shows who is there.")
    if wanted.cores > node.resources.cores and (failure := _too_many_cores(node, wanted.cores, fleet, total)):
        return failure
    if wanted.memory > node.resources.memory:
        return _too_much_memory(node, wanted.memory, fleet)
    if wanted.memory < node.resources.memory and (tidy or node.role != "ps") and (why := too_full(used, wanted.memory)):
        return Failure("refused", f"{node.id} can't be lowered to {format_bytes(wanted.memory)}: {why}", _way_out(node))
    return None


def _too_many_cores(node: Node, cores: float, fleet: Fleet, total: Resources | None) -> Failure | None:
    if cores > fleet.capacity.cores:
        return Failure(
            UNUSABLE,
            f"{node.id} can't have {cores:g} cores: there are {fleet.capacity.cores:g}",
            f"Ask for at most {fleet.capacity.cores:g}.",
        )
    others = sum(other.most.cores for other in fleet.running if other.id != node.id)
    if total is not None and others + cores > total.cores:
        most = max(node.resources.cores, total.cores - others)
        return Failure(
            UNUSABLE,
            f"{node.id} with {cores:g} cores beside the other nodes' {others:g} is more than the {total.cores:g} that "
            "resources.total allows",
            f"Ask for at most {most:g}.",
        )
    return None


def _too_much_memory(node: Node, memory: int, fleet: Fleet) -> Failure | None:
    others = fleet.memory_beside(node)
    room = fleet.capacity.memory - others
    if memory <= room:
        return None
    most = max(room, node.resources.memory)
    return Failure(
        UNUSABLE,
        f"{node.id} with {format_bytes(memory)} beside the other nodes' {format_bytes(others)} is more than the "
        f"{format_bytes(fleet.capacity.memory)} there are",
        f"Ask for at most {format_bytes(most)} ({most} bytes), or have fewer nodes first.",
    )


def too_full(used: int, limit: int) -> str:
    """Return why a limit can't be lowered so far; "" if it can."""
    if used < MOST_USED * limit:
        return ""
    return f"{format_bytes(used)} are in use, and must be less than {MOST_USED:.0%} of it"


def _way_out(node: Node) -> str:
    if node.role == "ps":
        return f"Move slots off it first: dlrover-lite move --from {node.id} --to PS, or --slots LIST for some of them"
    return "Give it more than that; what a worker uses follows from the model and the batch size."


def next_step(node: Node, *, used: int, tidy: bool) -> Step:
    """Return the next step towards what is wanted of a node, which has a wish open."""
    wanted = node.wanted or node.resources
    if wanted.memory >= node.resources.memory:
        return Step(wanted)
    meanwhile = msgspec.structs.replace(wanted, memory=node.resources.memory)
    if node.role == "ps" and not tidy:
        waits_for = f"waits to be tidied up before its memory is lowered to {format_bytes(wanted.memory)}"
        return Step(meanwhile, waits_for=waits_for)
    if why := too_full(used, wanted.memory):
        return Step(meanwhile, refused=f"its memory is not lowered to {format_bytes(wanted.memory)}: {why}")
    return Step(wanted)
