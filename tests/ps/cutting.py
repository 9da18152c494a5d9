"""Cuts of one server: what must be in them, and what is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from dlrover_lite import slots as slot_sets
from dlrover_lite.checkpoint.buckets import Buckets
from dlrover_lite.checkpoint.cut_writer import CutWriter
from dlrover_lite.checkpoint.layout import BLOCK_BYTES, ArenaFacts, GroupShape
from dlrover_lite.checkpoint.manifest import Consumed, Manifest, PartEntry, configuration_of
from dlrover_lite.checkpoint.part_writer import PartWriter
from dlrover_lite.checkpoint.raw_rows import RawRoom, RawRooms, raw_row_bytes, slots_of_ids
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.ps.cut_reader import CutReader, GroupFiles
from dlrover_lite.ps.engine import Engine
from dlrover_lite.ps.marks import to_bitmap
from dlrover_lite.ps.snapshot import Snapshot
from dlrover_lite.ps.spill import Spill
from dlrover_lite.rows import RowData

Key = tuple[int, int, int]
"""Group, table, id."""
NO_SLOTS = slot_sets.none()


class Row(NamedTuple):
    values: bytes
    state: bytes
    count: int
    changed: int
    """The group's clock then."""
    slot: int


def clocks_of(engine: Engine) -> list[int]:
    return [group.cut().clock for group in engine.groups]


def state_of(engine: Engine) -> dict[Key, Row]:
    """All rows of the slots owned."""
    found = {}
    members = slot_sets.unpack(to_bitmap(engine.owned))
    for g, group in enumerate(engine.groups):
        numbers, _ = group.find(members, 0, scan_limit=1 << 40, row_limit=1 << 40)
        data = group.read(numbers)
        clock = group.cut().clock
        salts = np.frombuffer(group.cut().salts, np.uint64)
        slots = slots_of_ids(data.ids, salts[data.tables])
        for i in range(len(numbers)):
            key = g, int(data.tables[i]), int(data.ids[i])
            changed = (clock - int(data.ages[i])) & 0xFFFFFFFF
            row = Row(data.values[i].tobytes(), data.state[i].tobytes(), int(data.counts[i]), changed, int(slots[i]))
            found[key] = row
    return found


def read_cut(store: CheckpointStore, cut: int, *, kernels: bool = False) -> dict[Key, Row]:
    """What whoever restores it has."""
    found: dict[Key, Row] = {}
    clocks = {manifest.cut: manifest.parts[0].clocks for manifest in store.chain(cut)}
    for block in store.rows(cut, kernels=kernels):
        rows = block.rows
        for i in range(len(block.slots)):
            key = block.group, int(rows.tables[i]), int(rows.ids[i])
            changed = (clocks[block.cut][block.group] - int(rows.ages[i])) & 0xFFFFFFFF
            values, state = rows.values[i].tobytes(), rows.state[i].tobytes()
            found[key] = Row(values, state, int(rows.counts[i]), changed, int(block.slots[i]))
    return found


def arrays_of(engine: Engine) -> list[list[np.ndarray]]:
    """All rows of the slots owned, by group: tables and ids, by which they are sorted, clocks of their last change, counts, values and
    state. As ``state_of``, for more rows."""
    found = []
    members = slot_sets.unpack(to_bitmap(engine.owned))
    for group in engine.groups:
        numbers, _ = group.find(members, 0, scan_limit=1 << 40, row_limit=1 << 40)
        found.append(_sorted(group.read(numbers), group.cut().clock))
    return found


def arrays_read(store: CheckpointStore, cut: int) -> list[list[np.ndarray]]:
    """What whoever restores it has."""
    clocks = {manifest.cut: manifest.parts[0].clocks for manifest in store.chain(cut)}
    groups: list[list[list[np.ndarray]]] = [[] for _ in clocks[cut]]
    for block in store.rows(cut):
        groups[block.group].append(_sorted(block.rows, clocks[block.cut][block.group]))
    found = []
    for blocks in groups:
        arrays = [np.concatenate([block[i] for block in blocks][::-1]) for i in range(6)]
        names = arrays[0].astype(np.uint64) << np.uint64(48) | arrays[1]
        _, last = np.unique(names, return_index=True)
        found.append([array[last] for array in arrays])
    return found


def _sorted(rows: RowData, clock: int) -> list[np.ndarray]:
    order = np.lexsort((rows.ids, rows.tables))
    arrays = rows.tables, rows.ids, np.uint32(clock) - rows.ages, rows.counts, rows.values, rows.state
    return [array[order] for array in arrays]


def same(one: list[list[np.ndarray]], other: list[list[np.ndarray]]) -> bool:
    """Bit for bit."""
    if len(one) != len(other):
        return False
    pairs = [pair for a, b in zip(one, other, strict=True) for pair in zip(a, b, strict=True)]
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def commit(store: CheckpointStore, engine: Engine, cut: int, part: PartEntry, builds_on: int | None = None) -> None:
    """With one more part, of a server that has the other slots and no rows."""
    assert engine.configuration is not None
    writer = store.join(cut)
    shapes = [GroupShape(group.dim, group.dim * group.parts) for group in engine.groups]
    with writer.part("job", part.ps + 1, ~slot_sets.unpack(part.slots), shapes) as other:
        rest = other.finish()
    writer.commit(
        Manifest(
            job="job",
            cut=cut,
            at=1e9 + cut,
            builds_on=builds_on,
            map_version=1,
            consumed=Consumed(),
            configuration=configuration_of(engine.configuration),
            groups=shapes,
            parts=[part, rest],
        )
    )


def part_of(snapshot: Snapshot, writer: CutWriter, *, block_bytes: int = BLOCK_BYTES) -> PartWriter:
    """As the persister makes it."""
    shapes = [GroupShape(group.dim, group.state) for group in snapshot.groups]
    arenas = [ArenaFacts(group.clock, np.frombuffer(group.salts, np.uint64).tolist()) for group in snapshot.groups]
    owned = slot_sets.unpack(to_bitmap(snapshot.owned))
    return writer.part("job", 0, owned, shapes, block_bytes=block_bytes, arenas=arenas)


class Nowhere:
    """A part that isn't kept."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.count = 0
        """Of rows."""
        self._shapes = [GroupShape(group.dim, group.state) for group in snapshot.groups]
        self._buckets: dict[int, Buckets] = {}

    def room(self, group: int) -> RawRoom:
        room = RawRooms(self._shapes, 4096, 1).make()
        assert room is not None
        room.begin(group, self._shapes[group], max(1, 4096 // raw_row_bytes(self._shapes[group])))
        return room

    def lay(self, room: RawRoom, used: int) -> None:
        assert used <= room.capacity

    def counted(self, group: int, rows: int) -> None:
        self.count += rows

    def buckets(self, group: int) -> Buckets:
        return self._buckets.setdefault(group, Buckets(self._shapes[group], 1000, 0))

    def flush_full(self) -> None:
        pass

    def add(self, group: int, rows: RowData, slots: np.ndarray, which: np.ndarray | None = None) -> None:
        self.count += len(slots if which is None else which)


@contextmanager
def snapshot_of(engine: Engine, since: list[int] | None = None, spill_bytes: int = 0) -> Iterator[Snapshot]:
    snapshot = Snapshot(engine, since or [], spill_bytes)
    try:
        yield snapshot
    finally:
        snapshot.end().close()


@contextmanager
def reader_of(snapshot: Snapshot, whole: slot_sets.SlotSet = NO_SLOTS, *, kernels: bool = False) -> Iterator[CutReader]:
    """As the persister makes it."""
    *files, spill_fd = snapshot.files
    spill = Spill(snapshot.groups, os.dup(spill_fd))
    groups = [GroupFiles(*files[start : start + 4]) for start in range(0, len(files), 4)]
    try:
        owned = slot_sets.unpack(to_bitmap(snapshot.owned))
        yield CutReader(snapshot.groups, groups, spill, owned, whole, kernels=kernels)
    finally:
        spill.close()
