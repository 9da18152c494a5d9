"""Pods that find no room: what is told of their nodes, and what follows of how much there is."""

from __future__ import annotations

from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.nodes import NodeSpec, Observed
from tests.k8s.book_world import SMALL, World


def test_a_node_for_which_a_quota_leaves_nothing_waits_for_room_and_is_tried_again() -> None:
    world = World()
    world.book.launch(NodeSpec("worker-0", "worker", SMALL, ""), world.now)
    world.take()
    world.book.create_failed(world.calls.popleft().pod, "no quota", final=False, no_room=True, now=world.now, at=1.0)
    assert world.node("worker-0") == Observed(detail="pending: no quota", no_room="no quota")
    world.settle(3)
    assert world.node("worker-0") == Observed(1.0, host="host-a")


def without_room(patience_seconds: float = 60.0) -> World:
    """Three workers run, and a parameter server finds no room."""
    world = World(patience_seconds=patience_seconds)
    for number in range(3):
        world.run(f"worker-{number}")
    world.book.launch(NodeSpec("ps-0", "ps", SMALL, ""), world.now)
    world.take()
    world.call()
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
    world.change("ads-1-ps-0", phase="Pending", conditions=[why])
    while world.events:
        world.deliver()
    return world


THREE = Resources(3 * SMALL.cores, 3 * SMALL.memory)


def test_what_has_only_found_room_as_another_left_says_how_much_there_is() -> None:
    world = without_room()
    world.book.terminate("worker-2", 0.0, keep_memory=False, now=world.now, at=world.now)
    while "ads-1-worker-2" in world.pods:
        world.now += 1.0
        world.talk()
        world.take()
        world.call()
        world.finish()
        world.deliver()
    world.settle(1)
    assert world.node("ps-0").started_at is not None and world.book.room_there_is(world.now) == THREE
    assert world.book.room_there_is(world.now + 900.0) is None, "others may have left meanwhile"


def test_a_cluster_that_grows_is_given_the_time_for_it() -> None:
    world = without_room(patience_seconds=300.0)
    world.now += 299.0
    assert world.book.room_there_is(world.now) is None
    world.now += 2.0
    assert world.book.room_there_is(world.now) == THREE


def test_what_finds_no_room_for_long_says_how_much_there_is_until_more_finds_some() -> None:
    world = without_room()
    assert world.book.room_there_is(world.now) is None
    world.now += 60.0
    assert world.book.room_there_is(world.now) == THREE
    world.start("ads-1-ps-0")
    world.deliver()
    assert world.book.room_there_is(world.now) is None
