"""Snapshots of one server: what must be in them, and what is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from dlrover_lite.checkpoint.buckets import Buckets
from dlrover_lite.checkpoint.layout import BLOCK_BYTES, GroupShape
from dlrover_lite.checkpoint.manifest import Consumed, Manifest, PartEntry, configuration_of
from dlrover_lite.checkpoint.part_writer import PartWriter
from dlrover_lite.checkpoint.store import CheckpointStore, CheckpointWriter
from dlrover_lite.core import slot_sets
from dlrover_lite.core.records import RecordShape, epochs_of, hashes_of, positions_of, slots_of, unpack_rows
from dlrover_lite.ps.journal.applied_minibatches import to_bitmap
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.snapshots.copy_on_write_log import CopyOnWriteLog
from dlrover_lite.ps.snapshots.snapshot import Snapshot
from dlrover_lite.ps.snapshots.snapshot_reader import SnapshotReader

Key = tuple[int, int, int]
"""Group, table, id."""
NO_SLOTS = slot_sets.none()


class Row(NamedTuple):
    values: bytes
    state: bytes
    count: int
    epoch: int
    """Of the last change."""
    slot: int


def epochs_now(engine: Engine) -> list[int]:
    return [int(group._epoch) for group in engine.groups]


def _records_of(engine: Engine) -> list[np.ndarray]:
    """Of all rows of the slots owned, by group."""
    members = slot_sets.unpack(to_bitmap(engine.owned))
    found = []
    for group in engine.groups:
        numbers, _ = group.find(members, 0, scan_limit=1 << 40, row_limit=1 << 40)
        found.append(group.read_records(numbers))
    return found


def _rows_of(g: int, records: np.ndarray, shape: RecordShape, salts: np.ndarray) -> dict[Key, Row]:
    data, epochs, slots = unpack_rows(records, shape, salts), epochs_of(records), slots_of(records)
    found = {}
    for i in range(len(records)):
        values, state = data.values[i].tobytes(), data.state[i].tobytes()
        row = Row(values, state, int(data.counts[i]), int(epochs[i]), int(slots[i]))
        found[g, int(data.tables[i]), int(data.ids[i])] = row
    return found


def state_of(engine: Engine) -> dict[Key, Row]:
    """All rows of the slots owned."""
    found: dict[Key, Row] = {}
    for g, (group, records) in enumerate(zip(engine.groups, _records_of(engine), strict=True)):
        found |= _rows_of(g, records, group.shape, group._store.salts)
    return found


def read_checkpoint(store: CheckpointStore, cut: int) -> dict[Key, Row]:
    """What whoever restores it has."""
    found: dict[Key, Row] = {}
    for block in store.rows(cut):
        assert block.records is not None
        found |= _rows_of(block.group, *block.records)
    return found


def arrays_of(engine: Engine) -> list[list[np.ndarray]]:
    """Records of all rows of the slots owned, by group, in the order of their keys. As ``state_of``, for more rows."""
    return [[_sorted(records)] for records in _records_of(engine)]


def arrays_read(store: CheckpointStore, cut: int) -> list[list[np.ndarray]]:
    """What whoever restores it has."""
    groups: list[list[np.ndarray]] = [[] for _ in store.manifest(cut).groups]
    for block in store.rows(cut):
        assert block.records is not None
        groups[block.group].append(block.records.words)
    found = []
    for g, blocks in enumerate(groups):
        words = store.manifest(cut).groups[g].record.words
        records = np.concatenate([np.empty((0, words), np.uint32), *blocks[::-1]])
        _, last = np.unique(_names(records), return_index=True, axis=0)
        found.append([_sorted(records[last])])
    return found


def _names(records: np.ndarray) -> np.ndarray:
    return np.stack([positions_of(records).astype(np.uint64), hashes_of(records)], axis=1)


def _sorted(records: np.ndarray) -> np.ndarray:
    return records[np.lexsort((hashes_of(records), positions_of(records)))]


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
    shapes = shapes_of(engine)
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


def shapes_of(engine: Engine) -> list[GroupShape]:
    return [
        GroupShape(group.dim, group.shape.state, counted=group.shape.counted, salts=group._store.salts.tolist())
        for group in engine.groups
    ]


def part_of(snapshot: Snapshot, writer: CheckpointWriter, *, block_bytes: int = BLOCK_BYTES) -> PartWriter:
    """As the persister makes it."""
    owned = slot_sets.unpack(to_bitmap(snapshot.owned))
    return writer.part("job", 0, owned, [group.stored for group in snapshot.groups], block_bytes=block_bytes)


class Nowhere:
    """A part that isn't kept."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.count = 0
        """Of rows."""
        self._shapes = [group.shape for group in snapshot.groups]
        self._buckets: dict[int, Buckets] = {}

    def buckets(self, group: int) -> Buckets:
        return self._buckets.setdefault(group, Buckets(self._shapes[group].words, 1000, 0))

    def flush_full(self) -> None:
        for buckets in self._buckets.values():
            self.count += int(buckets.used.sum())
            buckets.used[:] = 0

    def add(self, group: int, records: np.ndarray) -> None:
        assert records.shape[1] == self._shapes[group].words
        self.count += len(records)

    set_aside = add


@contextmanager
def snapshot_of(engine: Engine, since: list[int] | None = None, spill_bytes: int = 0) -> Iterator[Snapshot]:
    snapshot = Snapshot(engine, since or [], spill_bytes)
    try:
        yield snapshot
    finally:
        snapshot.end().close()


@contextmanager
def reader_of(
    snapshot: Snapshot, whole: slot_sets.SlotSet = NO_SLOTS, *, kernels: bool = False
) -> Iterator[SnapshotReader]:
    """As the persister makes it."""
    *files, spill_fd = snapshot.files
    spill = CopyOnWriteLog(snapshot.groups, os.dup(spill_fd))
    try:
        owned = slot_sets.unpack(to_bitmap(snapshot.owned))
        yield SnapshotReader(snapshot.groups, files, spill, owned, whole, kernels=kernels)
    finally:
        spill.close()
