"""What a job asks of the brain, and the plan that it starts with, or goes on with after it has given way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from dlrover_lite.core.expected_end import PredictedRate
from dlrover_lite.master.autoscale.autoscaler import PlanPrediction
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.phases import Phase
from dlrover_lite.master.profiling.job_end import predicted_rate
from dlrover_lite.master.queued_job import QueuedJob
from dlrover_lite.protocol.brain_messages import Advice, understood
from dlrover_lite.protocol.demands import autoscale_of
from dlrover_lite.protocol.hosts import Host, HostNodes
from dlrover_lite.protocol.nodes import Backend
from dlrover_lite.protocol.plans import Plan, fixed, initial_plan
from dlrover_lite.recipe.schema import Recipe

__all__ = ["FirstPlan", "first_plan", "next_plan"]

_HOSTS_SECONDS = 1.0
"""Seconds between two looks whether there is a host."""
_NO_HOST = (
    "waits for a host that its nodes may run on: there is none now, and how large nodes are to be follows from what hosts have; "
    "where hosts come only once nodes wait for them, the recipe has to say how large nodes are"
)


class FirstPlan(NamedTuple):
    plan: Plan
    number: int = 0
    """Number of the brain's decision; 0: the plan isn't by the brain."""
    why: str = ""
    begun: bool = False
    """The job has had nodes before."""
    predicted: PredictedRate | None = None
    """Throughput with this plan, as the decision predicts it."""
    placement: tuple[HostNodes, ...] = ()
    """Number of nodes that begin on each host; empty: wherever there is room."""

    @property
    def prediction(self) -> PlanPrediction | None:
        return None if self.predicted is None else PlanPrediction(self.plan, self.predicted)

    @property
    def words(self) -> str:
        by = f" (decision {self.number}: {self.why})" if self.number else ""
        return f"{'goes on' if self.begun else 'begins'} with {self.plan.describe()}{by}"


def first_plan(
    recipe: Recipe,
    backend: Backend,
    brain: BrainLink | None,
    queued: QueuedJob,
    *,
    clock: Callable[[], float],
    say: Callable[[str], None],
) -> Phase[FirstPlan]:
    """Return the brain's plan, where it is asked for and there is one that answers; else the recipe's, with a rule of thumb for what it
    leaves open. Waits as long as the brain wants it to, and for a host; ``queued`` says whether that was for nothing, since the job is to
    stop."""
    hosts = yield from _there_are(recipe, backend, queued, clock)
    ours = FirstPlan(initial_plan(recipe.resources, hosts))
    if brain is None or autoscale_of(recipe) == "off" or queued.is_over():
        return ours
    brain.waits(None, hosts=hosts, shared=backend.shared_room())
    return (yield from _advised(recipe, ours, brain, queued, after=0, say=say))


def _there_are(
    recipe: Recipe, backend: Backend, queued: QueuedJob, clock: Callable[[], float]
) -> Phase[Sequence[Host]]:
    """Return the hosts that there are. Where nodes are planned by what hosts have, waits until there is one."""
    is_fixed = recipe.resources.ps is not None and recipe.resources.worker is not None
    before = queued.status
    while not (hosts := backend.capacity()) and not is_fixed and not queued.is_over():
        queued.waits(_NO_HOST)
        queued.serve((yield clock() + _HOSTS_SECONDS))
    queued.status = before
    return hosts


def next_plan(
    recipe: Recipe,
    before: Plan,
    backend: Backend,
    brain: BrainLink | None,
    queued: QueuedJob,
    *,
    since: float,
    after: int,
    say: Callable[[str], None],
) -> Phase[FirstPlan]:
    """Find the plan for a job that has given way to others, ``since`` then and by the decision ``after``: the brain's plan, or the one it
    had ``before`` when there is no brain any more."""
    ours = FirstPlan(before, begun=True)
    if brain is None:
        return ours
    brain.waits(since, hosts=backend.capacity(), shared=backend.shared_room())
    return (yield from _advised(recipe, ours, brain, queued, after=after, say=say))


def _advised(
    recipe: Recipe,
    ours: FirstPlan,
    brain: BrainLink,
    queued: QueuedJob,
    *,
    after: int,
    say: Callable[[str], None],
) -> Phase[FirstPlan]:
    """Ask the brain for a plan. What isn't newer than ``after`` was said before."""
    heard: list[Advice] = []

    def take(advice: Advice) -> None:
        if advice.number > after:
            heard.append(advice)

    brain.advised = take
    while (
        yield from brain.first_advice(
            lambda: bool(heard), queued.is_over, queued.serve, patient=queued.status.state == "queued"
        )
    ):
        advice = heard.pop()
        heard.clear()
        try:
            decision = understood(advice)
        except msgspec.ValidationError as error:
            say(f"{ours.words}, since the brain's plan can't be understood, as by another version: {error}")
            return ours
        if decision.action == "queue":
            queued.waits(decision.reason)
            continue
        if decision.action not in ("start", "refuse"):
            continue  # of when it ran: a brain that has just come decided it before it heard that the job has given way
        if decision.action != "start" or decision.plan is None:
            say(f"{ours.words}, since the brain has no plan for it: {decision.reason}")
            return ours
        limits = recipe.resources
        plan = Plan(ps=fixed(limits.ps) or decision.plan.ps, worker=fixed(limits.worker) or decision.plan.worker)
        predicted = predicted_rate(decision.predicted)
        return FirstPlan(plan, advice.number, decision.reason, ours.begun, predicted, decision.placement)
    if queued.status.state == "queued" and not queued.is_over():
        say("there is no brain any more that it could wait for")
    return ours
