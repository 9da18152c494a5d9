"""Whether what the brain has suggested can still be carried out when a person accepts it, which may be a good while later."""

from __future__ import annotations

from dlrover_lite.master.autoscale.autoscaler import Goal, LeaseLess, MoveShare, ReplaceNode, ResizeNode, World
from dlrover_lite.transport.frames import Failure

__all__ = ["misfit", "refusal", "superseded"]


def superseded(meant: int | None, there: Goal | None) -> Failure | None:
    """Return the failure if a person has answered another decision than there is; ``meant``: None: whichever there is."""
    if meant is None or there is None or there.number == meant:
        return None
    return Failure(
        "refused",
        f"decision {meant} is suggested no more: decision {there.number} is ({there.what})",
        "Look at that one first, then accept or reject it.",
    )


def misfit(goal: Goal, world: World) -> str:
    """Return why a suggestion can't be carried out any more; "" if it can, as far as is known before it is tried. What there is no room for
    just now is tried again while it is under way, and so isn't looked at here."""
    if world.over:
        return "all samples have been trained on"
    if goal.target is not None and goal.target == world.plan and world.calm:
        return "the job has that plan already"
    there = {node.id: node for node in world.nodes}
    for step in goal.steps:
        if not isinstance(step, ResizeNode | ReplaceNode | MoveShare | LeaseLess):
            continue
        if step.node not in there:
            return f"{step.node} has ended"
        if there[step.node].leaving:
            return f"{step.node} is about to leave"
    return ""


def refusal(goal: Goal, why: str) -> Failure:
    return Failure(
        "refused",
        f"decision {goal.number} can't be carried out any more: {why}",
        "It is dropped. The brain makes another one when there is need: dlrover-lite autoscale status",
    )
