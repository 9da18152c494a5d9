"""The plan that a job starts with: the brain's where it is asked for and answers, else the recipe's with a rule of thumb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.master.autoscale.first_plan import FirstPlan, first_plan
from dlrover_lite.master.phases import Phase
from dlrover_lite.protocol.brain_messages import Advice
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.plans import Plan, RolePlan, initial_plan
from dlrover_lite.recipe.schema import Model, Recipe, ResourceLimits, RoleResources, SyntheticData

HERE = [Host("here", Resources(4.0, 8 * GIB))]
ONE = RoleResources(count=1, cores=0.5, memory=GIB)
CHOSEN = Plan(ps=RolePlan(1, Resources(0.5, 300)), worker=RolePlan(3, Resources(1.0, 400)))
START = {"action": "start", "reason": "it is fast", "plan": msgspec.to_builtins(CHOSEN)}


class Room:
    """That nobody looks into."""

    def __init__(self, stop: bool) -> None:
        self.status = SimpleNamespace(state="starting")
        self.said: list[str] = []
        self._stop = stop

    def is_over(self) -> bool:
        return self._stop

    def serve(self, requests: list[Any]) -> None:
        pass

    def waits(self, why: str) -> None:
        self.said.append(why)


class Brain:
    """Says one thing after the other when it is waited for; nothing more after that."""

    def __init__(self, *advice: dict[str, Any]) -> None:
        self.advised: Callable[[Advice], None] = lambda _: None
        self.left = [Advice(number, decision) for number, decision in enumerate(advice, 1)]
        self.asked = 0

    def waits(self, since: float | None, *, hosts: Sequence[Host], shared: None) -> None:
        assert since is None
        self.hosts = hosts

    def first_advice(
        self, has_come: Callable[[], bool], give_up: Callable[[], bool], *_: Any, **__: Any
    ) -> Phase[bool]:
        self.asked += 1
        yield 0.0
        if self.left and not give_up():
            self.advised(self.left.pop(0))
        return has_come()


def backend_with(*capacities: list[Host]) -> Any:
    """Return a backend with these hosts, one after the other each time that they are looked at, and the last ones from then on."""
    left = list(capacities)
    return SimpleNamespace(capacity=lambda: left.pop(0) if len(left) > 1 else left[0], shared_room=lambda: None)


def found(
    brain: Any, *, stop: bool = False, backend: Any = None, clock: Callable[[], float] = lambda: 0.0, **sections: Any
) -> tuple[FirstPlan, list[str]]:
    recipe = Recipe(version=1, name="ads", model=Model(use="dcn"), data=SyntheticData(samples=100), **sections)
    said: list[str] = []
    room: Any = Room(stop)
    phase = first_plan(recipe, backend or backend_with(HERE), brain, room, clock=clock, say=said.append)
    return outcome_of(phase), said + room.said


def outcome_of(phase: Phase[FirstPlan]) -> FirstPlan:
    try:
        next(phase)
        while True:
            phase.send([])
    except StopIteration as over:
        return over.value  # type: ignore[no-any-return]


OURS = initial_plan(ResourceLimits(), HERE)


def test_no_node_of_the_rule_of_thumb_is_larger_than_a_host() -> None:
    """Eight small hosts: the only parameter server would have half of all their memory."""
    hosts = [Host(f"host-{number}", Resources(0.5, GIB)) for number in range(8)]
    plan = initial_plan(ResourceLimits(), hosts)
    assert plan == Plan(ps=RolePlan(1, Resources(0.5, GIB)), worker=RolePlan(4, Resources(0.5, GIB // 2)))


def test_first_plan_is_the_brains_with_its_decision() -> None:
    assert found(Brain(START)) == (FirstPlan(CHOSEN, 1, "it is fast"), [])


def test_a_role_that_the_recipe_fixes_is_as_the_recipe_says() -> None:
    first, _ = found(Brain(START), resources=ResourceLimits(worker=ONE))
    assert first.plan == Plan(ps=CHOSEN.ps, worker=RolePlan(1, Resources(0.5, GIB)))
    first, _ = found(Brain(START), resources=ResourceLimits(ps=ONE))
    assert first.plan == Plan(ps=RolePlan(1, Resources(0.5, GIB)), worker=CHOSEN.worker)


def test_a_job_without_autoscaling_asks_the_brain_for_no_plan() -> None:
    brain = Brain(START)
    first, said = found(brain, autoscale="off")
    assert (first.number, brain.asked, said) == (0, 0, [])


def test_a_job_with_a_fixed_plan_asks_the_brain_for_room() -> None:
    fixed = ResourceLimits(ps=ONE, worker=ONE)
    first, _ = found(Brain(START), autoscale="on", resources=fixed)
    assert (first.number, first.plan) == (1, initial_plan(fixed, HERE))


def test_first_plan_without_a_brain_is_a_rule_of_thumb() -> None:
    assert found(None) == (FirstPlan(OURS), [])
    assert found(Brain()) == (FirstPlan(OURS), [])  # one that is lost, or takes too long


def test_a_stopped_job_waits_for_no_first_plan() -> None:
    first, _ = found(Brain(START), stop=True)
    assert first.number == 0


@pytest.mark.parametrize("brain", [None, Brain(START)])
def test_a_job_whose_plan_follows_from_hosts_waits_for_one(brain: Brain | None) -> None:
    """Found by seeds 400142 and 401355 of `make fuzz-sim`: the only machine was away, and a share of nothing is nothing."""
    first, said = found(brain, backend=backend_with([], [], HERE))
    assert first == (FirstPlan(OURS) if brain is None else FirstPlan(CHOSEN, 1, "it is fast"))
    assert len(said) == 2 and all("waits for a host" in line for line in said)
    assert brain is None or brain.hosts == HERE


def test_a_job_whose_plan_is_fixed_waits_for_no_host() -> None:
    fixed = ResourceLimits(ps=ONE, worker=ONE)
    first, said = found(None, backend=backend_with([]), resources=fixed)
    assert (first.plan, said) == (initial_plan(fixed, []), [])


def test_a_stopped_job_waits_for_no_host() -> None:
    found(Brain(START), stop=True, backend=backend_with([]))


def test_a_job_in_the_queue_waits_and_is_told_why() -> None:
    wait, later = ({"action": "queue", "reason": f"number {place} in the queue"} for place in (2, 1))
    first, said = found(Brain(wait, wait, later, wait | {"reason": "number 1 in the queue"}, START))
    assert (first.plan, first.number) == (CHOSEN, 5)
    assert list(dict.fromkeys(said)) == ["number 2 in the queue", "number 1 in the queue"]


@pytest.mark.parametrize(
    "decision", [{"action": "refuse", "reason": "too large"}, {"action": "start", "plan": None, "reason": "x"}]
)
def test_a_job_begins_by_rule_when_the_brain_has_no_plan(decision: dict[str, Any]) -> None:
    first, said = found(Brain(decision))
    assert first == FirstPlan(OURS)
    assert len(said) == 1 and OURS.describe() in said[0] and decision["reason"] in said[0]


@pytest.mark.parametrize("plan", [{"workers": 3}, "large", {"ps": {"count": "one"}, "worker": {}}])
def test_a_malformed_plan_of_the_brain_is_not_used(plan: Any) -> None:
    first, said = found(Brain({**START, "plan": plan}))
    assert first == FirstPlan(OURS)
    assert len(said) == 1 and "can't be understood" in said[0]
