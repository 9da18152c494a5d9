"""Carrying out decisions: one change at a time, to the target whatever fails in between, and nothing while it is paused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.master.autoscale import autoscaler
from dlrover_lite.master.autoscale.autoscaler import (
    AddServer,
    Autoscaler,
    Goal,
    NodeNow,
    ReplaceNode,
    ResizeNode,
    ScaleRole,
    SetNodeSize,
    Step,
    World,
)
from dlrover_lite.protocol.demands import DecisionOutcome
from dlrover_lite.protocol.hosts import HostNodes
from dlrover_lite.protocol.plans import Plan, RolePlan

MODES = ("off", "suggest", "on")


def plan(workers: int, worker_cores: float, ps: int, ps_cores: float, memory: int = GIB) -> Plan:
    return Plan(ps=RolePlan(ps, Resources(ps_cores, memory)), worker=RolePlan(workers, Resources(worker_cores, memory)))


plans = st.builds(
    plan,
    st.integers(1, 4),
    st.sampled_from((0.25, 0.5, 1.0)),
    st.integers(1, 3),
    st.sampled_from((0.25, 0.5, 1.0)),
    st.sampled_from((GIB, 2 * GIB)),
)


class Machine:
    """Nodes that do what is asked of them, some time later; and an autoscaler over them. ``luck`` decides what fails."""

    def __init__(self, now: Plan, luck: Callable[[int], int], mode: Any = "on") -> None:
        self.plan, self.luck, self.now, self.made = now, luck, 0.0, 0
        self.nodes: dict[str, NodeNow] = {}
        self.wanted: dict[str, Resources] = {}
        self.settled = True
        self.state = Autoscaler(job="a", mode=mode)
        self.done: list[DecisionOutcome] = []
        self.asked: list[Step] = []
        self.refusals = 0
        self.tells_who_leaves = True
        self.fill()
        self.settle()

    def fill(self) -> None:
        for role, planned in (("ps", self.plan.ps), ("worker", self.plan.worker)):
            staying = [node for node in self.nodes.values() if node.role == role and not node.leaving]
            for node in staying[planned.count :]:
                self.nodes[node.id] = node._replace(leaving=True)
            for _ in range(planned.count - len(staying)):
                name = f"{role}-{self.made}"
                self.made += 1
                self.nodes[name] = NodeNow(name, role, planned.each, up=False)  # type: ignore[arg-type]

    def world(self) -> World:
        servers = [node.id for node in self.nodes.values() if node.role == "ps" and not node.leaving]
        leave_first = tuple(reversed(servers)) if self.tells_who_leaves else ()
        nodes = tuple(self.nodes.values())
        return World(self.plan, nodes, settled=self.settled, samples=int(self.now), leave_first=leave_first)

    def settle(self) -> None:
        """Everything under way is done."""
        for node in list(self.nodes.values()):
            if node.leaving:
                del self.nodes[node.id]
            else:
                size = self.wanted.pop(node.id, node.resources)
                self.nodes[node.id] = node._replace(up=True, resizing=False, resources=size)
        self.settled = True

    def do(self, step: Step) -> str:
        self.asked.append(step)
        if self.refusals < autoscaler.TRIES - 1 and self.luck(4) == 0:
            self.refusals += 1
            return "not now"
        self.refusals = 0
        match step:
            case SetNodeSize(role, each):
                self.plan = msgspec.structs.replace(
                    self.plan, **{role: msgspec.structs.replace(getattr(self.plan, role), each=each)}
                )
            case ResizeNode(name, resources):
                if name in self.nodes:
                    self.wanted[name] = resources
                    self.nodes[name] = self.nodes[name]._replace(resizing=True)
            case ScaleRole(role, count):
                self.plan = msgspec.structs.replace(
                    self.plan, **{role: msgspec.structs.replace(getattr(self.plan, role), count=count)}
                )
                self.settled = role != "ps"
                self.fill()
            case AddServer(_, count):
                self.plan = msgspec.structs.replace(self.plan, ps=msgspec.structs.replace(self.plan.ps, count=count))
                self.fill()
            case ReplaceNode(name, _):
                if name in self.nodes:
                    self.nodes[name] = self.nodes[name]._replace(leaving=True)
                    self.fill()
        return ""

    def turn(self) -> Step | None:
        """A second of it."""
        self.now += 1.0
        calm = self.world().calm
        found = self.state.turn(self.world(), self.now)
        self.state = found.state
        if found.done:
            self.done.append(found.done)
        if found.step is not None:
            assert calm, "a step is begun while another one is under way"
            answered = self.state.answered(self.do(found.step), self.now, self.world())
            self.state = answered.state
            if answered.done:
                self.done.append(answered.done)
        return found.step

    def disturb(self) -> None:
        """Now and then a node dies, and another one takes its place; sometimes all settles."""
        if self.luck(6) == 0 and self.nodes:
            name = sorted(self.nodes)[self.luck(len(self.nodes))]
            del self.nodes[name]
            self.wanted.pop(name, None)
            self.fill()
        if self.luck(2) == 0:
            self.settle()

    def advise(self, target: Plan | None, number: int = 1, steps: tuple[Step, ...] = ()) -> None:
        goal = Goal(number=number, target=target, steps=steps, what="because")
        self.state, ended = self.state.advised(goal, self.now, int(self.now))
        self.done += ended

    def sizes(self, role: str) -> list[Resources]:
        return [node.resources for node in self.nodes.values() if node.role == role]


def no_luck(_: int) -> int:
    return 1


def reached(machine: Machine, target: Plan) -> None:
    assert machine.plan == target and machine.world().calm
    for role, planned in (("ps", target.ps), ("worker", target.worker)):
        sizes = machine.sizes(role)
        assert len(sizes) == planned.count
        assert all(size.cores == planned.each.cores and size.memory >= planned.each.memory for size in sizes)


@given(plans, plans, st.randoms(use_true_random=False))
def test_target_is_reached_despite_failures_one_step_at_a_time(before, target, random) -> None:
    machine = Machine(before, random.randrange)
    machine.advise(target)
    for _ in range(400):
        machine.turn()
        machine.disturb()
        if machine.state.goal is None:
            break
    else:
        machine.luck = no_luck
        while machine.state.goal is not None:
            machine.settle()
            machine.turn()
    assert [one.state for one in machine.done] == ["done"], machine.done
    # who died in the last moment comes back by the plan
    machine.luck = no_luck
    machine.settle()
    reached(machine, target)


@given(plans, plans, st.randoms(use_true_random=False), st.integers(0, 30))
def test_no_step_is_begun_while_paused(before, target, random, turns) -> None:
    machine = Machine(before, random.randrange)
    machine.advise(target)
    for _ in range(turns):
        machine.turn()
        machine.disturb()
    machine.state = machine.state.pause("by request")
    asked = len(machine.asked)
    for _ in range(50):
        assert machine.turn() is None
        machine.disturb()
    machine.now += autoscaler.STEP_SECONDS + autoscaler.WAIT_SECONDS
    machine.turn()
    assert len(machine.asked) == asked
    machine.state = machine.state.resume(machine.now)
    machine.luck = no_luck
    while machine.state.goal is not None:
        machine.settle()
        machine.turn()
    machine.settle()
    reached(machine, target)


@given(plans, plans, st.randoms(use_true_random=False), st.integers(0, 30))
def test_a_restarted_master_goes_on_with_what_was_kept(before, target, random, turns) -> None:
    machine = Machine(before, random.randrange)
    machine.advise(target)
    for _ in range(turns):
        machine.turn()
        machine.disturb()
    machine.state = msgspec.json.decode(msgspec.json.encode(machine.state), type=Autoscaler)
    machine.luck = no_luck
    while machine.state.goal is not None:
        machine.settle()
        machine.turn()
    machine.settle()
    reached(machine, target)


def test_steps_that_release_resources_come_before_those_that_take() -> None:
    machine = Machine(plan(2, 0.5, 1, 0.5), no_luck)
    machine.advise(plan(1, 1.0, 1, 1.0))
    while machine.state.goal is not None:
        machine.turn()
        machine.settle()
    kinds = [(type(step), getattr(step, "role", getattr(step, "node", ""))) for step in machine.asked]
    assert kinds.index((ScaleRole, "worker")) < min(at for at, (kind, _) in enumerate(kinds) if kind is ResizeNode)
    assert machine.done[0].state == "done" and machine.done[0].seconds > 0


def test_memory_is_never_taken_from_a_node_that_runs() -> None:
    machine = Machine(plan(1, 0.5, 1, 0.5, 2 * GIB), no_luck)
    machine.advise(plan(2, 0.5, 1, 0.5, GIB))
    while machine.state.goal is not None:
        machine.turn()
        machine.settle()
    assert sorted(size.memory for size in machine.sizes("worker")) == [GIB, 2 * GIB]


def test_a_step_that_is_always_refused_is_given_up_and_reported() -> None:
    machine = Machine(plan(1, 0.5, 1, 0.5), no_luck)
    machine.do = lambda step: "no room"  # type: ignore[method-assign]
    machine.advise(plan(2, 0.5, 1, 0.5))
    for _ in range(200):
        machine.turn()
    assert [(one.state, one.why) for one in machine.done] == [("given up", "scaling to 2 worker: no room")]


def test_a_step_that_never_ends_is_given_up() -> None:
    machine = Machine(plan(1, 0.5, 1, 0.5), no_luck)
    machine.advise(plan(2, 0.5, 1, 0.5))
    machine.turn()
    machine.now += autoscaler.STEP_SECONDS
    machine.turn()
    assert machine.done[0].state == "given up" and "not done after" in machine.done[0].why


def test_no_step_once_training_is_over() -> None:
    machine = Machine(plan(1, 0.5, 1, 0.5), no_luck)
    machine.advise(plan(2, 0.5, 1, 0.5))
    found = machine.state.turn(machine.world()._replace(over=True), 5.0)
    assert found.step is None and found.done is not None and found.state.goal is None


@pytest.mark.parametrize("mode", MODES)
def test_decisions_are_carried_out_suggested_or_rejected_by_mode(mode: str) -> None:
    machine = Machine(plan(1, 0.5, 1, 0.5), no_luck, mode)
    machine.advise(plan(2, 0.5, 1, 0.5), number=3)
    machine.advise(plan(2, 0.5, 1, 0.5), number=3)  # told twice
    assert machine.state.heard == 3
    machine.turn()
    assert bool(machine.asked) == (mode == "on")
    assert [one.state for one in machine.done] == (["rejected"] if mode == "off" else [])
    if mode == "suggest":
        machine.state = machine.state.accept(machine.now, 0)
        machine.turn()
        assert machine.asked


def test_a_newer_decision_supersedes_an_older_and_can_be_rejected() -> None:
    machine = Machine(plan(1, 0.5, 1, 0.5), no_luck)
    machine.advise(plan(2, 0.5, 1, 0.5), number=1)
    machine.advise(plan(3, 0.5, 1, 0.5), number=2)
    assert [(one.number, one.state) for one in machine.done] == [(1, "superseded")]
    machine.state, ended = machine.state.reject("by request", 9.0, 5)
    assert [(one.number, one.state) for one in ended] == [(2, "rejected")]
    assert not machine.state.busy and machine.turn() is None


def more_memory(number: int) -> Goal:
    return Goal(number=number, steps=(ResizeNode("ps-0", Resources(0.5, 2 * GIB)),))


def test_more_memory_interrupts_a_change_of_plan_which_then_goes_on() -> None:
    target = plan(3, 1.0, 1, 0.5)
    machine = Machine(plan(2, 0.5, 1, 0.5), no_luck)
    machine.advise(target, number=1)
    machine.turn()
    for number in (2, 3):  # the second one takes the place of the first alone
        machine.state, ended = machine.state.advised(more_memory(number), machine.now, 0)
        machine.done += ended
    assert [(one.number, one.state) for one in machine.done] == [(2, "superseded")]
    again = msgspec.json.decode(msgspec.json.encode(machine.state), type=Autoscaler)
    assert again == machine.state
    for _ in range(60):
        machine.turn()
        machine.settle()
        machine.now += 1.0
    assert [(one.number, one.state) for one in machine.done[1:]] == [(3, "done"), (1, "done")]
    assert machine.nodes["ps-0"].resources.memory == 2 * GIB
    assert [node.resources.cores for node in machine.nodes.values() if node.role == "worker"] == [1.0] * 3


def test_a_change_of_plan_that_is_interrupted_is_dropped_with_what_interrupts_it() -> None:
    machine = Machine(plan(1, 0.5, 1, 0.5), no_luck)
    machine.advise(plan(2, 0.5, 1, 0.5), number=1)
    machine.state, _ = machine.state.advised(more_memory(2), machine.now, 0)
    rejected, ended = machine.state.reject("by request", 9.0, 5)
    assert [one.number for one in ended] == [2, 1] and not rejected.busy
    machine.advise(plan(3, 0.5, 1, 0.5), number=3)
    assert [(one.number, one.state) for one in machine.done] == [(2, "superseded"), (1, "superseded")]


@pytest.mark.parametrize("answer", ["accept", "reject"])
def test_a_suggestion_that_was_answered_or_superseded_is_not_taken_again(answer: str) -> None:
    """Its master is told of it again, as the answer to an earlier report was late."""
    machine = Machine(plan(1, 0.5, 1, 0.5), no_luck, "suggest")
    machine.advise(plan(2, 0.5, 1, 0.5), number=1)
    machine.advise(plan(3, 0.5, 1, 0.5), number=2)
    for number in (1, 2):
        machine.advise(plan(4, 0.5, 1, 0.5), number=number)
        assert machine.state.suggestion is not None and machine.state.suggestion.number == 2
    if answer == "accept":
        machine.state = machine.state.accept(machine.now, 0)
    else:
        machine.state, _ = machine.state.reject("by request", machine.now, 0)
    before = machine.state
    for number in (1, 2):
        machine.advise(plan(4, 0.5, 1, 0.5), number=number)
        assert machine.state == before and machine.state.suggestion is None


@pytest.mark.parametrize(
    ("heard", "by_itself", "stays"), [(0, True, True), (0, False, False), (2, True, False), (9, True, False)]
)
def test_a_suggestion_stays_only_if_the_job_goes_on_by_itself(heard: int, by_itself: bool, stays: bool) -> None:
    """It stays where the job goes on by itself as it was; not once it had ended, nor where another decision has begun the next one."""
    machine = Machine(plan(1, 0.5, 1, 0.5), no_luck, "suggest")
    machine.advise(plan(2, 0.5, 1, 0.5), number=3)
    machine.state = machine.state.goes_on(heard, "", by_itself=by_itself)
    assert (machine.state.suggestion is not None) is stays
    assert machine.state.heard == max(3, heard)
    before = machine.state
    machine.advise(plan(2, 0.5, 1, 0.5), number=3)
    assert machine.state == before


def test_steps_without_a_target_are_done_in_order() -> None:
    machine = Machine(plan(2, 0.5, 1, 0.5), no_luck)
    steps = (ResizeNode("ps-0", Resources(1.0, GIB)), ReplaceNode("worker-1", Resources(0.5, GIB)))
    machine.advise(None, steps=steps)
    while machine.state.goal is not None:
        machine.turn()
        machine.settle()
    assert machine.asked == list(steps) and machine.done[0].state == "done"
    assert machine.nodes["ps-0"].resources.cores == 1.0 and "worker-1" not in machine.nodes


@pytest.mark.parametrize("tells", [True, False])
def test_servers_that_stay_have_room_before_any_leaves(tells: bool) -> None:
    machine = Machine(plan(1, 1.0, 3, 0.5, GIB), no_luck)
    machine.tells_who_leaves = tells
    machine.advise(plan(1, 1.0, 1, 1.0, 3 * GIB))
    while machine.state.goal is not None:
        machine.turn()
        machine.settle()
    reached(machine, plan(1, 1.0, 1, 1.0, 3 * GIB))
    of_servers = [step for step in machine.asked if not isinstance(step, SetNodeSize) and "worker" not in str(step)]
    given = ["ps-0"] if tells else ["ps-0", "ps-1", "ps-2"]  # who doesn't know who leaves gives it to all
    more: list[Step] = [ResizeNode(name, Resources(0.5, 3 * GIB)) for name in given]
    assert of_servers[: len(more) + 1] == [*more, ScaleRole("ps", 1)]


@pytest.mark.parametrize(("room", "moves"), [(0, 1), (1, 2), (2, 2)])
def test_a_worker_that_lands_elsewhere_is_not_replaced_again_and_again(room: int, moves: int) -> None:
    """Hosts are wishes where a cluster's scheduler places nodes: two of three workers are wanted on a host with less room."""
    target = plan(3, 0.5, 1, 0.5)
    machine = Machine(target, no_luck)

    def place() -> None:
        for node in list(machine.nodes.values()):
            if not node.host:
                there = sum(one.host == "b" for one in machine.nodes.values())
                wanted = machine.asked and node.role == "worker" and there < room
                machine.nodes[node.id] = node._replace(host="b" if wanted else "a")

    place()
    goal = Goal(number=1, target=target, placement=(HostNodes("a", 1, 1), HostNodes("b", 2)), what="because")
    machine.state, _ = machine.state.advised(goal, 0.0, 0)
    for _ in range(40):
        machine.turn()
        machine.settle()
        place()
    assert [one.state for one in machine.done] == ["done"]
    assert len(machine.asked) == moves and all(isinstance(step, ReplaceNode) for step in machine.asked)
    assert sum(node.host == "b" for node in machine.nodes.values()) == room
