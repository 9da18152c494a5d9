"""Nodes that run out of memory: with how much they come back, who gives them room, and when there is none."""

from __future__ import annotations

import pytest

from dlrover_lite.core.units import Resources
from dlrover_lite.master.nodes.fleet import (
    FailJob,
    Fleet,
    Launch,
    Note,
    Terminate,
    WorkerGone,
)
from dlrover_lite.protocol.nodes import Observed
from tests.master.fleet_events import begun, ends, of


def test_a_worker_out_of_memory_and_later_ones_come_back_with_more() -> None:
    fleet, instructions = ends(begun(), "worker-0", "OOMKilled")
    (launch,) = of(Launch, instructions)
    assert launch.node.resources == Resources(2.0, 300)
    _, instructions = ends(fleet, "worker-1", "Killed")
    assert of(Launch, instructions)[0].node.resources == Resources(2.0, 300)


def test_workers_begun_together_with_too_little_memory_count_once() -> None:
    """None of them tells anything that the first one hadn't: the job would end before any was begun with more."""
    fleet, _ = begun(Resources(100.0, 100_000)).scale(12, 1.0)
    for i in range(12):
        fleet, instructions = ends(fleet, f"worker-{i}", "OOMKilled")
        assert [launch.node.resources for launch in of(Launch, instructions)] == [Resources(2.0, 300)]
    assert fleet.returns == {"worker": {"OOMKilled": (1.0,)}}


def test_a_worker_that_runs_out_of_ever_more_memory_ends_the_job() -> None:
    fleet, now, limits = begun(Resources(100.0, 100_000)), 1.0, []
    while True:
        fleet, instructions = ends(fleet, list(fleet.by_id)[-1] if limits else "worker-0", "OOMKilled", now)
        if of(FailJob, instructions):
            break
        now += 60.0
        fleet, instructions = fleet.tick(now) if fleet.pending else (fleet, instructions)
        limits += [launch.node.resources.memory for launch in of(Launch, instructions)]
    assert limits == [300, 450, 675, 1012]


def alone(capacity: Resources) -> Fleet:
    """A fleet of which one worker is left."""
    fleet, _ = begun(capacity).scale(1, 1.0)
    for node in ("worker-1", "worker-2"):
        fleet, _ = ends(fleet, node)
    return fleet


def test_job_fails_without_room_for_a_larger_worker() -> None:
    used = 2 * 100
    _, instructions = ends(alone(Resources(8.0, used + 250)), "worker-0", "OOMKilled")
    assert of(Launch, instructions)[0].node.resources.memory == 250
    _, instructions = ends(alone(Resources(8.0, used + 210)), "worker-0", "OOMKilled")
    (failure,) = of(FailJob, instructions)
    assert "worker-0 needs more memory than its 200 B, and 210 B are left" in failure.message
    assert not of(Launch, instructions)


@pytest.mark.parametrize("node", ["ps-0", "worker-1"])
def test_room_that_a_worker_is_about_to_leave_counts_for_the_next_one_that_needs_more(node: str) -> None:
    """Found by seed 963642: the job failed, as the only worker that stayed couldn't leave as well."""
    fleet, _ = ends(begun(Resources(8.0, 2 * 100 + 3 * 200 + 10)), "worker-0", "OOMKilled")
    assert fleet.by_id["worker-2"].state == "draining"
    fleet, instructions = ends(fleet, node, "OOMKilled")
    assert not of(FailJob, instructions)
    fleet, _ = ends(fleet, "worker-2", "Succeeded", 51.0)
    fleet, _ = fleet.tick(51.0)
    assert not fleet.pending
    assert sum(one.resources.memory for one in fleet.running) <= fleet.capacity.memory


def test_room_of_a_worker_that_comes_back_counts_for_nobody_else() -> None:
    fleet, _ = begun(Resources(8.0, 2 * 100 + 3 * 200 + 10)).scale(2, 1.0)
    fleet, _ = ends(fleet, "worker-2", "Succeeded")
    fleet, _ = fleet.scale(3, 1.0)
    fleet, _ = fleet.kill("worker-1", 1.0)
    assert fleet.by_id["worker-1"].state == "ending"
    fleet, _ = ends(fleet, "ps-0", "OOMKilled")
    fleet, _ = ends(fleet, "worker-1", "Killed", 2.0)
    for now in (2.0, 100.0):
        fleet, _ = fleet.tick(now)
    assert sum(one.most.memory for one in fleet.running) <= fleet.capacity.memory


@pytest.mark.parametrize("node", ["ps-0", "worker-0"])
def test_workers_give_their_memory_to_a_node_that_ran_out_of_its_own(node: str) -> None:
    """As few as will do, one at least stays, and what has taken its place waits until they have left."""
    capacity = Resources(8.0, 2 * 100 + 3 * 200 + 10)
    fleet, instructions = ends(begun(capacity), node, "OOMKilled")
    assert not of(FailJob, instructions) and not of(Launch, instructions)
    (leaves,) = of(Terminate, instructions)
    assert leaves.gently and leaves.node == "worker-2"
    assert fleet.plan.worker.count == 2 and fleet.workers_wanted == 3
    told = [note.text for note in of(Note, instructions)]
    assert any(text.startswith(f"gives its room to {node}: it needs more memory than its") for text in told)
    assert fleet.tick(50.0) == (fleet, []), "it hasn't left yet"
    fleet, instructions = ends(fleet, "worker-2", "Succeeded", 51.0)
    assert not of(Launch, instructions), "nobody takes its place"
    fleet, instructions = fleet.tick(51.0)
    (launch,) = of(Launch, instructions)
    assert launch.node.follows == ("ps-0" if node == "ps-0" else "")
    assert launch.node.resources.memory == (150 if node == "ps-0" else 300)
    assert sum(one.most.memory for one in fleet.running) <= capacity.memory
    assert fleet.take_room(60.0) == (fleet, []), "there is no room for it to come back"


def test_nobody_leaves_for_a_node_that_would_have_too_little_all_the_same() -> None:
    fleet, _ = begun(Resources(8.0, 100 + 100 + 3 * 200)).resized("ps-0", Resources(1.0, 2500))
    after, instructions = ends(fleet, "ps-0", "OOMKilled")
    assert of(FailJob, instructions) and not of(Terminate, instructions)
    assert after.plan == fleet.plan


def test_a_worker_that_leaves_is_not_replaced_by_itself() -> None:
    fleet, instructions = ends(begun(), "worker-0", "Succeeded")
    assert of(WorkerGone, instructions)
    assert not of(Launch, instructions)
    assert fleet.one_more_worker(2.0) == (fleet, [])  # others are at work
    for other in ("worker-1", "worker-2"):
        fleet, _ = ends(fleet, other, "Succeeded")
    fleet, instructions = fleet.one_more_worker(2.0)
    assert [launch.node.id for launch in of(Launch, instructions)] == ["worker-3"]


def test_a_node_that_used_more_than_its_limit_comes_back_with_more_than_that() -> None:
    """As in a pod, where it may take what is kept free for others, too."""
    fleet = begun(Resources(8.0, 10_000))
    seen = Observed(0.5, 1.0, "OOMKilled", -9, used_memory=400)
    fleet, instructions = fleet.observed("ps-0", seen, 1.0, owns=True)
    (launch,) = of(Launch, instructions)
    assert (launch.node.follows, launch.node.resources.memory) == ("ps-0", 600)


def test_job_fails_without_room_for_a_larger_server() -> None:
    """The last worker doesn't leave for it: nobody would be there to train."""
    _, instructions = ends(alone(Resources(8.0, 100 + 200 + 110)), "ps-0", "OOMKilled")
    assert "ps-0 needs more memory than its 100 B, and 110 B are left" in of(FailJob, instructions)[0].message
    assert not of(Launch, instructions)
