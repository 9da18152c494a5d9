"""Nodes as a state machine: events in, instructions out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.base import NodeEvent
from dlrover_lite.brain.plan import Plan, RolePlan
from dlrover_lite.master.lifecycle import RELAUNCHES, FailJob, Launch, Nodes, WorkerGone
from dlrover_lite.units import Resources

PLAN = Plan(RolePlan(2, Resources(1.0, 100)), RolePlan(3, Resources(2.0, 200)))


def begun() -> Nodes:
    return Nodes(PLAN).begin()[0]


def exited(node: str, reason: str | None = "Killed", detail: str = "") -> NodeEvent:
    return NodeEvent(1, node, "exited", 0.0, reason, detail=detail)  # type: ignore[arg-type]


def started(node: str) -> NodeEvent:
    return NodeEvent(1, node, "started", 0.0)


def test_the_plan_is_launched() -> None:
    nodes, instructions = Nodes(PLAN).begin()
    assert [instruction.node.id for instruction in instructions if isinstance(instruction, Launch)] == [
        "ps-0",
        "ps-1",
        "worker-0",
        "worker-1",
        "worker-2",
    ]
    assert {node.resources for node in nodes.of("ps")} == {Resources(1.0, 100)}
    assert {node.resources for node in nodes.of("worker")} == {Resources(2.0, 200)}
    assert all(node.state == "launched" for node in nodes.by_id.values())


def test_servers_are_up_when_all_have_said_hello_in_whatever_order_it_is_heard() -> None:
    nodes = begun().hello("ps-0", "ipc://a")
    assert not nodes.all_ps_up
    nodes = nodes.event(started("ps-0"))[0].event(started("ps-1"))[0]
    assert nodes.by_id["ps-0"].state == "up"  # a report that comes late takes nothing back
    nodes = nodes.hello("ps-1", "ipc://b")
    assert nodes.all_ps_up
    assert [node.endpoint for node in nodes.of("ps")] == ["ipc://a", "ipc://b"]
    assert nodes.hello("ps-7", "x") == nodes.hello("stranger", "") == nodes


def test_a_dead_worker_is_replaced_under_a_new_name() -> None:
    nodes, instructions = begun().event(exited("worker-1", "OOMKilled", "at its limit of 200 bytes"))
    gone, launch = instructions
    assert gone == WorkerGone("worker-1")
    assert isinstance(launch, Launch)
    assert launch.node.id == "worker-3"
    assert launch.node.resources == Resources(2.0, 200)
    assert nodes.by_id["worker-1"].state == "ended"
    assert "OOMKilled: at its limit" in nodes.by_id["worker-1"].reason
    assert nodes.event(exited("worker-1")) == (nodes, [])
    assert nodes.hello("worker-1", "late") == nodes


def test_the_budget_for_replacements() -> None:
    nodes = begun()
    for i in range(RELAUNCHES):
        nodes, instructions = nodes.event(exited(f"worker-{i}"))
        assert isinstance(instructions[1], Launch)
    nodes, (gone, failure) = nodes.event(exited(f"worker-{RELAUNCHES}"))
    assert gone == WorkerGone(f"worker-{RELAUNCHES}")
    assert isinstance(failure, FailJob)
    assert "workers keep ending" in failure.message
    assert "worker-0: Killed" in failure.message
    assert isinstance(nodes.one_more_worker()[1][0], FailJob)


def test_a_worker_that_leaves_is_not_replaced_by_itself() -> None:
    nodes, instructions = begun().event(exited("worker-0", "Succeeded"))
    assert instructions == [WorkerGone("worker-0")]
    _, (launch,) = nodes.one_more_worker()
    assert isinstance(launch, Launch)
    assert launch.node.id == "worker-3"


def test_the_persons_own_error_is_not_tried_again() -> None:
    _, instructions = begun().event(exited("worker-0", "UserError"))
    assert [type(instruction) for instruction in instructions] == [WorkerGone, FailJob]


@pytest.mark.parametrize("reason", ["Killed", "OOMKilled", "Unknown", "UserError", "Succeeded", None])
def test_a_server_that_ends_takes_the_job_with_it(reason: str | None) -> None:
    _, (failure,) = begun().event(exited("ps-1", reason))
    assert isinstance(failure, FailJob)
    assert "ps-1" in failure.message
    assert str(reason or "Unknown") in failure.message
    assert "parameters are lost" in failure.message


def test_when_the_job_is_done_ends_are_just_ends() -> None:
    nodes = begun().finished()
    for node in list(nodes.by_id):
        nodes, instructions = nodes.event(exited(node))
        assert instructions == []
    assert nodes.running == []


NODES = st.sampled_from(["ps-0", "ps-1", "worker-0", "worker-1", "worker-2", "worker-3", "worker-5", "stranger"])
EVENTS = st.one_of(
    st.builds(started, NODES),
    st.builds(exited, NODES, st.sampled_from(["Killed", "Succeeded", "OOMKilled", "Unknown", None])),
    NODES,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=40))
def test_any_history_keeps_the_number_of_workers_or_says_why_not(history: list[NodeEvent | str]) -> None:
    nodes, failures, left = begun(), 0, 0
    for thing in history:
        if isinstance(thing, str):
            nodes = nodes.hello(thing, f"ipc://{thing}")
            continue
        known = set(nodes.by_id)
        nodes, instructions = nodes.event(thing)
        launched = [i.node for i in instructions if isinstance(i, Launch)]
        assert all(node.id not in known for node in launched)
        assert all(nodes.by_id[node.id] == node for node in launched)
        failures += sum(isinstance(i, FailJob) for i in instructions)
        left += thing.kind == "exited" and thing.reason == "Succeeded" and WorkerGone(thing.node) in instructions
    running = [node for node in nodes.running if node.role == "worker"]
    assert len(running) == 3 - left or failures
    assert nodes.relaunches <= RELAUNCHES
    assert all(node.state == "ended" or not node.reason for node in nodes.by_id.values())
