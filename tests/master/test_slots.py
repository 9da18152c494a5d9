"""Moving slots: what people ask for, what the parameter servers are told, and who comes and goes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import RemoteError
from dlrover_lite.protocol.messages import (
    Ack,
    Export,
    LeaseRequest,
    MoveOrder,
    NodeFailed,
    PsOrders,
    PsReport,
    TopologyRequest,
    Wait,
)
from dlrover_lite.protocol.profiles import HostUse, Profile, PsUse, WorkerUse
from dlrover_lite.protocol.questions import (
    CancelMovesRequest,
    DrainRequest,
    KillRequest,
    MoveRequest,
    Scaled,
    ScaleRequest,
    Status,
    StatusRequest,
    StoryRequest,
)
from dlrover_lite.transport.memory import VirtualClock
from tests.master.rig import PATIENT, RESOURCES, Rig, done

PAIR = ("ps-0", "ps-1")


def owned(status: Status) -> dict[str, int]:
    return {node.id: node.slots for node in status.nodes if node.slots}


def at_rest(status: Status) -> bool:
    return status.slot_map_version > 0 and not status.moves


def has(*servers: str) -> Any:
    return lambda status: at_rest(status) and sorted(owned(status)) == sorted(servers)


def states(status: Status) -> dict[str, str]:
    return {node.id: node.state for node in status.nodes}


def texts(rig: Rig, subject: str) -> list[str]:
    return [entry.text for entry in rig.ask("cli", StoryRequest(subject)).entries if entry.subject == subject]


def move(rig: Rig, target: str, *members: int) -> Any:
    return rig.ask("cli", MoveRequest(slot_sets.pack(slot_sets.of(members)), target))


def copying(rig: Rig, node: str) -> PsOrders:
    """The orders of a PS once it has a move to work on; all report meanwhile."""
    orders = rig.report(node)
    while not orders.moves:
        for other in PAIR:
            rig.report(other)
        orders = rig.report(node, orders=orders)
    return orders


def loads(row_bytes: np.ndarray[Any, Any]) -> bytes:
    return np.stack([np.zeros(4096), np.zeros(4096), np.zeros(4096), row_bytes]).astype(np.float32).tobytes()


@pytest.fixture
def pair(make: Any) -> Rig:
    rig = make(ps=2, samples=4000)
    rig.up(*PAIR, "worker-0", "worker-1")
    return rig


def test_a_server_is_told_its_slots_and_consumed_minibatches(make: Any) -> None:
    rig = make(ps=2, samples=8, batch_size=4, epochs=2, workers=1)
    rig.up("ps-0")
    assert rig.report("ps-0") == PsOrders(0)
    rig.up("ps-1", "worker-0")
    orders = rig.report("ps-1")
    assert (orders.version, slot_sets.describe(slot_sets.unpack(orders.owned))) == (1, "2048-4095")
    assert (orders.consumed_below, orders.consumed) == (0, [(0, [])])
    lease = rig.lease("worker-0")
    first = {**done(lease), "consumed": [(0, 1)]}
    rig.ask("worker-0", LeaseRequest("worker-0", want=False, **first))
    assert rig.report("ps-1").consumed == [(0, [(0, 1)])]
    rig.ask("worker-0", LeaseRequest("worker-0", lease.token, [(1, lease.stop)]))
    answer = rig.report("ps-1")
    assert (answer.consumed_below, answer.consumed) == ((1, [(1, [])]) if lease.stop == 2 else (0, [(0, [(0, 1)])]))
    rig.backend.ends("ps-0")
    rig.up("ps-2")
    assert rig.report("ps-0") == Ack()  # has ended


def test_quarantined_minibatches_are_not_consumed(make: Any) -> None:
    rig = make(samples=40, workers=2, max_skipped_minibatches=1)
    rig.up("ps-0", "worker-0", "worker-1")
    for worker in ("worker-0", "worker-1"):
        lease = rig.lease(worker)
        assert lease.start == 0
        rig.ask(worker, LeaseRequest(worker, lease.token, failed=0, error="no", give_back=True, want=False))
    assert rig.report("ps-0").consumed == [(0, [])]


def test_a_move_of_slots_from_the_wish_to_the_new_map(pair: Rig) -> None:
    assert move(pair, "ps-1", 5, 6, 4000) == Scaled(["move 1: 2 slots from ps-0 to ps-1"])
    orders = copying(pair, "ps-1")
    members = slot_sets.pack(slot_sets.of([5, 6]))
    assert orders.moves == [MoveOrder(1, "ps-0", "inproc://ps-0", "ps-1", members)]
    assert pair.report("ps-0", orders=orders).moves == orders.moves
    assert slot_sets.unpack(orders.owned).sum() == 2048
    pair.report("ps-1", orders=orders, received={1: 17})
    (under_way,) = pair.ask("cli", StatusRequest()).moves
    assert (under_way.id, under_way.source, under_way.target, under_way.slots) == (1, "ps-0", "ps-1", 2)
    assert (under_way.state, under_way.rows) == ("copying", 17)
    after = pair.report("ps-1", orders=orders, ready=[1])
    assert (after.moves, slot_sets.unpack(after.owned)[5], after.version) == ([], True, orders.version + 1)
    assert not slot_sets.unpack(pair.report("ps-0", orders=orders).owned)[5]
    assert pair.report("ps-1", orders=orders, ready=[1]) == after  # said again
    topology = pair.ask("worker-0", TopologyRequest("worker-0"))
    assert (topology.version, np.frombuffer(topology.slots, np.uint16)[5]) == (after.version, 1)
    assert [each.state for each in pair.ask("cli", StatusRequest()).moves] == ["committed"]
    for node in PAIR:
        pair.report(node, orders=after)
    status = pair.ask("cli", StatusRequest())
    assert (status.moves, owned(status)) == ([], {"ps-0": 2046, "ps-1": 2050})
    told = texts(pair, "ps-0")[-3:]
    assert told[0] == "move 1 is queued: 2 slots to ps-1"
    assert told[2].startswith("move 1 is done in ")
    assert move(pair, "ps-1", 5, 6) == Scaled([])


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (MoveRequest(slot_sets.pack(slot_sets.of([1])), "ps-9"), "no parameter server 'ps-9'"),
        (MoveRequest(slot_sets.pack(slot_sets.of([1])), "worker-0"), "no parameter server 'worker-0'"),
        (MoveRequest(slot_sets.pack(slot_sets.none()), "ps-1"), "no slots"),
        (DrainRequest("ps-9"), "The nearest is ps-"),
        (MoveRequest(slot_sets.pack(slot_sets.of([100])), "ps-1"), "part of move 1 from ps-0 to ps-1"),
    ],
)
def test_impossible_moves_and_drains_are_refused(pair: Rig, wish: Any, why: str) -> None:
    move(pair, "ps-1", 100)
    with pytest.raises(RemoteError) as refused:
        pair.ask("cli", wish)
    assert why in f"{refused.value.message} {refused.value.hint}"


def test_an_added_server_gets_its_share_of_slots(pair: Rig) -> None:
    actions = pair.ask("cli", ScaleRequest(ps=3)).actions
    assert actions == ["ps-2 is launched with 1 core and 1 GiB", "slots move when all parameter servers are up"]
    pair.follow(*PAIR, until=lambda status: states(status).get("ps-2") == "started")
    pair.up("ps-2")
    status = pair.follow(*PAIR, "ps-2", until=has(*PAIR, "ps-2"))
    assert all(1360 <= count <= 1370 for count in owned(status).values())
    assert [node for node, _ in pair.ask("worker-0", TopologyRequest("worker-0")).ps] == [*PAIR, "ps-2"]


def test_servers_on_fast_hosts_get_more_slots(pair: Rig) -> None:
    pair.backend.on = {"ps-2": "fast"}
    workers = (WorkerUse("worker-0", "here", 1.0, 50, 10.0), WorkerUse("worker-1", "fast", 1.0, 100, 10.0))
    servers = (PsUse("ps-0", "here", 1.0, 150, 5.0), PsUse("ps-1", "here", 1.0, 150, 5.0))
    hosts = HostUse("here", 8.0), HostUse("fast", 8.0)
    profile = Profile(
        job="rig-1",
        at=0.0,
        seconds=10.0,
        batch_size=4,
        samples=600,
        samples_so_far=600,
        workers=workers,
        ps=servers,
        hosts=hosts,
    )
    for _ in range(32):
        pair.master.slots.host_speeds.keep(profile)
    pair.ask("cli", ScaleRequest(ps=3))
    pair.follow(*PAIR, until=lambda status: states(status).get("ps-2") == "started")
    pair.up("ps-2")
    status = pair.follow(*PAIR, "ps-2", until=has(*PAIR, "ps-2"))
    counts = owned(status)
    assert counts["ps-2"] / counts["ps-0"] == pytest.approx(2.0, rel=0.1)
    assert counts["ps-0"] == pytest.approx(counts["ps-1"], rel=0.05)


def test_fewer_servers_are_emptied_first_and_then_end(pair: Rig) -> None:
    for node, held in (("ps-0", 10), ("ps-1", 1000)):
        pair.report(node, bytes=held)
    assert pair.ask("cli", ScaleRequest(ps=1)).actions == ["ps-0 leaves when its 2,048 slots have moved to others"]
    assert "ps-0" not in pair.backend.terminated
    with pytest.raises(RemoteError, match="about to end"):
        move(pair, "ps-0", 3000)
    status = pair.follow(*PAIR, until=lambda status: states(status)["ps-0"] == "ended (Succeeded)")
    assert (owned(status), pair.backend.terminated) == ({"ps-1": 4096}, ["ps-0"])
    assert pair.report("ps-0") == Ack()
    assert pair.ask("worker-0", TopologyRequest("worker-0")).ps == [("ps-1", "inproc://ps-1")]
    with pytest.raises(RemoteError, match="last parameter server"):
        pair.ask("cli", DrainRequest("ps-1"))


def test_a_leaving_server_is_called_back(pair: Rig) -> None:
    pair.ask("cli", ScaleRequest(ps=1))
    copying(pair, "ps-1")
    assert pair.ask("cli", ScaleRequest(ps=2)).actions[0] == "ps-1 stays"
    status = pair.follow(*PAIR, until=has(*PAIR))
    assert owned(status) == {"ps-0": 2048, "ps-1": 2048}
    assert len(pair.backend.launched) == 4


@pytest.mark.parametrize("replace", [False, True])
def test_a_drained_server_ends_when_its_slots_have_moved(pair: Rig, replace: bool) -> None:
    actions = pair.ask("cli", DrainRequest("ps-0", replace)).actions
    assert actions[0] == "ps-0 leaves when its 2,048 slots have moved to others"
    assert pair.ask("cli", DrainRequest("ps-0", replace)) == Scaled()
    if replace:
        pair.up("ps-2")
    pair.follow(*PAIR, *(["ps-2"] * replace), until=has("ps-1", *(["ps-2"] * replace)))
    status = pair.follow("ps-1", until=lambda status: states(status)["ps-0"] == "ended (Succeeded)")
    assert owned(status)["ps-1"] == (2048 if replace else 4096)
    assert pair.ask("cli", ScaleRequest(ps=2 if replace else 1)) == Scaled()


def test_a_worker_is_drained_unless_it_is_the_last(pair: Rig) -> None:
    assert pair.ask("cli", DrainRequest("worker-0")).actions == ["worker-0 is to leave: drained by request"]
    with pytest.raises(RemoteError, match="last worker"):
        pair.ask("cli", DrainRequest("worker-1"))
    replaced = pair.ask("cli", DrainRequest("worker-1", replace=True)).actions
    assert replaced == ["worker-1 is to leave: drained by request", "worker-2 is launched with 1 core and 1 GiB"]
    assert pair.backend.terminated == ["worker-0", "worker-1"]


def test_nodes_are_killed_and_replaced(pair: Rig) -> None:
    assert pair.ask("cli", KillRequest("worker-0")).actions == [
        "worker-0 is killed by request",
        "another one takes its place",
    ]
    pair.up("worker-2")
    pair.ask("cli", KillRequest("ps-1"))
    pair.up("ps-2")
    assert (pair.backend.terminated, pair.backend.kept) == (["worker-0", "ps-1"], ["ps-1"])
    assert pair.backend.launched[-1].follows == "ps-1"
    assert states(pair.ask("cli", StatusRequest()))["worker-0"] == "ended (Killed: by request)"
    with pytest.raises(RemoteError, match="worker-0 has ended already"):
        pair.ask("cli", KillRequest("worker-0"))
    with pytest.raises(RemoteError, match="no node 'worker-9'"):
        pair.ask("cli", KillRequest("worker-9"))


def test_cancelling_moves_cancels_the_drain_behind_them(pair: Rig) -> None:
    assert pair.ask("cli", CancelMovesRequest()) == Scaled()
    pair.ask("cli", DrainRequest("ps-0"))
    orders = copying(pair, "ps-1")
    actions = pair.ask("cli", CancelMovesRequest()).actions
    assert actions == ["move 1 from ps-0 to ps-1 is cancelled", "ps-0 stays"]
    status = pair.follow(*PAIR, until=at_rest)
    assert (owned(status), status.slot_map_version) == ({"ps-0": 2048, "ps-1": 2048}, orders.version + 1)
    assert pair.ask("cli", ScaleRequest(ps=2)) == Scaled()
    assert pair.report("ps-1", orders=orders, ready=[1]).moves == []  # too late
    assert owned(pair.ask("cli", StatusRequest())) == {"ps-0": 2048, "ps-1": 2048}


def test_rows_that_do_not_fit_are_refused_with_figures(pair: Rig) -> None:
    full = np.full(4096, RESOURCES.memory / 2048)
    orders = pair.report("ps-0")
    pair.report("ps-0", orders=orders, loads=loads(full), bytes=RESOURCES.memory)
    with pytest.raises(RemoteError, match=r"hold 1 GiB of rows, and ps-1 has room for 922 MiB within its 1 GiB"):
        move(pair, "ps-1", *range(2048))
    for wish in (DrainRequest("ps-0"), ScaleRequest(ps=1)):
        pair.report("ps-1", bytes=2 * RESOURCES.memory)  # so that ps-0 holds less
        with pytest.raises(RemoteError, match=r"ps-0 holds 1 GiB of rows.*ps-1 922 MiB"):
            pair.ask("cli", wish)
    assert move(pair, "ps-1", *range(1000)).actions
    with pytest.raises(RemoteError, match="has room for"):  # what is on its way counts
        move(pair, "ps-1", *range(1000, 2000))


def test_a_report_with_malformed_loads_is_dropped(pair: Rig) -> None:
    for bad in (b"short", loads(np.full(4096, np.nan)), loads(np.full(4096, -1.0))):
        pair.client("ps-0").send(PsReport("ps-0", 0, 0, 0, loads=bad))
    assert pair.client("ps-0").receive(0.1) is None
    while pair.server.malformed < 3:
        pair.ask("cli", StatusRequest())


def test_a_target_that_dies_before_it_owns_anything_is_replaced(pair: Rig) -> None:
    pair.ask("cli", ScaleRequest(ps=3))
    pair.up("ps-2")
    pair.follow(*PAIR, "ps-2", finish=False, until=lambda status: "copying" in [each.state for each in status.moves])
    pair.backend.ends("ps-2")
    pair.up("ps-3")
    status = pair.follow(*PAIR, "ps-3", until=has(*PAIR, "ps-3"))
    assert states(status)["ps-2"] == "ended (Killed)"
    assert any("is cancelled, ps-2 has ended" in text for text in texts(pair, "ps-2"))


def test_a_server_that_dies_before_there_is_a_map_is_replaced(make: Any) -> None:
    rig = make(ps=2)
    rig.up("ps-0", "worker-0")
    rig.backend.ends("ps-1")
    rig.up("ps-2")
    assert [node for node, _ in rig.ask("worker-0", TopologyRequest("worker-0")).ps] == ["ps-0", "ps-2"]


@pytest.mark.parametrize("dies", PAIR)
def test_a_server_with_slots_that_dies_while_they_move_is_followed(pair: Rig, dies: str) -> None:
    move(pair, "ps-1", *range(10))
    before = copying(pair, "ps-1")
    pair.backend.ends(dies)
    pair.backend.wait_for_launch("ps-2")
    assert pair.backend.launched[-1].follows == dies
    other = "ps-1" if dies == "ps-0" else "ps-0"
    orders = pair.report(other, orders=before)
    while orders.moves:  # cancelled as soon as the master knows
        orders = pair.report(other, orders=orders)
    asked = pair.client("worker-0").send(TopologyRequest("worker-0"))
    assert pair.report("ps-2").version > before.version  # it may be told before it has said hello
    pair.up("ps-2")
    topology = pair.client("worker-0").receive(20.0)
    assert topology is not None and topology.sequence == asked  # nobody is told of a server that can't be reached yet
    assert [node for node, _ in topology.body.ps] == [node if node != dies else "ps-2" for node in PAIR]
    assert all(endpoint for _, endpoint in topology.body.ps)
    status = pair.follow(other, "ps-2", until=has(other, "ps-2"))
    left, gained = ("ps-2", other) if dies == "ps-0" else (other, "ps-2")
    assert owned(status) == {left: 2038, gained: 2058}
    assert pair.report(dies) == Ack()
    told = texts(pair, dies)
    assert told[-2:] == ["ended: Killed", "ps-2 takes its place with its memory"] or "ended: Killed" in told
    assert f"launched with 1 core and 1 GiB in the place of {dies}" in texts(pair, "ps-2")


def test_a_server_out_of_memory_is_followed_by_a_larger_one(pair: Rig) -> None:
    pair.backend.ends("ps-1", "OOMKilled")
    pair.up("ps-2")
    spec = pair.backend.launched[-1]
    assert (spec.follows, spec.resources.memory) == ("ps-1", RESOURCES.memory * 3 // 2)
    assert "ps-2 takes its place with its memory, of which it may have 1.5 GiB instead of 1 GiB" in texts(pair, "ps-1")


def test_a_server_that_leaves_and_dies_is_followed_by_one_that_leaves(pair: Rig) -> None:
    pair.ask("cli", DrainRequest("ps-0"))
    pair.backend.ends("ps-0")
    pair.up("ps-2")
    status = pair.follow("ps-1", "ps-2", until=lambda status: states(status)["ps-2"] == "ended (Succeeded)")
    assert owned(status) == {"ps-1": 4096}
    assert len(pair.backend.launched) == 5


def test_memory_of_a_dead_server_without_slots_is_freed(pair: Rig) -> None:
    pair.ask("cli", ScaleRequest(ps=3))
    pair.up("ps-2")
    pair.backend.ends("ps-2")
    pair.up("ps-3")
    assert (pair.backend.launched[-1].follows, pair.backend.let_go) == ("", ["ps-2"])


def test_a_follower_without_its_predecessors_memory_fails_the_job(pair: Rig) -> None:
    pair.backend.ends("ps-0")
    pair.up("ps-2")
    pair.ask("ps-2", NodeFailed("ps-2", False, "the parameters of ps-0 are lost: nothing of its memory is left"))
    assert pair.ended().message == "ps-2: the parameters of ps-0 are lost: nothing of its memory is left"


def test_the_model_is_exported_when_every_slot_is_at_rest(make: Any) -> None:
    rig = make(ps=2, workers=1, samples=8, batch_size=4)
    rig.up(*PAIR, "worker-0")
    move(rig, "ps-1", 1)
    orders = copying(rig, "ps-1")
    rig.report("ps-1", orders=orders, ready=[1])  # committed: this one stays
    rig.ask("cli", DrainRequest("ps-0"))
    lease = rig.lease("worker-0")
    while not isinstance(lease, Wait):
        lease = rig.ask("worker-0", LeaseRequest("worker-0", **done(lease)))
    with pytest.raises(RemoteError, match="all samples have been trained on"):
        move(rig, "ps-1", 7)
    assert isinstance(rig.ask("worker-0", LeaseRequest("worker-0")), Wait)
    status = rig.follow(*PAIR, until=at_rest)
    assert owned(status) == {"ps-0": 2047, "ps-1": 2049}
    assert isinstance(rig.lease("worker-0"), Export)
    assert rig.backend.terminated == []


def test_silent_servers_are_replaced_with_their_memory_kept(make: Any) -> None:
    clock = VirtualClock()
    rig = make(samples=400, clock=clock, health=msgspec.structs.replace(PATIENT, heartbeat_seconds=0.5))
    rig.up("ps-0", "worker-0")
    while not any(spec.id == "ps-1" for spec in rig.backend.launched):
        clock.now += 0.1
        rig.ask("cli", StatusRequest())
    assert [spec.follows for spec in rig.backend.launched if spec.id == "ps-1"] == ["ps-0"]  # the worker is silent too
    assert rig.backend.kept == ["ps-0"]
