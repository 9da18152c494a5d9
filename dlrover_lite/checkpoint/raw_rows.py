"""Blocks of rows as they lie: the arrays of a range of row numbers as a parameter server keeps them, or of rows that had changed before
their range was copied, as they were. What is a row, of which table, in which slot, and how old, is found out by whoever reads them."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.buckets import padding
from dlrover_lite.checkpoint.destination import Piece
from dlrover_lite.checkpoint.layout import ALIGNMENT, ArenaFacts, GroupShape
from dlrover_lite.rows import RowData
from dlrover_lite.slots import SlotSet

__all__ = [
    "META_WORDS",
    "NEWER",
    "RawRoom",
    "RawRooms",
    "RawRows",
    "decode_raw_rows",
    "newer_than",
    "raw_row_arrays",
    "raw_row_bytes",
    "slots_of_ids",
]

META_WORDS = 4
"""uint32 words of a row's metadata in a block: the position of its table + 1 (0: there is no row), count of updates, the group's clock at
the last change, and one that means nothing here."""
_TABLE, _COUNT, _CHANGED = range(3)
NEWER = np.uint32(1 << 30)
"""A snapshot takes fewer pushes than this; clocks wrap around, and a row's may be that much older than the snapshot's."""
_SLOT_SHIFT = np.uint64(52)


class RawRows(NamedTuple):
    """Arrays of n row numbers, of which some may be none of rows."""

    ids: NDArray[np.uint64]
    meta: NDArray[np.uint32]
    """[n, 4]"""
    values: NDArray[np.float32]
    """[n, dim]"""
    state: NDArray[np.float32]


def raw_row_bytes(shape: GroupShape) -> int:
    return 8 + 4 * (META_WORDS + shape.dim + shape.state)


def raw_row_arrays(payload: Any, rows: int, shape: GroupShape) -> RawRows:
    """Views of a block's bytes (uncompressed), which must be long enough."""
    position = 0

    def take(kind: str, width: int) -> NDArray[Any]:
        nonlocal position
        array = np.frombuffer(payload, kind, rows * width, position)
        position += array.nbytes
        return array

    ids, meta, values, state = take("<u8", 1), take("<u4", META_WORDS), take("<f4", shape.dim), take("<f4", shape.state)
    return RawRows(
        ids, meta.reshape(rows, META_WORDS), values.reshape(rows, shape.dim), state.reshape(rows, shape.state)
    )


class RawRoom:
    """Memory for one block of any group of a part."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self.group = -1
        self.capacity = 0
        self.rows: RawRows

    def begin(self, group: int, shape: GroupShape, capacity: int) -> None:
        """From now on ``rows`` are those of a block of this group, to be written to."""
        if group != self.group:
            self.group, self.capacity = group, capacity
            size = capacity * raw_row_bytes(shape)
            self._block = self._memory[: size + padding(size, size)]
            self._block[size:] = bytes(len(self._block) - size)
            self.rows = raw_row_arrays(self._block, capacity, shape)

    def first(self, count: int) -> RawRows:
        """The arrays of the first numbers."""
        ids, meta, values, state = self.rows
        return RawRows(ids[:count], meta[:count], values[:count], state[:count])

    def pieces(self, used: int) -> list[Piece]:
        """The first rows as they are stored: all of them with zeros behind them."""
        if used == self.capacity:
            return [self._block]
        return [array[:used].reshape(-1).data.cast("B") for array in self.rows if array.size]


class RawRooms:
    """Rooms for blocks of any of these groups, ``most`` of them. Memory is touched as it is used, in huge pages: to write past the page
    cache from there takes less of the processor."""

    def __init__(self, shapes: list[GroupShape], block_bytes: int, most: int) -> None:
        size = max([block_bytes, *map(raw_row_bytes, shapes)])
        self._stride = size + -size % ALIGNMENT
        self._left = most
        self._memory: memoryview | None = None

    def make(self) -> RawRoom | None:
        """One that was never used; None if there is none."""
        if not self._left:
            return None
        if self._memory is None:
            made = mmap.mmap(-1, self._stride * self._left, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # a kernel without them
                    made.madvise(mmap.MADV_HUGEPAGE)
            self._memory = memoryview(made)
        self._left -= 1
        return RawRoom(self._memory[self._left * self._stride : (self._left + 1) * self._stride])


def newer_than(changed: NDArray[np.uint32], clock: int) -> NDArray[np.bool_]:
    """Which rows, by their clocks, have changed since the group's clock was this."""
    return changed - np.uint32((clock + 1) & 0xFFFFFFFF) < NEWER


def decode_raw_rows(found: RawRows, facts: ArenaFacts, wanted: SlotSet) -> tuple[NDArray[np.uint16], RowData]:
    """Slots and rows, of those in the slots ``wanted`` that had not changed since.

    Raises ValueError for one of a table that there isn't."""
    salts = np.array(facts.salts, np.uint64)
    tables, changed = found.meta[:, _TABLE], found.meta[:, _CHANGED]
    chosen = (tables != 0) & ~newer_than(changed, facts.clock)
    positions = tables - np.uint32(1)  # of those that are no rows it is out of any range
    if (odd := chosen & (positions >= len(salts))).any():
        raise ValueError(f"a row is of table {int(positions[odd][0]) + 1} of {len(salts)}")
    positions[~chosen] = 0
    slots = slots_of_ids(found.ids, salts.take(positions)) if len(salts) else np.zeros(len(positions), np.uint16)
    chosen &= wanted.take(slots)
    ids, meta, values, state = found
    if not chosen.all():
        which = np.flatnonzero(chosen)
        slots, positions, ids, meta = slots[which], positions[which], ids[which], meta[which]
        values, state = values.take(which, axis=0), state.take(which, axis=0)
    ages = np.uint32(facts.clock & 0xFFFFFFFF) - meta[:, _CHANGED]
    counts = np.ascontiguousarray(meta[:, _COUNT])
    return slots, RowData(ids, positions.astype(np.uint16), counts, ages, values, state)


def slots_of_ids(ids: NDArray[np.uint64], salts: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """Slots of keys, each with the salt of its table."""
    x = ids ^ salts
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    x ^= x >> np.uint64(33)
    return (x >> _SLOT_SHIFT).astype(np.uint16)
