"""What is measured of slots, and which are the hottest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dlrover_lite.core import slot_sets
from dlrover_lite.master.slots.slot_loads import SlotLoads
from dlrover_lite.master.slots.slot_state import Batch, SlotState
from dlrover_lite.protocol.messages import PsReport
from dlrover_lite.protocol.questions import HotSlot, PsSlots, SlotsReport, SlotsRequest
from tests.master.rig import Rig

PAIR = ("ps-0", "ps-1")


def state_of_two() -> SlotState:
    return SlotState().begin(PAIR)[0]


def measured(**slots_rows: Any) -> Any:
    """[4, 4096]: for ``s17=(requests, rows, busy, bytes)`` these figures of slot 17."""
    table = np.zeros((4, slot_sets.SLOTS))
    for name, figures in slots_rows.items():
        table[:, int(name[1:])] = figures
    return table


def test_hottest_slots_come_busiest_first_without_idle_ones() -> None:
    state, loads = state_of_two(), SlotLoads()
    first = measured(
        s1=(10, 20, 0.1, 100), s2=(10, 90, 0.1, 100), s3=(9, 9, 0.5, 7), s4=(0, 0, 0, 900), s5=(0, 1e-5, 0, 9)
    )
    second = measured(s4000=(10, 20, 0.1, 100), s1=(99, 99, 99, 99))  # slot 1 isn't its own
    loads.take("ps-0", state.owned("ps-0"), first, requests_per_second=12.0, at=50.0)
    loads.take("ps-1", state.owned("ps-1"), second, requests_per_second=10.0, at=51.0)
    found = loads.hottest(10, state)
    assert [(slot.slot, slot.node) for slot in found] == [(3, "ps-0"), (2, "ps-0"), (1, "ps-0"), (4000, "ps-1")]
    assert found[0] == HotSlot(3, "ps-0", 9.0, 9.0, 0.5, 7)
    assert [slot.slot for slot in loads.hottest(2, state)] == [3, 2]
    assert loads.hottest(0, state) == []
    of_first = loads.of("ps-0", state.owned("ps-0"), 52.5)
    assert (of_first.slots, of_first.bytes, of_first.requests_per_second) == (2048, 1116, 12.0)
    assert of_first.rows_per_second == pytest.approx(119, abs=0.1)
    assert of_first.busy == pytest.approx(0.7)
    assert of_first.measured_seconds_ago == 2.5


def test_load_figures_go_with_a_slot_that_moves() -> None:
    state, loads = state_of_two(), SlotLoads()
    loads.take("ps-0", state.owned("ps-0"), measured(s7=(1, 2, 0.3, 4)), requests_per_second=1.0, at=50.0)
    assert loads.of("ps-1", state.owned("ps-1"), 60.0) == PsSlots("ps-1", 2048)
    state = state.want([("ps-0", "ps-1", slot_sets.of([7]))])[0].start(PAIR, 0.0)[0]
    state, _ = state.ready("ps-1", {1: Batch(slot_sets.of([7]))}, 0.0)
    (hot,) = loads.hottest(10, state)
    assert (hot.slot, hot.node) == (7, "ps-1")
    moved = loads.of("ps-1", state.owned("ps-1"), 60.0)
    assert (moved.busy, moved.requests_per_second, moved.measured_seconds_ago) == (pytest.approx(0.3), None, 10.0)


def test_slots_request_is_answered_with_measured_loads(make: Any) -> None:
    rig: Rig = make(ps=2, samples=4000)
    rig.up("ps-0", "worker-0")
    assert rig.ask("cli", SlotsRequest()) == SlotsReport(0)
    rig.up("ps-1")
    assert rig.ask("cli", SlotsRequest()) == SlotsReport(1, [PsSlots(node, 2048) for node in PAIR])
    orders = rig.report("ps-1")
    table = measured(s4000=(5, 50, 0.25, 1000), s3000=(1, 10, 0.125, 500)).astype(np.float32).tobytes()
    rig.report("ps-1", orders=orders, loads=table, requests_per_second=6.0)
    found = rig.ask("cli", SlotsRequest(hottest=1))
    assert found.hottest == [HotSlot(4000, "ps-1", 5.0, 50.0, 0.25, 1000)]
    idle, busy = found.servers
    assert idle == PsSlots("ps-0", 2048)
    assert (busy.busy, busy.rows_per_second, busy.requests_per_second, busy.bytes) == (0.375, 60.0, 6.0, 1500)
    assert 0 <= busy.measured_seconds_ago < 60
    for wrong in (float("nan"), float("inf"), -1.0):
        rig.client("ps-1").send(PsReport("ps-1", 0, 0, 0, requests_per_second=wrong))
    while rig.server.malformed < 3:
        rig.ask("cli", SlotsRequest())


def test_load_of_a_slow_servers_slots_elsewhere_follows_their_rows() -> None:
    """Its own slots are worth four times what they cost elsewhere; where nothing else is known, what was measured is believed."""
    state, loads = state_of_two(), SlotLoads()
    theirs = state.owned("ps-0")
    loads.take("ps-0", theirs, measured(s1=(9, 30, 0.6, 1), s2=(9, 10, 0.2, 1)), requests_per_second=1.0, at=50.0)
    assert loads.busy_elsewhere(theirs)[[1, 2]].tolist() == [0.6, 0.2]
    loads.take("ps-1", ~theirs, measured(s4000=(9, 40, 0.2, 1)), requests_per_second=1.0, at=50.0)
    assert loads.busy_elsewhere(theirs)[[1, 2, 4000]].tolist() == pytest.approx([0.15, 0.05, 0.2])
    assert loads.busy_elsewhere(~theirs)[[1, 4000]].tolist() == [0.6, 0.2]  # one that is fast is left as it is
    assert loads.busy_elsewhere(slot_sets.none())[1] == loads.busy[1] == 0.6
