"""What the brain decides for a job's health, carried out by a master: with the sizes and the shares that were decided."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from dlrover_lite.brain.healing.mitigation import Treatment
from dlrover_lite.core.units import Resources
from dlrover_lite.master.autoscale.autoscaler import Autoscaler
from dlrover_lite.master.nodes.reconciler import AVOID_SECONDS
from dlrover_lite.protocol.acts import Act, AddPs, MoveSlots, Replace, Resize, SmallerShards
from dlrover_lite.protocol.brain_messages import Advice
from dlrover_lite.protocol.demands import DecisionOutcome
from dlrover_lite.protocol.messages import Export
from dlrover_lite.protocol.questions import ScaleRequest
from tests.master.rig import RESOURCES, Rig
from tests.master.test_slots import PAIR, at_rest, has, loads, owned, states, texts

SIZE = Resources(0.5, 3 << 29)


class Brain:
    """One that has something to say to the master, and listens to it."""

    trouble = ""

    def __init__(self, rig: Rig) -> None:
        self.done: list[DecisionOutcome] = []
        self.advice: list[Advice] = []
        self._number = 0
        self._executor = rig.master.executor
        self._executor.tell = self.done.append
        self._executor.state = Autoscaler(job="rig-1", mode="on")
        rig.master.brain = self  # type: ignore[assignment]

    def keep_level(self, _: Any) -> None:
        pass

    def turn(self, *_: Any) -> None:
        while self.advice:
            self._executor.advised(self.advice.pop(0))

    def say(self, node: str, act: Act, cause: Any = "slow worker") -> None:
        treatment = Treatment(at=0.0, node=node, host="here", cause=cause, act=act, reason="because")
        self._number += 1
        decision = {"action": "heal", "reason": "because", "treatment": msgspec.to_builtins(treatment)}
        self.advice.append(Advice(self._number, decision))


@pytest.fixture
def pair(make: Any) -> Rig:
    rig = make(ps=2, samples=4000)
    rig.up(*PAIR, "worker-0", "worker-1")
    rig.follow(*PAIR, until=has(*PAIR))
    return rig


def wanted(rig: Rig, node: str) -> tuple[Resources, str]:
    """What the backend was asked for: the node's size and its host."""
    return next((spec.resources, spec.host) for spec in rig.backend.launched if spec.id == node)


def test_several_nodes_get_more_memory_while_another_node_starts(pair: Rig) -> None:
    brain = Brain(pair)
    pair.backend.ends("worker-1")
    pair.backend.wait_for_launch("worker-2")
    more = Resources(1.0, 5 << 28)
    brain.say("ps-0", Resize(more, {"ps-1": more}), "memory ahead")
    pair.follow(*PAIR, until=lambda _: brain.done)
    assert pair.backend.resized == [("ps-0", more), ("ps-1", more)]
    assert [one.state for one in brain.done] == ["done"] and states(pair.follow(until=bool))["worker-2"] == "started"


def test_an_added_server_has_the_decided_size_host_and_share_of_memory(pair: Rig) -> None:
    brain = Brain(pair)
    row_bytes = np.zeros(4096)
    row_bytes[:2048] = 1000.0
    row_bytes[:100] = 5000.0
    pair.report("ps-0", loads=loads(row_bytes), version=1)
    before = owned(pair.follow(*PAIR, until=at_rest))
    brain.say("ps-0", AddPs(SIZE, 0.25, "there"), "memory ahead")
    pair.follow(*PAIR, until=lambda status: "ps-2" in states(status))
    assert wanted(pair, "ps-2") == (SIZE, "there") and owned(pair.follow(until=bool)) == before
    pair.up("ps-2")
    status = pair.follow(*PAIR, "ps-2", until=lambda _: brain.done)
    after = owned(status)
    assert after["ps-1"] == before["ps-1"]
    moved = pair.master.servers.state.owned("ps-2")
    assert row_bytes[moved].sum() / row_bytes.sum() == pytest.approx(0.25, abs=0.01)
    assert [one.state for one in brain.done] == ["done"]


def test_slots_are_chosen_by_memory_or_load_as_their_move_needs(pair: Rig) -> None:
    brain = Brain(pair)
    row_bytes, busy = np.zeros(4096), np.zeros(4096)
    row_bytes[:1024], busy[1024:2048] = 1000.0, 0.0001
    measured = np.stack([np.zeros(4096), np.zeros(4096), busy, row_bytes]).astype(np.float32).tobytes()
    pair.report("ps-0", loads=measured, version=1)
    brain.say("ps-0", MoveSlots(0.5, {"ps-1": 1.0}), "memory ahead")
    pair.follow(*PAIR, until=lambda _: brain.done)
    moved = pair.master.servers.state.owned("ps-1")[:2048]
    assert moved[:1024].sum() == 512 and moved[1024:].sum() == 0
    brain.say("ps-0", MoveSlots(0.5, {"ps-1": 1.0}), "hot ps")
    pair.follow(*PAIR, until=lambda _: len(brain.done) > 1)
    moved = pair.master.servers.state.owned("ps-1")[:2048]
    assert moved[1024:].sum() == 512


@pytest.mark.parametrize("node", ["ps-0", "worker-0"])
def test_a_replacement_has_the_decided_size_and_host(pair: Rig, node: str) -> None:
    brain = Brain(pair)
    brain.say(node, Replace(SIZE, "there"))
    follower = node.replace("0", "2")
    pair.backend.wait_for_launch(follower) if node == "ps-0" else pair.follow(
        *PAIR, until=lambda status: follower in states(status)
    )
    assert wanted(pair, follower) == (SIZE, "there")
    pair.up(follower)
    servers = (*PAIR, follower) if node == "ps-0" else PAIR
    pair.follow(*servers, until=lambda _: brain.done)
    assert [one.state for one in brain.done] == ["done"]
    assert pair.master.fleet.by_id[node].state == "ended"
    assert pair.master.fleet.plan.ps.each == RESOURCES == pair.master.fleet.plan.worker.each


def test_a_node_is_launched_elsewhere_if_its_host_is_refused(pair: Rig) -> None:
    pair.backend.unknown_host = "gone"
    brain = Brain(pair)
    brain.say("worker-0", Replace(SIZE, "gone"))
    pair.backend.wait_for_launch("worker-2")
    assert wanted(pair, "worker-2") == (SIZE, "")
    assert "is not launched on gone, but wherever there is room: there is no host gone" in texts(pair, "worker-2")


@pytest.mark.parametrize("node", ["ps-0", "worker-0"])
def test_a_replacement_avoids_the_slow_nodes_host_for_a_while(pair: Rig, node: str) -> None:
    pair.backend.on[node] = "slow"
    pair.step_until(lambda: pair.master.reconciler.host_of.get(node) == "slow")
    brain = Brain(pair)
    brain.say(node, Replace(SIZE))
    follower = node.replace("0", "2")
    pair.backend.wait_for_launch(follower) if node == "ps-0" else pair.follow(
        *PAIR, until=lambda status: follower in states(status)
    )
    assert pair.backend.launched[-1].avoids == ["slow"]
    pair.clock.now += AVOID_SECONDS
    pair.ask("cli", ScaleRequest(workers=4))
    assert pair.backend.launched[-1].avoids == []


def test_a_server_comes_to_the_host_that_the_plan_has_it_on(pair: Rig) -> None:
    """Its own isn't avoided for that: it may be fast enough for workers."""
    for node in PAIR:
        pair.backend.on[node] = "here"
    pair.step_until(lambda: all(pair.master.reconciler.host_of.get(node) == "here" for node in PAIR))
    brain = Brain(pair)
    placement = [{"host": "here", "workers": 2, "servers": 1}, {"host": "there", "servers": 1}]
    plan = msgspec.to_builtins(pair.master.fleet.plan)
    brain.advice.append(Advice(1, {"action": "change", "reason": "because", "plan": plan, "placement": placement}))
    pair.backend.wait_for_launch("ps-2")
    assert wanted(pair, "ps-2") == (RESOURCES, "there") and pair.backend.launched[-1].avoids == []
    pair.backend.on["ps-2"] = "there"
    pair.up("ps-2")
    status = pair.follow(*PAIR, "ps-2", until=lambda _: brain.done)
    assert [one.state for one in brain.done] == ["done"]
    left = next(node for node in PAIR if pair.master.fleet.by_id[node].state == "ended")
    assert owned(status) == {node: 2048 for node in (*PAIR, "ps-2") if node != left}
    assert "leaves: replaced by one on there, as the plan has it" in texts(pair, left)


@pytest.mark.parametrize("few", [True, False])
def test_a_slow_servers_replacement_gets_its_slots(pair: Rig, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, if that is little. Its slots keep it busy four times as long as those of the other one, by
    as many requests."""
    brain = Brain(pair)
    rows, row_bytes = np.full(4096, 10.0), np.full(4096, 1000.0)
    if not few:
        monkeypatch.setattr("dlrover_lite.master.slots.slot_control.AT_ONCE_BYTES", 2048 * 1000 - 1)
    rows[:2048] = 15.0  # it has more to do, too
    for node, busy in (("ps-0", 0.0004), ("ps-1", 0.0001)):
        measured = np.stack([rows, rows, np.full(4096, busy), row_bytes]).astype(np.float32).tobytes()
        pair.report(node, loads=measured, version=1)
    before = owned(pair.follow(*PAIR, until=at_rest))
    brain.say("ps-0", Replace(RESOURCES))
    pair.backend.wait_for_launch("ps-2")
    pair.up("ps-2")
    pair.follow(*PAIR, "ps-2", until=lambda status: status.moves, finish=False)
    assert [order.at_once for order in pair.report("ps-2").moves] == [few]
    status = pair.follow(*PAIR, "ps-2", until=lambda _: brain.done)
    assert owned(status) == {"ps-1": before["ps-1"], "ps-2": before["ps-0"]}


def test_smaller_shards_are_leased_at_once(pair: Rig) -> None:
    brain = Brain(pair)
    brain.say("worker-0", SmallerShards(0.5))
    pair.follow(*PAIR, until=lambda _: brain.done)
    assert [one.state for one in brain.done] == ["done"]


def planned(rig: Rig) -> tuple[int, int]:
    """Memory of nodes to come: PS, worker."""
    plan = rig.master.fleet.plan
    return plan.ps.each.memory, plan.worker.each.memory


def test_spare_memory_is_taken_from_all_nodes_and_new_ones_get_no_more(pair: Rig) -> None:
    brain = Brain(pair)
    small, smaller = Resources(1.0, 300 << 20), Resources(1.0, 200 << 20)
    pair.follow(*PAIR, until=lambda _: all(pair.master.servers.tidy(node) for node in PAIR))
    brain.say("ps-0", Resize(small, {"ps-1": small, "worker-0": smaller, "worker-1": smaller}), "memory to spare")
    pair.follow(*PAIR, until=lambda _: brain.done)
    assert [one.state for one in brain.done] == ["done"]
    assert dict(pair.backend.resized) == {"ps-0": small, "ps-1": small, "worker-0": smaller, "worker-1": smaller}
    assert planned(pair) == (small.memory, smaller.memory)


def test_new_nodes_get_as_much_memory_as_any_node_keeps(pair: Rig) -> None:
    brain = Brain(pair)
    pair.follow(*PAIR, until=lambda _: all(pair.master.servers.tidy(node) for node in PAIR))
    brain.say("worker-0", Resize(Resources(1.0, 200 << 20)), "memory to spare")
    pair.follow(*PAIR, until=lambda _: brain.done)
    assert pair.backend.resized == [("worker-0", Resources(1.0, 200 << 20))]
    assert planned(pair) == (RESOURCES.memory, RESOURCES.memory)


def test_a_treatment_never_lowers_memory_given_since(pair: Rig) -> None:
    """It was given more since the brain had looked."""
    brain = Brain(pair)
    brain.say("ps-0", Resize(Resources(2.0, RESOURCES.memory >> 1)), "hot ps")
    pair.follow(*PAIR, until=lambda _: brain.done)
    assert pair.backend.resized == [("ps-0", Resources(2.0, RESOURCES.memory))]


def test_advice_that_only_tells_is_in_the_story(pair: Rig) -> None:
    brain = Brain(pair)
    told = {"node": "ps-0", "cause": "ceiling", "act": {"type": "tell"}}
    brain.advice.append(Advice(1, {"action": "tell", "reason": "it will be full", "treatment": told}))
    pair.follow(*PAIR, until=lambda _: "decision 1: ps-0: it will be full" in texts(pair, "master"))
    assert pair.backend.resized == [] and not brain.done


# --- servers that fill up at once -----------------------------------------------------------------------------------


def fill(rig: Rig, stops: Callable[[int], Any], **fields: Any) -> None:
    """A PS of 1 GiB holds more and more, from 980 MiB on."""
    mebibytes = itertools.count(980)

    def grows() -> Any:
        held = next(mebibytes)
        rig.backend.used["ps-0"] = held << 20
        rig.report("ps-0", version=1, bytes=held << 20, **fields)
        return stops(held)

    rig.step_until(grows)


@pytest.mark.parametrize("mode", ["on", "off", "suggest"])
def test_a_server_about_to_be_full_gets_memory_without_asking_the_brain(make: Any, mode: Any) -> None:
    rig = make(ps=1, workers=1, samples=4000, mode=mode)
    rig.up("ps-0", "worker-0")
    rig.follow("ps-0", until=has("ps-0"))
    if mode == "on":
        fill(rig, lambda _: rig.backend.resized)
        ((node, given),) = rig.backend.resized
        assert node == "ps-0" and given.cores == 1.0 and given.memory >= 1.19 * RESOURCES.memory
        assert any(text.startswith("fills up: it gets ") for text in texts(rig, "ps-0"))
    else:
        fill(rig, lambda held: held >= 1000)
        assert rig.backend.resized == []


def test_a_server_that_slots_move_to_gets_memory_before_it_is_full(make: Any) -> None:
    """A move may take minutes, in which training adds rows that nobody had reckoned with when it began."""
    rig = make(ps=1, workers=1, samples=4000, mode="on")
    rig.up("ps-0", "worker-0")
    rig.follow("ps-0", until=has("ps-0"))
    fill(rig, lambda _: rig.backend.resized, tidy=False)
    ((node, given),) = rig.backend.resized
    assert node == "ps-0" and given.memory >= 1.19 * RESOURCES.memory


def test_a_server_gets_no_more_than_the_ceiling_leaves(make: Any) -> None:
    rig = make(ps=1, workers=1, samples=4000, mode="on")
    rig.up("ps-0", "worker-0")
    rig.follow("ps-0", until=has("ps-0"))
    rig.master.slots.total = Resources(4.0, 2 * RESOURCES.memory + (50 << 20))
    fill(rig, lambda _: rig.backend.resized)
    assert rig.backend.resized == [("ps-0", Resources(1.0, RESOURCES.memory + (50 << 20)))]


def test_the_exporting_worker_gets_memory_for_the_export(make: Any) -> None:
    rig = make(ps=1, workers=1, samples=8, mode="on")
    rig.up("ps-0", "worker-0")
    rig.follow("ps-0", until=has("ps-0"))
    rig.backend.used["worker-0"] = 1000 << 20
    rig.master.reconciler.memory_used("worker-0")
    assert isinstance(rig.work("worker-0"), Export)
    rig.step_until(lambda: rig.backend.resized)
    ((node, given),) = rig.backend.resized
    assert node == "worker-0" and given.memory == 1512 << 20


def test_adding_a_server_without_room_is_refused_with_a_reason(make: Any) -> None:
    rig = make(ps=2, samples=4000)
    rig.up(*PAIR, "worker-0", "worker-1")
    rig.follow(*PAIR, until=has(*PAIR))
    brain = Brain(rig)
    control = rig.master.slots
    refused = control.join(Resources(1.0, 1 << 40))
    assert "has no room beside" in refused.message  # type: ignore[union-attr]
    assert not brain.done


def test_a_worker_that_is_nearly_full_gets_more(make: Any) -> None:
    rig = make(ps=1, workers=2, samples=4000, mode="on")
    rig.up("ps-0", "worker-0", "worker-1")
    rig.follow("ps-0", until=has("ps-0"))
    rig.backend.used |= {"worker-0": 800 << 20, "worker-1": 1000 << 20}
    rig.step_until(lambda: rig.backend.resized)
    assert rig.backend.resized == [("worker-1", Resources(1.0, 1250 << 20))]
