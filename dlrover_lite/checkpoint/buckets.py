"""Room for blocks of one group that fill with rows: one for each sixteenth of the slots, and some for those that are full and not
written yet."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.destination import Piece
from dlrover_lite.checkpoint.layout import ALIGNMENT, BUCKETS, LARGE_BYTES, GroupShape, block_arrays
from dlrover_lite.rows import RowData

__all__ = ["Buckets", "Full", "Room", "padding"]


class Room:
    """Where a block lies as it is stored: full, it is written from there, past the page cache. Memory is touched as it fills."""

    def __init__(self, memory: memoryview, offset: int, capacity: int, shape: GroupShape) -> None:
        """``offset`` in ``memory``: at a page. There are zeros."""
        size = capacity * shape.known_row_bytes
        self._block = memory[offset : offset + size + padding(size, size)]
        self.offset, self.capacity = offset, capacity
        self.slots, self.rows = block_arrays(self._block, capacity, shape)

    def take(self, rows: RowData, slots: NDArray[np.uint16], which: NDArray[np.intp], start: int) -> None:
        """These of the rows, as those from ``start`` on."""
        stop = start + len(which)
        columns: Iterable[tuple[NDArray[Any], NDArray[Any]]] = zip(rows, self.rows, strict=True)
        for source, target in columns:
            # The mode spares numpy a copy: all numbers are good.
            source.take(which, 0, target[start:stop], "clip")
        slots.take(which, 0, self.slots[start:stop], "clip")

    def pieces(self, used: int) -> list[Piece]:
        if used == self.capacity:
            return [self._block]
        rows = self.rows
        arrays: tuple[NDArray[Any], ...] = (
            rows.ids,
            rows.values,
            rows.state,
            rows.counts,
            rows.ages,
            self.slots,
            rows.tables,
        )
        return [array[:used].data.cast("B") for array in arrays if array.size]


class Full(NamedTuple):
    """A block to be written."""

    room: Room
    used: int


class Buckets:
    """``memory``, as bytes: all rooms. That of each bucket begins at ``offsets`` [16], and the first ``used`` [16] rows are in it: who
    puts rows there raises that number. ``spare``: rooms beyond those that fill."""

    def __init__(self, shape: GroupShape, capacity: int, spare: int) -> None:
        """``capacity``: rows of a block."""
        self.shape, self.capacity = shape, capacity
        size = capacity * shape.known_row_bytes
        stride = size + -size % ALIGNMENT
        room = mmap.mmap(-1, stride * (BUCKETS + spare), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        view = memoryview(room)
        rooms = [Room(view, number * stride, capacity, shape) for number in range(BUCKETS + spare)]
        self.memory: NDArray[np.uint8] = np.frombuffer(room, np.uint8)
        self._filling, self._free = rooms[:BUCKETS], rooms[BUCKETS:]
        self.offsets = np.array([one.offset for one in self._filling], np.int64)
        self.used = np.zeros(BUCKETS, np.int64)

    def take(self, number: int, rows: RowData, slots: NDArray[np.uint16], which: NDArray[np.intp]) -> int:
        """As many of these rows into a bucket as there is room for; how many."""
        start = int(self.used[number])
        which = which[: self.capacity - start]
        self._filling[number].take(rows, slots, which, start)
        self.used[number] = start + len(which)
        return len(which)

    def empty(self, number: int) -> Full:
        """What is in a bucket, which must be given another room before it is filled again."""
        full = Full(self._filling[number], int(self.used[number]))
        self.used[number] = 0
        return full

    def renew(self, number: int) -> None:
        room = self._filling[number] = self._free.pop()
        self.offsets[number] = room.offset

    def written(self, rooms: list[Full]) -> None:
        """They may be filled again."""
        self._free += [full.room for full in rooms]


def padding(end: int, size: int, *, last: bool = False) -> int:
    """Zeros behind a block of this size that ends there. What follows the last of a group is aligned."""
    return -end % (ALIGNMENT if last or size >= LARGE_BYTES else 8)
