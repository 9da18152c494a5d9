"""Scaling, stories, and nodes that fall silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dlrover_lite.core.errors import RemoteError
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs import events
from dlrover_lite.master.cadence import USUAL
from dlrover_lite.master.nodes.reconciler import AWAY_SECONDS
from dlrover_lite.protocol.hosts import Host, total_of
from dlrover_lite.protocol.messages import Heartbeat, PsReport, TopologyRequest
from dlrover_lite.protocol.questions import Scaled, ScaleRequest, StatusRequest, Story, StoryRequest
from dlrover_lite.transport.memory import VirtualClock
from tests.master.rig import CAPACITY, PATIENT, Rig


def test_workers_are_scaled_up_and_down(make: Any) -> None:
    rig = make(samples=4000)
    rig.up("ps-0", "worker-0", "worker-1")
    assert rig.ask("cli", ScaleRequest(workers=2)) == Scaled()
    more = rig.ask("cli", ScaleRequest(workers=3))
    assert more == Scaled(["worker-2 is launched with 1 core and 1 GiB"])
    rig.up("worker-2")
    fewer = rig.ask("cli", ScaleRequest(workers=1, ps=1))
    assert [action.split()[0] for action in fewer.actions] == ["worker-2", "worker-1"]
    assert rig.backend.terminated == ["worker-2", "worker-1"]
    rig.kill()
    rig.start()
    states = {}
    while {states.get("worker-1"), states.get("worker-2")} != {"ended (Succeeded)"}:
        states = {node.id: node.state for node in rig.ask("cli", StatusRequest()).nodes}
    assert (states["ps-0"], states["worker-0"]) == ("up", "up")
    assert rig.ask("cli", ScaleRequest(workers=1)) == Scaled()


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (ScaleRequest(ps=7), "Ask for at most 6"),
        (ScaleRequest(workers=4, ps=5), "Ask for at most 3"),
        (ScaleRequest(workers=3, ps=0), "0 parameter servers can't hold a model"),
        (ScaleRequest(ps=5000), "Ask for at most 4096"),
        (ScaleRequest(workers=0), "0 workers can't train"),
        (ScaleRequest(workers=-1), "Expected `int` >= 0"),
        (ScaleRequest(workers=8), "Ask for at most 7"),
    ],
)
def test_impossible_scale_requests_are_refused(rig: Rig, wish: ScaleRequest, why: str) -> None:
    rig.up("ps-0")
    with pytest.raises(RemoteError) as refused:
        rig.ask("cli", wish)
    assert why in f"{refused.value.message} {refused.value.hint}"
    assert rig.ask("cli", ScaleRequest()) == Scaled()


def test_story_of_nodes_and_minibatches_can_be_asked(make: Any) -> None:
    rig = make(samples=400)
    rig.up("ps-0", "worker-0", "worker-1")
    lease = rig.lease("worker-1")
    rig.backend.ends("worker-1", "Unknown")
    rig.up("worker-2")
    story = rig.ask("cli", StoryRequest("worker-1"))
    assert isinstance(story, Story)
    texts = [entry.text for entry in story.entries if entry.subject == "worker-1"]
    assert texts == [
        "launched with 1 core and 1 GiB",
        "its process runs",
        "is up",
        "ended: Unknown",
        "worker-2 takes its place",
    ]
    rig.lease("worker-2")
    about = [entry.text for entry in rig.ask("cli", StoryRequest(f"0/{lease.start}")).entries]
    assert about == ["leased to worker-1", "to do again, after the end of worker-1", "leased to worker-2"]
    with pytest.raises(RemoteError, match="worker-9"):
        rig.ask("cli", StoryRequest("worker-9"))
    rig.backend.ends("ps-0", "UserError")
    outcome = rig.ended()
    assert "Its story:" in outcome.message
    assert "ps-0: ended: UserError" in outcome.message
    written = events.read(rig.directory).entries
    assert {"leased to worker-2", "ended: UserError"} <= {entry.text for entry in written}


def pass_time(rig: Rig, *, until: Callable[[], bool]) -> None:
    """Of the master's clock, in small steps, each with a word of ps-0."""
    while not until():
        rig.clock.now += 0.1  # type: ignore[attr-defined]
        rig.ask("ps-0", PsReport("ps-0", 0, 0, 0))


def is_launched(rig: Rig, node: str) -> bool:
    return any(spec.id == node for spec in rig.backend.launched)


def test_nodes_that_fall_silent_are_given_up(make: Any) -> None:
    rig = make(samples=400, clock=VirtualClock(), health=msgspec.structs.replace(PATIENT, heartbeat_seconds=0.5))
    rig.up("ps-0", "worker-0")
    pass_time(rig, until=lambda: is_launched(rig, "worker-2"))
    assert rig.backend.terminated == ["worker-0"]  # the other one speaks
    rig.up("worker-2")
    assert "ended (Hung: no heartbeat for 0.5 s)" in [node.state for node in rig.ask("cli", StatusRequest()).nodes]


def test_a_worker_that_waits_for_the_map_is_alive_as_long_as_it_asks(make: Any) -> None:
    clock = VirtualClock()
    rig = make(ps=2, samples=400, clock=clock, health=msgspec.structs.replace(PATIENT, heartbeat_seconds=1.0))
    rig.up("ps-0", "worker-0")  # the other server finds no room
    client = rig.client("worker-0")
    asked = client.send(TopologyRequest("worker-0"))
    for _ in range(8):
        clock.now += 0.5
        client.send(TopologyRequest("worker-0"), sequence=asked)
        rig.ask("cli", StatusRequest())
    assert {node.id: node.state for node in rig.ask("cli", StatusRequest()).nodes}["worker-0"] == "up"


def test_nodes_without_progress_are_given_up(make: Any) -> None:
    clock, health = VirtualClock(), msgspec.structs.replace(PATIENT, progress_seconds=60.0)
    rig = make(samples=400, clock=clock, health=health)
    rig.up("ps-0", "worker-0", "worker-1")
    later = clock.now + 62.0  # what passed before it began doesn't count
    pass_time(rig, until=lambda: clock.now > later)
    for node, seconds in (("worker-0", 59.0), ("worker-1", 61.0)):
        rig.client(node).send(Heartbeat(node, "minibatch 17 of epoch 0", seconds))
    pass_time(rig, until=lambda: is_launched(rig, "worker-2"))
    rig.up("worker-2")
    states = {node.id: node.state for node in rig.ask("cli", StatusRequest()).nodes}
    assert states["worker-1"] == "ended (Hung: no progress for 60 s, in minibatch 17 of epoch 0)"
    assert states["worker-0"] == "up"


def test_a_worker_that_waits_for_a_missing_server_is_given_up_only_once_that_is_back(make: Any) -> None:
    clock, health = VirtualClock(), msgspec.structs.replace(PATIENT, progress_seconds=5.0)
    rig = make(samples=400, clock=clock, health=health)
    rig.up("ps-0", "worker-0", "worker-1")
    rig.backend.no_room["ps-1"] = "no host has room"
    rig.backend.ends("ps-0")
    began = clock.now

    def passes(seconds: float) -> None:
        for _ in range(int(seconds / 0.5)):
            clock.now += 0.5
            rig.client("worker-0").send(Heartbeat("worker-0", "a pull", clock.now - began))
            rig.step()

    passes(8.0)
    assert rig.backend.launched[-1].id == "ps-1" and rig.backend.terminated == []
    rig.backend.no_room.clear()
    rig.backend.starts("ps-1")
    rig.up("ps-1")
    passes(4.0)
    assert rig.backend.terminated == []
    passes(3.0)
    assert rig.backend.terminated == ["worker-0"]


def test_nodes_that_never_come_up_are_given_up(make: Any) -> None:
    rig = make(samples=400, clock=VirtualClock(), health=msgspec.structs.replace(PATIENT, startup_seconds=0.3))
    rig.up("ps-0", "worker-0")
    pass_time(rig, until=lambda: is_launched(rig, "worker-2"))
    states = {node.id: node.state for node in rig.ask("cli", StatusRequest()).nodes}
    assert states["worker-1"] == "ended (StartupTimeout: it did not come up within 0.3 s)"
    assert states["worker-0"] == "up"


def test_a_node_that_waits_for_a_host_or_an_image_isnt_given_up_and_says_so(make: Any) -> None:
    rig = make(samples=400, clock=VirtualClock(), health=msgspec.structs.replace(PATIENT, startup_seconds=0.3))
    rig.backend.awaited["worker-2"] = "pending: 0/3 nodes are available"
    rig.up("ps-0", "worker-0")
    pass_time(rig, until=lambda: is_launched(rig, "worker-2"))
    later = rig.clock.now + 5.0
    pass_time(rig, until=lambda: rig.clock.now > later)
    states = {node.id: node.state for node in rig.ask("cli", StatusRequest()).nodes}
    assert states["worker-2"] == "launched (pending: 0/3 nodes are available)"
    rig.backend.awaited.clear()
    rig.backend.starts("worker-2")
    pass_time(rig, until=lambda: is_launched(rig, "worker-3"))


def test_the_story_tells_each_phase_of_a_start_once(make: Any) -> None:
    rig = make(samples=4000)
    phases = [
        "pending: no host is chosen yet",
        "pulling: on host-a",
        "pending: no host is chosen yet",
        "starting: soon",
    ]
    for words in phases:
        rig.backend.awaited["worker-0"] = words
        rig.backend.starts("worker-0")
        rig.step_until(lambda words=words: rig.master.reconciler.awaited("worker-0") == words)
    for number in range(100):
        rig.backend.awaited["worker-0"] = f"pending: 0/{number} nodes are available"
        rig.backend.starts("worker-0")
        rig.step_until(lambda: rig.master.reconciler.awaited("worker-0") == rig.backend.awaited["worker-0"])
    told = [entry.text for entry in rig.ask("cli", StoryRequest("worker-0")).entries]
    waits = [text for text in told if text.partition(":")[0] in ("pending", "pulling", "starting")]
    assert waits[:3] == [phases[0], phases[1], phases[3]] and len(waits) == 8


def test_the_brain_is_told_how_long_nodes_take_until_they_are_up(make: Any) -> None:
    rig = make(samples=4000, clock=VirtualClock())
    assert rig.master.executor.standing().launch_seconds == 0.0
    rig.clock.now += 40.0
    rig.up("ps-0")
    rig.clock.now += 20.0
    rig.up("worker-0")
    assert rig.master.executor.standing().launch_seconds == 50.0
    rig.clock.now += 1000.0
    rig.up("worker-0")  # it says hello again, to a master that it has lost
    assert rig.master.executor.standing().launch_seconds == 50.0


def test_a_host_that_was_down_as_the_job_began_counts_once_it_is_back(make: Any) -> None:
    rig = make()
    nodes = rig.master.reconciler
    nodes.fleet = msgspec.structs.replace(nodes.fleet, capacity=Resources(0.0, 0))
    rig.up("ps-0")
    rig.step_until(lambda: rig.master.fleet.capacity == CAPACITY)


@pytest.mark.parametrize(("node", "next_one"), [("ps-0", "ps-1"), ("worker-0", "worker-2")])
def test_who_runs_out_of_memory_comes_back_with_what_hosts_have_by_then(make: Any, node: str, next_one: str) -> None:
    rig = make(samples=4000)
    rig.up("ps-0", "worker-0")
    nodes = rig.master.reconciler
    rig.step_until(lambda: rig.master.fleet.capacity == CAPACITY)
    nodes.fleet = msgspec.structs.replace(nodes.fleet, capacity=Resources(0.0, 0))  # read while the host was down
    rig.backend.ends(node, "OOMKilled")
    rig.backend.wait_for_launch(next_one)
    assert rig.master.fleet.capacity == CAPACITY


@pytest.mark.parametrize(("node", "next_one"), [("ps-0", "ps-1"), ("worker-0", "worker-2")])
@pytest.mark.parametrize("left", [[], [Host("other", Resources(4.0, 2 << 30))]])
def test_who_runs_out_of_memory_while_a_host_is_down_waits_for_it(
    make: Any, node: str, next_one: str, left: list[Host]
) -> None:
    rig = make(samples=4000)
    rig.backend.hosts = [Host("down soon", CAPACITY), *left]
    rig.up("ps-0", "worker-0")
    rig.step_until(lambda: rig.master.fleet.capacity == total_of(rig.backend.hosts))
    rig.backend.hosts = left
    rig.backend.ends(node, "OOMKilled")
    rig.backend.wait_for_launch(next_one)
    memory = {spec.id: spec.resources.memory for spec in rig.backend.launched}
    assert memory[next_one] > memory[node]
    assert rig.master.fleet.capacity == total_of(left), "what a person may ask for is what is there"


def test_a_master_that_is_started_while_all_hosts_are_down_expects_them_back(make: Any) -> None:
    rig = make(samples=4000)
    rig.up("ps-0", "worker-0")
    rig.step_until(lambda: rig.master.fleet.capacity == CAPACITY)
    rig.backend.hosts = []
    rig.kill()
    rig.start()
    rig.backend.ends("worker-0", "OOMKilled")
    rig.backend.wait_for_launch("worker-2")


def test_a_host_that_is_gone_for_long_is_not_waited_for(make: Any) -> None:
    rig = make(samples=4000, clock=VirtualClock(), health=PATIENT)
    rig.up("ps-0", "worker-0")
    rig.backend.hosts = []
    rig.clock.now += USUAL.hosts_seconds
    rig.step_until(lambda: rig.master.fleet.away_memory == CAPACITY.memory)
    rig.clock.now += AWAY_SECONDS
    rig.step_until(lambda: rig.master.fleet.away_memory == 0)
    rig.backend.ends("worker-0", "OOMKilled")
    rig.clock.now += USUAL.reconcile_seconds
    rig.step_until(lambda: rig.master.reconciler.fleet.done)
    failing = rig.master.failing
    assert failing is not None and "and 0 B are left for it" in failing.message


def test_hosts_that_come_or_change_are_told_to_the_brain_and_bound_what_nodes_get(make: Any) -> None:
    rig = make(samples=4000)
    rig.up("ps-0", "worker-0")
    assert rig.master.executor.standing().hosts == ()
    rig.backend.hosts = [Host("here", Resources(2.0, 4 << 30)), Host("there", Resources(16.0, 64 << 30))]
    rig.step_until(lambda: rig.master.fleet.capacity == Resources(18.0, 68 << 30))
    assert rig.master.executor.standing().hosts == tuple(rig.backend.hosts)
    rig.backend.hosts = [Host("here", CAPACITY)]
    rig.step_until(lambda: rig.master.fleet.capacity == CAPACITY)
    assert rig.master.executor.standing().hosts == tuple(rig.backend.hosts), "else the brain would not know of it"
