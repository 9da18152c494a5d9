"""A server's part in cuts as its master orders it: beside moves, and told soon."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dlrover_lite.checkpoint.manifest import PartEntry
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.failpoints import VARIABLE
from dlrover_lite.protocol.messages import PsOrders, SnapshotOrder, SnapshotReport
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, Part, mask_of, to_bitmap
from dlrover_lite.ps.server.service import IMPATIENT_SECONDS
from tests.ps.rig import Rig
from tests.ps.test_writer_process import PATIENCE_SECONDS, children, wait_until_stopped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="snapshots are taken on Linux")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    before = children()
    made = Rig(2)
    made.configure_all()
    for k in range(3):
        made.push_everywhere(0, k, {"a": dict.fromkeys(range(500), 1.0)})
    yield made
    made.close()
    assert children() <= before


def hear(rig: Rig, order: SnapshotOrder | None) -> SnapshotReport | None:
    """PS 0 gets its orders with this one, and reports."""
    rig.services[0].follow(msgspec.structs.replace(rig.orders(0), snapshot=order))
    rig.turn(0)
    return rig.services[0].report().snapshot


def until(rig: Rig, order: SnapshotOrder, state: str) -> SnapshotReport:
    end = time.monotonic() + PATIENCE_SECONDS
    while (report := hear(rig, order)) is None or report.state != state:
        assert time.monotonic() < end, report
        time.sleep(0.001)
    return report


def order_of(cut: int, directory: Path) -> SnapshotOrder:
    store = CheckpointStore(str(directory))
    store.create()
    store.begin(cut)
    return SnapshotOrder(cut, "job", store.url)


def test_a_cut_needs_no_new_map_version_and_moves_wait_for_it(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "persister.block=pause")
    order = order_of(1, tmp_path)
    assert hear(rig, None) is None
    until(rig, order, "taking")
    persister = rig.services[0].snapshots._persister
    assert persister is not None
    wait_until_stopped(persister.pid)
    move = rig.move(0, 1, mask_of(slot_sets.pack(np.arange(slot_sets.SLOTS) < 2048)))
    rig.hear(1)
    for _ in range(5):
        rig.turn(1)
        hear(rig, order)
        assert rig.services[0].outgoing is None, "no move begins"
    assert rig.push(0, 0, 3, ALL_SLOTS, {"a": {7: 1.0}})
    os.kill(persister.pid, signal.SIGCONT)
    assert until(rig, order, "written").part
    rig.services[0].follow(PsOrders(0))  # too old to say anything
    assert rig.services[0].report().snapshot is not None
    assert hear(rig, None) is None
    rig.settle()
    assert move not in rig.moves
    assert rig.value("a", 7) == -4.0


def test_a_cut_prepares_memory_only_beside_training(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlrover_lite.ps.snapshots.copy_on_write_log.TOUCHED_AT_ONCE_BYTES", 4096)
    until(rig, order_of(1, tmp_path), "written")
    end = time.monotonic() + PATIENCE_SECONDS
    while not rig.services[0].snapshots._is_ready:
        assert time.monotonic() < end
        hear(rig, None)
    rig.push_everywhere(0, 3, {"a": {7: 1.0}})
    assert hear(rig, order_of(2, tmp_path)) is None, "its memory comes little by little"
    hear(rig, None)
    rig.now += 1.0
    order = order_of(3, tmp_path)
    report = hear(rig, order)
    assert report is not None and report.state == "taking", "nobody would wait for memory"
    until(rig, order, "written")


def test_the_master_hears_soon_of_what_has_become_of_a_cut(rig: Rig, tmp_path: Path) -> None:
    service = rig.services[0]
    orders = msgspec.structs.replace(rig.orders(0), snapshot=order_of(1, tmp_path))
    service.follow(orders)
    for state in ("taking", "written"):
        end = time.monotonic() + PATIENCE_SECONDS
        while service.report_in > IMPATIENT_SECONDS:
            assert time.monotonic() < end, state
            rig.turn(0)
            rig.now -= 0.001  # it isn't time that makes the report due
            time.sleep(0.001)
        snapshot = service.report().snapshot
        assert snapshot is not None
        assert snapshot.state == state
        service.follow(orders)
        assert service.report_in > IMPATIENT_SECONDS


def test_a_cut_waits_for_moves(rig: Rig, tmp_path: Path) -> None:
    order = order_of(1, tmp_path)
    rig.move(0, 1, mask_of(slot_sets.pack(np.arange(slot_sets.SLOTS) < 2048)))
    rig.hear(1)
    rig.hear(0)
    while rig.services[0].outgoing is None:
        rig.turn(1)
        rig.turn(0)
    rig.services[0].snapshots.follow(order)
    end = time.monotonic() + PATIENCE_SECONDS
    while not rig.services[0].snapshots._is_ready:
        assert time.monotonic() < end
        rig.turn(0)
    for _ in range(5):
        rig.turn(0)
        assert not rig.services[0].snapshots.active
    rig.settle()
    part = msgspec.json.decode(until(rig, order_of(2, tmp_path), "written").part, type=PartEntry)
    assert part.slots == to_bitmap(rig.owned(0))
    assert sum(part.rows[:2]) == rig.engine(0).rows


def test_a_cut_ends_if_slots_come_or_go_meanwhile(rig: Rig, tmp_path: Path) -> None:
    order = order_of(1, tmp_path)
    until(rig, order, "taking")
    rig.owners[:10] = 1
    rig.version += 1
    report = hear(rig, order)
    assert report is not None
    assert "slots have come or gone" in report.why
    rig.settle()


def test_half_a_push_is_repeated_before_a_cut_begins(rig: Rig, tmp_path: Path) -> None:
    order = order_of(1, tmp_path)
    rig.engine(0).applied_minibatches.add_part(Part(0, 9, to_bitmap(ALL_SLOTS), 1))
    end = time.monotonic() + PATIENCE_SECONDS
    while not rig.services[0].snapshots._is_ready:
        assert time.monotonic() < end
        assert hear(rig, order) is None
    assert hear(rig, order) is None
    rig.push(0, 0, 9, ALL_SLOTS, {"a": {7: 1.0}})
    marks = msgspec.json.decode(until(rig, order, "written").part, type=PartEntry).applied_minibatches
    assert [(one.epoch, one.k) for one in marks.applied] == [(0, 0), (0, 1), (0, 2), (0, 9)]
