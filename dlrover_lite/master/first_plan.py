"""What a job asks of the brain, and the plan that it starts with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from dlrover_lite.brain.demand import autoscale_of, fixed
from dlrover_lite.brain.plan import Plan, initial_plan
from dlrover_lite.master.brain_link import BrainLink
from dlrover_lite.recipe.schema import Recipe, RoleResources
from dlrover_lite.units import Resources
from dlrover_lite.wire.brain_messages import Advice

__all__ = ["FirstPlan", "first_plan"]


class FirstPlan(NamedTuple):
    plan: Plan
    number: int = 0
    """Of the brain's decision; 0: it isn't by the brain."""
    why: str = ""


def first_plan(
    recipe: Recipe,
    capacity: Resources,
    brain: BrainLink | None,
    *,
    stop: Callable[[], bool],
    say: Callable[[str], None],
) -> FirstPlan:
    """The brain's, where it is asked for and there is one that answers; else the recipe's, with a rule of thumb for what it leaves open."""
    ours = FirstPlan(initial_plan(recipe.resources, capacity))
    limits = recipe.resources
    if brain is None or autoscale_of(recipe) == "off" or (limits.ps is not None and limits.worker is not None):
        return ours
    heard: list[Advice] = []
    brain.advised = heard.append
    waits = ""
    while brain.first_advice(lambda: bool(heard), stop):
        advice = heard.pop()
        heard.clear()
        action, why = advice.decision.get("action"), str(advice.decision.get("reason", ""))
        if action == "queue":
            if why != waits:
                say(why)
            waits = why
            continue
        if action != "start" or advice.decision.get("plan") is None:
            say(f"begins with {ours.plan.describe()}, since the brain has no plan for it: {why}")
            return ours
        try:
            plan = msgspec.convert(advice.decision["plan"], Plan)
        except msgspec.ValidationError as error:
            say(
                f"begins with {ours.plan.describe()}, since the brain's plan can't be understood, as by another version: {error}"
            )
            return ours
        return FirstPlan(_memory_fixed(plan, limits.ps, limits.worker), advice.number, why)
    return ours


def _memory_fixed(plan: Plan, ps: RoleResources | None, worker: RoleResources | None) -> Plan:
    """Memory of a role that the recipe fixes is the recipe's."""
    return Plan(ps=fixed(ps) or plan.ps, worker=fixed(worker) or plan.worker)
