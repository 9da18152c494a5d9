"""Whether a wish for another number of nodes can be granted."""

from __future__ import annotations

from dlrover_lite.master.fleet import Fleet
from dlrover_lite.units import Resources, format_bytes
from dlrover_lite.wire.frames import UNUSABLE, Failure
from dlrover_lite.wire.messages import ScaleRequest

__all__ = ["refusal"]


def refusal(wish: ScaleRequest, fleet: Fleet, *, total: Resources | None) -> Failure | None:
    """Why not, and what to do instead; None if it can be. ``total``: the recipe's ceiling."""
    ps = fleet.plan.ps
    if wish.ps is not None and wish.ps != ps.count:
        return Failure(
            "refused",
            f"this job keeps its {ps.count} parameter server{'s' * (ps.count != 1)}: parameters can't be moved between them yet",
            "Start a job with another resources.ps.count, or scale the workers.",
        )
    if wish.workers is None:
        return None
    if wish.workers < 1:
        return Failure(UNUSABLE, f"{wish.workers} workers can't train", "Ask for at least 1, or stop the job.")
    each = fleet.plan.worker.each
    memory = ps.count * ps.each.memory + wish.workers * each.memory
    if wish.workers > fleet.plan.worker.count and memory > fleet.capacity.memory:
        most = max(0, (fleet.capacity.memory - ps.count * ps.each.memory) // each.memory)
        return Failure(
            UNUSABLE,
            f"{wish.workers} workers of {format_bytes(each.memory)} beside the parameter servers need {format_bytes(memory)}; "
            f"there are {format_bytes(fleet.capacity.memory)}",
            f"Ask for at most {most}." if most else "Give each worker less memory in the recipe.",
        )
    cores = ps.count * ps.each.cores + wish.workers * each.cores
    if total is not None and wish.workers > fleet.plan.worker.count and cores > total.cores:
        most = max(0, int((total.cores - ps.count * ps.each.cores) / each.cores))
        return Failure(
            UNUSABLE,
            f"{wish.workers} workers need {cores:g} cores with the parameter servers; resources.total allows {total.cores:g}",
            f"Ask for at most {most}." if most else "Raise resources.total.",
        )
    return None
