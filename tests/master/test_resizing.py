"""Nodes that are given more or less while they run: the rules, and what a master does by them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import RemoteError
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.master.nodes.fleet import Fleet, Launch
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.master.nodes.resizing import MOST_USED, next_step, refusal, too_full
from dlrover_lite.protocol.nodes import Observed
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.questions import (
    MoveRequest,
    NodeStatus,
    ResizeRequest,
    Scaled,
    ScaleRequest,
    Status,
    StatusRequest,
)
from tests.master.rig import Rig, done
from tests.master.test_slots import PAIR, copying, has, loads, move, texts

GIB = 1 << 30
EACH, CAPACITY = Resources(1.0, GIB), Resources(4.0, 4 * GIB)


def fleet_of(*nodes: Node) -> Fleet:
    plan = Plan(RolePlan(1, EACH), RolePlan(1, EACH))
    return Fleet(plan, CAPACITY, {node.id: node for node in nodes})


def ps(**changes: Any) -> Node:
    return Node(**{"id": "ps-0", "role": "ps", "resources": EACH, "state": "up", **changes})


def worker(**changes: Any) -> Node:
    return Node(**{"id": "worker-0", "role": "worker", "resources": EACH, "state": "up", **changes})


# --- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "wanted", "used", "tidy", "why"),
    [
        (worker(), Resources(1.0, 3 * GIB), 0, True, ""),
        (worker(), Resources(1.0, 3 * GIB + 1), 0, True, "beside the other nodes' 1 GiB is more than the 4 GiB"),
        (worker(), Resources(3.0, GIB), 0, True, ""),
        (worker(), Resources(3.5, GIB), 0, True, "more than the 4 that resources.total allows"),
        (worker(), Resources(4.5, GIB), 0, True, "there are 4"),
        (worker(), Resources(0.1, GIB), 0, True, ""),
        (worker(), Resources(1.0, 1000), 899, True, ""),
        (worker(), Resources(1.0, 1000), 900, True, "900 B are in use, and must be less than 90% of it"),
        (worker(), Resources(1.0, 1000), 900, False, "900 B are in use"),
        (ps(), Resources(1.0, 1000), 900, True, "dlrover-lite move --from ps-0"),
        (ps(), Resources(1.0, 1000), 900, False, ""),  # it is going to be tidied up first
        (ps(), Resources(1.0, 1000), 899, True, ""),
        (ps(state="ended"), Resources(1.0, 2 * GIB), 0, True, "has ended already"),
        (ps(state="draining"), Resources(1.0, 2 * GIB), 0, True, "is about to end"),
    ],
)
def test_impossible_resizes_are_refused_with_a_reason(
    node: Node, wanted: Resources, used: int, tidy: bool, why: str
) -> None:
    other = worker() if node.role == "ps" else ps()
    fleet = fleet_of(node, other)
    found = refusal(node, wanted, fleet, total=CAPACITY, used=used, tidy=tidy)
    assert bool(found) == bool(why)
    assert why in (f"{found.message} {found.hint}" if found else "")


def test_wanted_sizes_of_other_nodes_count_as_taken() -> None:
    growing = ps(wanted=Resources(1.0, 2 * GIB))
    shrinking = worker(id="worker-1", wanted=Resources(1.0, GIB // 2))
    fleet = fleet_of(worker(), growing, shrinking)
    wish = {"total": None, "used": 0, "tidy": True}
    assert refusal(worker(), Resources(1.0, GIB), fleet, **wish) is None
    found = refusal(worker(), Resources(1.0, GIB + 1), fleet, **wish)
    assert found is not None and "other nodes' 3 GiB" in found.message and f"({GIB} bytes)" in found.hint


SIZES = st.builds(Resources, st.sampled_from([0.5, 1.0, 2.0]), st.integers(1, 4 * GIB))


@given(has=SIZES, wanted=SIZES, used=st.integers(0, 4 * GIB), tidy=st.booleans(), is_ps=st.booleans())
def test_each_resize_step_is_safe_and_makes_progress(
    has: Resources, wanted: Resources, used: int, tidy: bool, is_ps: bool
) -> None:
    node = msgspec.structs.replace(ps() if is_ps else worker(), resources=has, wanted=wanted)
    step = next_step(node, used=used, tidy=tidy)
    assert step.resources.cores == wanted.cores
    if step.resources.memory < has.memory:  # nothing is taken from who needs it
        assert used < MOST_USED * step.resources.memory
        assert tidy or not is_ps
    assert step.resources.memory in (has.memory, wanted.memory)
    assert (step.resources == wanted) == (not step.waits_for and not step.refused) or has.memory == wanted.memory
    assert not (step.waits_for and step.refused)
    if step.waits_for:
        assert is_ps and not tidy
    if step.refused:  # nothing is refused for good that would have been granted when asked for
        assert too_full(used, wanted.memory)


def test_a_resized_workers_replacement_has_the_plans_size() -> None:
    def size_after(has: Resources, *others: Node) -> Resources:
        fleet = fleet_of(worker(resources=has, wanted=EACH), *others)
        fleet, instructions = fleet.observed("worker-0", Observed(ended_at=0.0, reason="Killed"), 0.0)
        assert fleet.by_id["worker-0"].wanted is None
        assert fleet.plan.worker.each == EACH
        (launch,) = [each for each in instructions if isinstance(each, Launch)]
        return launch.node.resources

    assert size_after(Resources(2.0, 2 * GIB), ps()) == EACH
    assert size_after(Resources(0.5, GIB // 2), ps()) == EACH
    # unless others have got what was taken from it
    large = ps(resources=Resources(1.0, 7 * GIB // 2))
    assert size_after(Resources(0.5, GIB // 2), large) == Resources(1.0, GIB // 2)


# --- a master -------------------------------------------------------------------------------------------------------


def resize(rig: Rig, node: str, **limits: Any) -> list[str]:
    answer = rig.ask("cli", ResizeRequest(node, **limits))
    assert isinstance(answer, Scaled)
    return answer.actions


def status_of(rig: Rig, node: str) -> NodeStatus:
    status = rig.ask("cli", StatusRequest())
    assert isinstance(status, Status)
    return next(each for each in status.nodes if each.id == node)


def until(rig: Rig, condition: Any) -> None:
    """Turns of the master go on with each question."""
    while not condition():
        rig.ask("cli", StatusRequest())


@pytest.fixture
def pair(make: Any) -> Rig:
    rig = make(ps=2, samples=4000)
    rig.up(*PAIR, "worker-0", "worker-1")
    return rig


def test_more_cores_and_memory_are_given_at_once(pair: Rig) -> None:
    told = "is resized from 1 core and 1 GiB to 2 cores and 3 GiB"
    assert resize(pair, "ps-0", cores=2.0, memory=3 * GIB) == [f"ps-0 {told}"]
    assert pair.backend.resized == [("ps-0", Resources(2.0, 3 * GIB))]
    assert texts(pair, "ps-0")[-1] == told
    found = status_of(pair, "ps-0")
    assert (found.cores, found.memory, found.wanted_cores, found.wanted_memory) == (2.0, 3 * GIB, None, None)
    assert resize(pair, "ps-0", memory=3 * GIB) == []
    with pytest.raises(RemoteError, match="beside the other nodes' 5 GiB is more than the 8 GiB there are"):
        resize(pair, "worker-0", memory=4 * GIB)
    with pytest.raises(RemoteError, match="need 9 GiB; there are 8 GiB"):  # what is beyond the plan counts here too
        pair.ask("cli", ScaleRequest(workers=5))
    with pytest.raises(RemoteError, match="no node 'worker-9'"):
        resize(pair, "worker-9", cores=1.0)
    assert len(pair.backend.resized) == 1


def test_less_memory_than_is_in_use_is_refused_with_figures(pair: Rig) -> None:
    pair.report("ps-0", orders=pair.report("ps-0"))
    pair.backend.used = {"ps-0": 500 * MIB, "worker-0": 500 * MIB}
    for node in ("ps-0", "worker-0"):
        with pytest.raises(RemoteError, match="lowered to 512 MiB: 500 MiB are in use, and must be less than 90% of"):
            resize(pair, node, memory=512 * MIB)
    assert pair.backend.resized == []
    assert resize(pair, "worker-0", memory=600 * MIB) == [
        "worker-0 is resized from 1 core and 1 GiB to 1 core and 600 MiB"
    ]


def test_memory_of_a_server_is_lowered_once_it_is_tidy(pair: Rig) -> None:
    orders = pair.report("ps-0")
    pair.report("ps-0", orders=orders, tidy=False)
    waits = "waits to be tidied up before its memory is lowered to 512 MiB"
    pair.backend.used["ps-0"] = 900 * MIB
    told = resize(pair, "ps-0", cores=0.5, memory=512 * MIB)
    assert told == ["ps-0 is resized from 1 core and 1 GiB to 0.5 cores and 1 GiB", f"ps-0 {waits}"]
    found = status_of(pair, "ps-0")
    assert (found.memory, found.wanted_cores, found.wanted_memory, found.waits_for) == (GIB, 0.5, 512 * MIB, waits)
    assert resize(pair, "ps-0", memory=512 * MIB) == [f"ps-0 {waits}"]
    pair.report("ps-0", orders=orders, gives_back=True)  # its rows are where they belong
    assert resize(pair, "ps-0", memory=512 * MIB) == [f"ps-0 {waits}"]
    pair.backend.used["ps-0"] = 400 * MIB
    pair.report("ps-0", orders=orders)
    until(pair, lambda: status_of(pair, "ps-0").memory == 512 * MIB)
    assert pair.backend.resized[-1] == ("ps-0", Resources(0.5, 512 * MIB))
    assert (status_of(pair, "ps-0").wanted_memory, status_of(pair, "ps-0").waits_for) == (None, "")
    assert texts(pair, "ps-0")[-1] == "is resized from 0.5 cores and 1 GiB to 0.5 cores and 512 MiB"


def test_a_server_that_moves_slots_is_not_lowered(pair: Rig) -> None:
    for node in PAIR:
        pair.report(node, orders=pair.report(node))
    move(pair, "ps-1", 5)
    orders = copying(pair, "ps-1")
    for node in PAIR:
        assert "waits to be tidied up" in resize(pair, node, memory=512 * MIB)[0]
    after = pair.report("ps-1", orders=orders, ready=[1])
    for node in PAIR:  # the source has heard that it is done, and has rows to drop
        pair.report(node, orders=after, tidy=node == "ps-1")
    assert status_of(pair, "ps-0").waits_for
    pair.report("ps-0", orders=after)
    until(pair, lambda: {node for node, _ in pair.backend.resized} == {*PAIR})


def test_no_slots_move_into_memory_that_is_to_be_taken(pair: Rig) -> None:
    pair.report("ps-1", orders=pair.report("ps-1"), tidy=False)
    resize(pair, "ps-1", memory=100 * MIB)
    pair.report("ps-0", orders=pair.report("ps-0"), loads=loads(np.full(4096, float(MIB))))
    with pytest.raises(RemoteError, match="these slots hold 200 MiB of rows, and ps-1 has room for 90 MiB"):
        pair.ask("cli", MoveRequest(slot_sets.pack(slot_sets.of(range(200))), "ps-1"))


def test_a_server_too_full_once_tidy_keeps_its_memory(pair: Rig) -> None:
    orders = pair.report("ps-0")
    pair.report("ps-0", orders=orders, tidy=False)
    resize(pair, "ps-0", memory=512 * MIB)
    pair.backend.used["ps-0"] = 480 * MIB
    pair.report("ps-0", orders=orders)
    until(pair, lambda: status_of(pair, "ps-0").wanted_memory is None)
    assert status_of(pair, "ps-0").memory == GIB
    why = "its memory is not lowered to 512 MiB: 480 MiB are in use, and must be less than 90% of it"
    assert texts(pair, "ps-0")[-2:] == [why, "stays with 1 core and 1 GiB"]
    assert pair.backend.resized == []


def test_the_backend_has_the_last_word_on_less_memory(pair: Rig) -> None:
    pair.backend.refuses_to_resize = "600 MiB are in use"
    told = resize(pair, "worker-0", memory=512 * MIB)
    assert told == [
        "worker-0 is not resized to 1 core and 512 MiB: 600 MiB are in use",
        "worker-0 stays with 1 core and 1 GiB",
    ]
    assert status_of(pair, "worker-0").wanted_memory is None


def test_a_restarted_master_goes_on_with_a_resize(pair: Rig) -> None:
    pair.backend.refuses_to_resize = "not now"
    (told,) = resize(pair, "worker-0", cores=2.0)
    assert told == "worker-0 is not resized to 2 cores and 1 GiB: not now"
    assert (status_of(pair, "worker-0").cores, status_of(pair, "worker-0").wanted_cores) == (1.0, 2.0)
    pair.kill()
    pair.backend.refuses_to_resize = ""
    pair.start()
    until(pair, lambda: status_of(pair, "worker-0").cores == 2.0)
    assert pair.backend.resized == [("worker-0", Resources(2.0, GIB))]
    pair.kill()
    pair.start()
    assert status_of(pair, "worker-0").cores == 2.0
    assert len(pair.backend.resized) == 1


def test_a_granted_resize_is_stored_before_it_is_done(pair: Rig) -> None:
    pair.kill_in_resize("cli", ResizeRequest("worker-0", 2.0))
    pair.start()
    until(pair, lambda: status_of(pair, "worker-0").cores == 2.0)
    assert pair.backend.resized == [("worker-0", Resources(2.0, GIB))]


def test_a_resize_is_dropped_when_its_node_ends(pair: Rig) -> None:
    pair.backend.refuses_to_resize = "not now"
    resize(pair, "worker-0", memory=2 * GIB)
    pair.backend.ends("worker-0")
    pair.up("worker-2")
    assert (status_of(pair, "worker-0").wanted_memory, status_of(pair, "worker-0").waits_for) == (None, "")
    assert status_of(pair, "worker-2").memory == GIB
    with pytest.raises(RemoteError, match="has ended already"):
        resize(pair, "worker-0", cores=1.0)


def test_a_worker_that_cant_be_resized_is_replaced_by_one_of_the_wanted_size(pair: Rig) -> None:
    pair.backend.cant_resize = "this cluster can't"
    (told,) = resize(pair, "worker-0", memory=2 * GIB)
    assert told == "worker-0 is not resized to 1 core and 2 GiB: this cluster can't; it is replaced"
    pair.up("worker-2")
    assert pair.backend.launched[-1].resources == Resources(1.0, 2 * GIB)
    assert pair.backend.terminated == ["worker-0"]
    assert status_of(pair, "worker-2").wanted_memory is None


def test_slots_of_a_server_that_cant_be_resized_move_to_one_of_the_wanted_size(pair: Rig) -> None:
    pair.follow(*PAIR, until=has(*PAIR))
    pair.backend.cant_resize = "Infeasible on host-a"
    (told,) = resize(pair, "ps-0", memory=2 * GIB)
    assert "Infeasible on host-a; it is replaced" in told
    pair.up("ps-2")
    assert pair.backend.launched[-1].resources == Resources(1.0, 2 * GIB)
    pair.follow(*PAIR, "ps-2", until=has("ps-1", "ps-2"))
    assert pair.backend.terminated == ["ps-0"]
    assert [spec.id for spec in pair.backend.launched].count("ps-2") == 1
    assert texts(pair, "ps-0").count(told.removeprefix("ps-0 ")) == 1, "it is said once"


def test_a_node_that_can_neither_be_resized_nor_replaced_waits_and_says_why(pair: Rig) -> None:
    pair.backend.cant_resize = "this cluster can't"
    (told,) = resize(pair, "worker-0", memory=5 * GIB)
    assert "nor replaced by one that has them: the one that replaces worker-0 needs 5 GiB beside all others" in told
    assert status_of(pair, "worker-0").wanted_memory == 5 * GIB
    pair.backend.cant_resize = ""
    until(pair, lambda: status_of(pair, "worker-0").memory == 5 * GIB)
    assert pair.backend.terminated == []


def test_nobody_is_replaced_for_having_too_much_memory(pair: Rig) -> None:
    pair.backend.cant_resize = "this cluster can't"
    assert resize(pair, "worker-0", memory=GIB // 2)[-1] == "worker-0 stays with 1 core and 1 GiB"
    assert pair.backend.terminated == [] and status_of(pair, "worker-0").wanted_memory is None


def test_leases_tell_the_workers_cores(pair: Rig) -> None:
    lease = pair.lease("worker-0")
    assert lease.cores == 1.0
    resize(pair, "worker-0", cores=2.5)
    assert pair.lease("worker-0", **done(lease)).cores == 2.5


# --- what a node has used at most -----------------------------------------------------------------------------------


def test_a_kernel_peak_far_above_measured_use_is_taken_for_cached_files(rig: Rig) -> None:
    """Its high-water mark is 2,000 bytes here."""
    rig.up("ps-0", "worker-0", "worker-1")
    reconciler = rig.master.reconciler
    for used, most in ((1000, 1250), (1700, 2000), (1200, 2000), (2500, 2500)):
        rig.backend.used["worker-0"] = used
        rig.clock.advance_to(rig.clock.now + 0.1)
        assert reconciler.memory_used("worker-0") == used
        assert reconciler.most_used("worker-0") == most
    assert reconciler.most_used("worker-9") == 0


def test_what_all_nodes_use_is_read_once_in_a_moment(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.up("ps-0", "worker-0", "worker-1")
    rig.clock.advance_to(rig.clock.now + 0.1)
    asked, readings = [], rig.backend.readings
    monkeypatch.setattr(rig.backend, "readings", lambda: asked.append(rig.clock.now) or readings())
    for used in (1000, 2000):
        rig.backend.used |= {"ps-0": used, "worker-0": used + 1}
        rig.clock.advance_to(rig.clock.now + 0.1)
        assert [rig.master.reconciler.memory_used(node) for node in ("ps-0", "worker-0")] == [used, used + 1]
    assert len(asked) == 2
