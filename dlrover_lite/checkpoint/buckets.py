"""Room for blocks of one group that fill with records: one for each sixteenth of the slots, and some for those that are full and not
written yet."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.destination import Piece
from dlrover_lite.checkpoint.layout import ALIGNMENT, BUCKETS, LARGE_BYTES

__all__ = ["Buckets", "Full", "Room", "padding", "room_apart"]


class Room:
    """Memory of a block as it is stored: full, it is written from there, past the page cache."""

    def __init__(self, memory: memoryview, offset: int, capacity: int, words: int) -> None:
        """Create the room at ``offset`` in ``memory``: at a page. There are zeros."""
        size = 4 * words * capacity
        self._block = memory[offset : offset + size + padding(size, size)]
        self.offset, self.capacity = offset, capacity
        self.records: NDArray[np.uint32] = np.frombuffer(self._block, np.uint32, words * capacity).reshape(-1, words)

    def pieces(self, used: int) -> list[Piece]:
        if used == self.capacity:
            return [self._block]
        return [self.records[:used].reshape(-1).data.cast("B")]


def room_apart(capacity: int, words: int) -> Room:
    """Make a room in memory of its own."""
    size = 4 * words * capacity
    return Room(memoryview(bytearray(size + padding(size, size))), 0, capacity, words)


class Full(NamedTuple):
    """A block to be written."""

    room: Room
    used: int


class Buckets:
    """``memory``, as words: all rooms, for records of so many ``words``. That of each bucket begins at ``offsets`` [16], in words, and the
    first ``used`` [16] records are in it: who puts records there raises that number. ``spare``: rooms beyond those that fill. Memory is
    touched as it is used, in huge pages: to write past the page cache from there takes less of the processor."""

    def __init__(self, words: int, capacity: int, spare: int) -> None:
        """Create the buckets. ``capacity``: rows of a block."""
        self.words, self.capacity = words, capacity
        size = 4 * words * capacity
        stride = size + -size % ALIGNMENT
        made = mmap.mmap(-1, stride * (BUCKETS + spare), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                made.madvise(mmap.MADV_HUGEPAGE)
        view = memoryview(made)
        rooms = [Room(view, number * stride, capacity, words) for number in range(BUCKETS + spare)]
        self.memory: NDArray[np.uint32] = np.frombuffer(made, np.uint32)
        self._filling, self._free = rooms[:BUCKETS], rooms[BUCKETS:]
        self.offsets = np.array([one.offset // 4 for one in self._filling], np.uint64)
        self.used = np.zeros(BUCKETS, np.uint64)

    def take(self, number: int, records: NDArray[np.uint32], which: NDArray[np.intp]) -> int:
        """Put as many of these records into a bucket as there is room for; return how many."""
        start = int(self.used[number])
        which = which[: self.capacity - start]
        # The mode spares numpy a copy: all numbers are good.
        records.take(which, 0, self._filling[number].records[start : start + len(which)], "clip")
        self.used[number] = start + len(which)
        return len(which)

    def empty(self, number: int) -> Full:
        """Take out what is in a bucket, which must be given another room before it is filled again."""
        full = Full(self._filling[number], int(self.used[number]))
        self.used[number] = 0
        return full

    def renew(self, number: int) -> None:
        room = self._filling[number] = self._free.pop()
        self.offsets[number] = room.offset // 4

    def written(self, rooms: list[Full]) -> None:
        """Take back rooms that are written: they may be filled again."""
        self._free += [full.room for full in rooms]


def padding(end: int, size: int, *, last: bool = False) -> int:
    """Return the number of zero bytes behind a block of this size that ends there. What follows the last of a group is aligned."""
    return -end % (ALIGNMENT if last or size >= LARGE_BYTES else 8)
