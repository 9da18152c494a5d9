"""Workers give their room to a parameter server that finds none: which of them, what becomes of the plan, and when they come back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.master.nodes.fleet import Fleet, Launch, Terminate
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.master.nodes.preemption import fitting, who_gives_way
from dlrover_lite.master.nodes.reconciler import NO_ROOM_SECONDS
from dlrover_lite.protocol.hosts import Host, less
from dlrover_lite.protocol.messages import PsReport
from dlrover_lite.protocol.nodes import Observed
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.questions import ResizeRequest, ScaleRequest, StoryRequest
from dlrover_lite.transport.memory import VirtualClock
from tests.master.rig import CAPACITY, RESOURCES, Rig

WHY = "0/2 nodes are available: 2 Insufficient cpu"
PS, WORKER = Resources(2.0, 2 * GIB), Resources(1.0, GIB)


def worker(number: int, cores: float = 1.0, state: Any = "up") -> Node:
    return Node(f"worker-{number}", "worker", Resources(cores, int(cores * GIB)), state)


def names(nodes: list[Node]) -> list[str]:
    return [node.id for node in nodes]


def test_the_newest_that_arent_at_work_go_first_and_no_more_than_needed() -> None:
    nodes = [worker(0), worker(1, state="started"), worker(2), worker(3, state="started"), worker(4)]
    placed = {node.id: "a" for node in nodes}
    assert names(who_gives_way(WORKER, nodes, placed, {"a": Resources(5.0, 5 * GIB)})) == ["worker-3"]
    assert names(who_gives_way(PS, nodes, placed, {"a": Resources(5.0, 5 * GIB)})) == ["worker-3", "worker-1"]
    assert names(who_gives_way(PS, nodes, placed, {"a": Resources(6.0, 6 * GIB)})) == ["worker-3"], "a core is free"


def test_they_are_on_one_host_where_it_fits() -> None:
    nodes = [Node("ps-1", "ps", PS, "up"), *(worker(number) for number in range(4))]
    placed = {"ps-1": "a", "worker-0": "a", "worker-1": "b", "worker-2": "b", "worker-3": "a"}
    hosts = {"a": Resources(4.0, 4 * GIB), "b": Resources(2.0, 2 * GIB)}
    assert names(who_gives_way(PS, nodes, placed, hosts)) == ["worker-3", "worker-0"]
    assert names(who_gives_way(PS, nodes, placed, {**hosts, "a": Resources(3.0, 3 * GIB)})) == [
        "worker-3",
        "worker-0",
    ], "it has more than is told: they run there"
    large = Resources(3.0, 3 * GIB)
    assert who_gives_way(large, nodes, placed, hosts) == [], "none is large enough without its parameter server"
    assert names(who_gives_way(large, nodes, placed, {"a": hosts["a"]})) == ["worker-2"], "nobody knows b's size"


def test_they_are_on_the_host_that_has_the_memory_of_the_server() -> None:
    """Found by seed 972564: one worker after the other left hosts where the server could never start."""
    nodes = [worker(0), worker(1), worker(2)]
    placed, hosts = {"worker-0": "a", "worker-1": "b", "worker-2": "b"}, {"a": WORKER, "b": PS}
    assert names(who_gives_way(WORKER, nodes, placed, hosts)) == ["worker-0"]
    assert names(who_gives_way(WORKER, nodes, placed, hosts, on="b")) == ["worker-2"]
    assert names(who_gives_way(PS, nodes, placed, hosts, on="a")) == [], "it wouldn't help"


def test_who_has_no_host_goes_only_with_one_that_has() -> None:
    nodes = [worker(0), worker(1, state="launched"), worker(2, state="launched")]
    assert names(who_gives_way(WORKER, nodes, {"worker-0": "a"}, {})) == ["worker-2", "worker-1", "worker-0"]
    assert who_gives_way(WORKER, nodes, {}, {}) == [], "nobody has taken anything"
    assert who_gives_way(WORKER, [worker(0, state="draining")], {"worker-0": "a"}, {}) == []


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.sampled_from(["up", "started"])), max_size=10),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 6)),
    st.integers(1, 6),
)
def test_what_leaves_makes_room_on_a_host_and_nobody_leaves_in_vain(
    workers: list[tuple[str, int, str]], free: dict[str, int], cores: int
) -> None:
    nodes = [worker(number, cores, state) for number, (_, cores, state) in enumerate(workers)]
    placed = {node.id: host for node, (host, _, _) in zip(nodes, workers, strict=True)}
    size = {host: sum(its for there, its, _ in workers if there == host) + more for host, more in free.items()}
    hosts = {host: Resources(float(its), its * GIB) for host, its in size.items()}
    needed = Resources(float(cores), cores * GIB)
    chosen = who_gives_way(needed, nodes, placed, hosts)
    touched = {placed[node.id] for node in chosen}
    assert len(touched) <= 1
    for host in touched & hosts.keys():
        staying = [node.most for node in nodes if placed[node.id] == host and node not in chosen]
        assert fitting(needed, less(hosts[host], staying)) >= 1
        assert len(chosen) == 1 or not fitting(needed, less(hosts[host], [*staying, chosen[-1].most]))
    if not chosen:
        assert all(size.get(host, cores) < cores for host in placed.values())


# --- the fleet ------------------------------------------------------------------------------------------------------

FLEET = Fleet(Plan(RolePlan(1, PS), RolePlan(3, WORKER)), Resources(5.0, 5 * GIB)).begin(0.0)[0]


def ends(fleet: Fleet, node: str) -> Fleet:
    return fleet.observed(node, Observed(ended_at=1.0, reason="Killed"), 1.0)[0]


def test_who_gives_way_isnt_replaced_until_there_is_room() -> None:
    fleet, told = FLEET.give_way(["worker-2", "worker-1"], "ps-0", WHY, 1.0)
    assert [one.node for one in told if isinstance(one, Terminate)] == ["worker-2", "worker-1"]
    assert (fleet.plan.worker.count, fleet.workers_wanted) == (1, 3)
    fleet = ends(ends(fleet, "worker-1"), "worker-2")
    full = Fleet(fleet.plan, Resources(3.5, 5 * GIB), fleet.by_id, workers_wanted=3)
    assert full.take_room(2.0) == (full, [])
    assert full.one_more_worker(2.0) == (full, [])
    fleet, told = fleet.take_room(2.0)
    assert [one.node.id for one in told if isinstance(one, Launch)] == ["worker-3", "worker-4"]
    assert (fleet.plan.worker.count, fleet.workers_wanted) == (3, 0)


def test_they_come_back_one_by_one_as_far_as_there_is_room_and_one_in_any_case() -> None:
    fleet, _ = FLEET.give_way(["worker-2", "worker-1", "worker-0"], "ps-0", WHY, 1.0)
    assert fleet.plan.worker.count == 1, "a job has one at least"
    for name in ("worker-0", "worker-1", "worker-2"):
        fleet = ends(fleet, name)
    assert fleet.one_more_worker(2.0) == (fleet, [])
    for cores, count in ((2.0, 1), (4.0, 2), (4.5, 2), (9.0, 3)):
        roomy = Fleet(fleet.plan, Resources(cores, 9 * GIB), fleet.by_id, workers_wanted=fleet.workers_wanted)
        fleet, _ = roomy.take_room(2.0)
        assert (len(fleet.staying), fleet.plan.worker.count) == (count, count)
    assert fleet.workers_wanted == 0


def test_another_number_of_workers_goes_before_those_that_gave_way() -> None:
    fleet, _ = FLEET.give_way(["worker-2"], "ps-0", WHY, 1.0)
    assert fleet.scale(2, 2.0)[0].workers_wanted == 0
    assert fleet.drain("worker-1", 2.0)[0].workers_wanted == 2


# --- the master -----------------------------------------------------------------------------------------------------


def step(rig: Rig, seconds: float) -> None:
    """Let time pass for the master."""
    for _ in range(int(seconds / 0.5)):
        rig.clock.now += 0.5
        rig.step()


def without_room(make: Any, *, workers: int = 3) -> Rig:
    """A master whose PS has been lost, and finds no room: workers have taken its place."""
    rig: Rig = make(samples=4000, workers=workers, clock=VirtualClock())
    rig.backend.hosts = [Host("a", PS), Host("b", PS)]
    rig.backend.on = {"ps-0": "a", "worker-0": "b", "worker-1": "b", "worker-2": "a", "ps-1": "a"}
    rig.up("ps-0", *(f"worker-{number}" for number in range(workers)))
    rig.ask("ps-0", PsReport("ps-0", 0, 0, 0))
    step(rig, 2.0)
    rig.backend.no_room["ps-1"] = WHY
    rig.backend.ends("ps-0")
    step(rig, 1.0)
    assert rig.backend.launched[-1].id == "ps-1"
    return rig


def finds_room(rig: Rig, node: str) -> None:
    rig.backend.no_room.pop(node)
    rig.backend.starts(node)
    rig.up(node)
    rig.ask(node, PsReport(node, 0, 0, 0))


def test_a_worker_gives_its_room_to_a_server_that_has_waited_for_a_while(make: Any) -> None:
    rig = without_room(make)
    step(rig, NO_ROOM_SECONDS - 3.0)
    assert rig.backend.terminated == [], "what ended elsewhere may have left some"
    step(rig, 4.0)
    assert rig.backend.terminated == ["worker-2"]
    story = rig.ask("cli", StoryRequest("worker-2")).entries
    assert f"gives its room to ps-1: {WHY}" in [entry.text for entry in story]
    assert rig.master.fleet.plan.worker.count == 2
    finds_room(rig, "ps-1")
    rig.backend.hosts = [Host("a", RESOURCES), Host("b", PS)]  # what has found room
    step(rig, 60.0)
    assert rig.backend.launched[-1].id == "ps-1", "there is no room for a third worker"
    rig.backend.hosts = [Host("a", PS), Host("b", PS)]
    step(rig, 20.0)
    assert rig.backend.launched[-1].id == "worker-3"


def test_a_worker_leaves_the_host_that_the_server_has_to_start_on(make: Any) -> None:
    rig = without_room(make)
    rig.backend.has_to_be_on["ps-1"] = "b"
    rig.backend.starts("ps-1")
    step(rig, NO_ROOM_SECONDS + 1.0)
    assert rig.backend.terminated == ["worker-1"]


def test_the_next_one_follows_if_that_wasnt_enough_and_not_before_the_first_has_ended(make: Any) -> None:
    rig = without_room(make)
    rig.backend.is_slow_to_end = True
    step(rig, NO_ROOM_SECONDS + 20.0)
    assert rig.backend.terminated == ["worker-2"]
    rig.backend.ends("worker-2")
    step(rig, NO_ROOM_SECONDS - 2.0)
    assert rig.backend.terminated == ["worker-2"]
    step(rig, 4.0)
    assert rig.backend.terminated == ["worker-2", "worker-1"]


def test_a_master_that_comes_back_still_knows_who_gave_way(make: Any) -> None:
    rig = without_room(make)
    step(rig, NO_ROOM_SECONDS + 1.0)
    rig.kill()
    rig.start()
    step(rig, NO_ROOM_SECONDS - 2.0)
    finds_room(rig, "ps-1")
    step(rig, 20.0)
    assert [spec.id for spec in rig.backend.launched][-2:] == ["ps-1", "worker-3"]


def test_hosts_that_nobody_may_read_are_known_by_what_has_fitted(make: Any) -> None:
    rig: Rig = make(samples=4000, workers=3, clock=VirtualClock())
    rig.backend.hosts = [Host("", CAPACITY)]
    rig.backend.on = {"ps-0": "b", "worker-0": "b", "worker-1": "a", "worker-2": "a"}
    rig.up("ps-0", "worker-0", "worker-1", "worker-2")
    rig.ask("ps-0", PsReport("ps-0", 0, 0, 0))
    rig.ask("cli", ResizeRequest("ps-0", memory=2 * GIB))
    step(rig, 3.0)
    rig.backend.no_room["ps-1"] = WHY
    rig.backend.ends("ps-0")
    step(rig, NO_ROOM_SECONDS + 2.0)
    assert rig.backend.terminated == ["worker-0"], "two would have to leave the other host"


def test_nobody_gives_way_to_a_server_that_others_dont_wait_for(make: Any) -> None:
    rig: Rig = make(samples=4000, clock=VirtualClock())
    rig.up("ps-0", "worker-0", "worker-1")
    rig.ask("ps-0", PsReport("ps-0", 0, 0, 0))
    rig.backend.no_room["ps-1"] = WHY
    rig.ask("cli", ScaleRequest(ps=2))
    step(rig, 3 * NO_ROOM_SECONDS)
    assert rig.backend.launched[-1].id == "ps-1" and rig.backend.terminated == []


def test_workers_give_way_to_the_first_servers_of_a_job(make: Any) -> None:
    rig: Rig = make(samples=4000, ps=2, clock=VirtualClock())
    rig.up("ps-0", "worker-0", "worker-1")
    rig.backend.no_room["ps-1"] = WHY
    rig.backend.starts("ps-1")
    step(rig, NO_ROOM_SECONDS + 2.0)
    assert rig.backend.terminated == ["worker-1"]
