"""The spill is a queue in a ring of segments: what goes in comes out, in order, and it takes the memory of the longest queue."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.records import RecordShape
from dlrover_lite.ps.snapshots import copy_on_write_log as spill_module
from dlrover_lite.ps.snapshots.copy_on_write_kernels import spill_rows
from dlrover_lite.ps.snapshots.copy_on_write_log import (
    COUNT,
    ENTRY_RECORD,
    PASSED,
    STAMPED,
    USED,
    CopyOnWriteLog,
    GroupSnapshot,
)
from dlrover_lite.ps.tables.row_arrays import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="snapshots are taken on Linux")

ROWS, DIM, PARTS, EPOCH = 3000, 3, 1, 77
TABLE_EPOCH = 2


def store_of(random: np.random.Generator) -> Store:
    words = RecordShape(DIM, DIM * PARTS, counted=False).words
    records = random.integers(0, 1 << 32, (ROWS, words), np.uint32)
    records[:, TABLE_EPOCH] = 1 << 20 | (EPOCH - random.integers(0, 50, ROWS))
    flat, no = records.reshape(-1), np.zeros(0, np.uint64)
    u = np.uint64
    return Store(flat, flat.view(np.float32), u(words), u(3), u(0), u(DIM), no, no, flat[:0].view(np.float32))


class Queue:
    """Both sides of a spill: rows change in chunks, entries are taken."""

    def __init__(self, seed: int, capacity: int, segment_rows: int) -> None:
        random = np.random.default_rng(seed)
        self.store = store_of(random)
        self.left = random.permutation(ROWS).astype(np.uint64)
        """Rows that are going to change, in this order."""
        self.cut = GroupSnapshot(RecordShape(DIM, DIM * PARTS, False), ROWS, EPOCH, bytes(8), capacity)
        patch = pytest.MonkeyPatch()
        patch.setattr(spill_module, "SEGMENT_BYTES", segment_rows * self.cut.entry_bytes)
        self.cut = GroupSnapshot(RecordShape(DIM, DIM * PARTS, False), ROWS, EPOCH, bytes(8), capacity)
        self.server = CopyOnWriteLog([self.cut])
        self.persister = CopyOnWriteLog([self.cut], os.dup(self.server.fd))
        self.undo = patch.undo
        self.waiting: list[np.ndarray] = []
        self.longest = 0

    def change(self, n: int) -> None:
        rows, self.left = self.left[:n], self.left[n:]
        words, entries = self.server.areas[0]
        expected = [self.entry(int(row)) for row in rows]
        spill_rows(rows, np.uint64(len(rows)), self.store, words, entries)
        queued = [int(entry[0]) for entry in [*self.waiting, *expected]]
        assert self.persister.overflown or self.persister.waiting_rows(0).tolist() == queued
        assert len(self.persister.waiting(0, 1 << 30)) <= len(self.waiting), (
            "not before rows say that they have changed"
        )
        self.records[rows.astype(np.int64), TABLE_EPOCH] += np.uint32(60)
        words[STAMPED] = words[COUNT]
        spill_rows(rows, np.uint64(len(rows)), self.store, words, entries)  # not again
        self.waiting += expected
        self.longest = max(self.longest, len(self.waiting))

    def entry(self, row: int) -> np.ndarray:
        entry = np.zeros(self.cut.entry_words, np.uint32)
        entry[0] = row
        entry[ENTRY_RECORD:] = self.records[row]
        return entry

    @property
    def records(self) -> np.ndarray:
        return self.store.records.reshape(ROWS, -1)

    def take(self, most: int) -> None:
        while most and len(found := self.persister.waiting(0, most)):
            assert found.tolist() == [entry.tolist() for entry in self.waiting[: len(found)]]
            self.persister.take(0, len(found))
            self.waiting = self.waiting[len(found) :]
            most -= len(found)

    def close(self) -> None:
        self.server.stop()
        while not self.server.free_some():
            pass
        self.server.close()
        self.persister.close()
        self.undo()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    segment_rows=st.integers(1, 40),
    capacity=st.integers(60, 400),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60)), min_size=1, max_size=150),
)
def test_spill_is_a_queue_with_memory_of_its_longest_length(
    seed: int, segment_rows: int, capacity: int, steps: list[tuple[int, int]]
) -> None:
    queue = Queue(seed, capacity, segment_rows)
    try:
        of_segment = queue.cut.segment_rows
        for changed, taken in steps:
            room = (queue.cut.segments - 2) * of_segment - len(queue.waiting)
            queue.change(max(0, min(changed, room, len(queue.left))))
            queue.take(taken)
            assert not queue.persister.overflown
        queue.take(1 << 30)
        assert not queue.waiting
        assert sum(queue.server._bytes()) <= (queue.longest + 2 * of_segment) * queue.cut.entry_bytes
    finally:
        queue.close()


def test_spill_ring_goes_round_many_times() -> None:
    queue = Queue(1, 100, 7)
    try:
        while len(queue.left):
            queue.change(25)
            queue.take(25)
        assert not queue.waiting
        assert sum(queue.server._bytes()) <= 6 * 7 * queue.cut.entry_bytes
    finally:
        queue.close()


def test_an_overflowing_spill_is_reported_and_overwrites_nothing() -> None:
    queue = Queue(2, 50, 10)
    try:
        queue.change(40)
        expected = queue.waiting.copy()
        queue.change(30)
        assert queue.persister.overflown
        assert queue.server.areas[0].words[USED] == 0
        found = queue.persister.waiting(0, 10)
        assert found.tolist() == [entry.tolist() for entry in expected[:10]]
    finally:
        queue.close()


def test_rows_already_read_are_not_spilled() -> None:
    queue = Queue(3, 5000, 10)
    try:
        queue.persister.areas[0].words[PASSED] = ROWS
        rows = queue.left[:50]
        words, entries = queue.server.areas[0]
        spill_rows(rows, np.uint64(50), queue.store, words, entries)
        assert words[COUNT] == 0
    finally:
        queue.close()


def test_spill_memory_is_given_back_little_by_little() -> None:
    queue = Queue(4, 5000, 1000)
    try:
        queue.change(3000)
        queue.server.stop()
        spill_module.FREED_AT_ONCE_BYTES, before = 1 << 12, spill_module.FREED_AT_ONCE_BYTES
        try:
            turns = 1
            while not queue.server.free_some():
                turns += 1
        finally:
            spill_module.FREED_AT_ONCE_BYTES = before
        assert turns > 3000 * queue.cut.entry_bytes >> 12
        assert not queue.server.areas[0].entries.any(), "nothing of it is there"
    finally:
        queue.close()
