"""The memory of a group's index and of its counts of rows, which outlives the process as the rows do: who takes it up whole needs no pass
over all rows.

Whether it is whole, one word says (``row_arrays.INDEXED``): 0 from before the first change until after the last one of whatever changes
them. Most pushes make no row, and change neither. What isn't whole, or can't be, is made anew from the rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.ps.memory.arena import Arena
from dlrover_lite.ps.memory.state_memory import Arenas
from dlrover_lite.ps.tables.bucket_index import BucketIndex, index_bytes, is_size
from dlrover_lite.ps.tables.row_arrays import FREE, INDEXED, USED

__all__ = ["KeptIndex"]

_SIZE_WORDS = 8
"""Words before the counts: the first ones are ``Buckets.size``."""


class KeptIndex:
    """``index`` and ``row_counts`` of a group whose arena is called ``name``: those that were left, if they are ``whole``, or new ones
    without anything."""

    def __init__(
        self,
        arenas: Arenas,
        name: str,
        records: NDArray[np.uint32],
        row_words: int,
        capacity: int,
        tables: int,
        numbers: NDArray[np.uint64],
    ) -> None:
        """``capacity``: rows that there may be; ``numbers``: the group's."""
        names = f"{name}-index", f"{name}-counts"
        sizes = index_bytes(capacity), 8 * (_SIZE_WORDS + SLOTS + tables)
        self._records, self._row_words, self._capacity, self._tables = records, row_words, capacity, tables
        self._numbers = numbers
        self.whole = False
        """Whether these are the index and the counts of all rows, none of whose numbers is free."""
        left = [arenas.open(one) for one in names if arenas.left(one)]
        if len(left) == len(names) and all(arena.size >= size for arena, size in zip(left, sizes, strict=True)):
            self.whole = self._take(*left)
        if not self.whole:
            numbers[INDEXED] = 0
            for arena in left:
                arena.close()
            index, counts = (arenas.open(one, size) for one, size in zip(names, sizes, strict=True))
            self._use(index, counts)

    def note_whole(self) -> None:
        """Note that nothing of them changes any more."""
        self._numbers[INDEXED] = 1

    def note_change(self) -> None:
        """Note that something of them is about to change."""
        self._numbers[INDEXED] = 0

    def _take(self, index: Arena, counts: Arena) -> bool:
        """Take up what was left. False if it isn't whole, or can't be."""
        used = int(self._numbers[USED])
        size = counts.bytes[: 8 * 4].view(np.uint64)
        if self._numbers[INDEXED] != 1 or self._numbers[FREE] or not is_size(size, self._capacity):
            return False
        self._use(index, counts)
        slots, of_tables = self.row_counts[:SLOTS], self.row_counts[SLOTS:]
        counted = min(slots.min(), of_tables.min()) >= 0 and slots.sum() == of_tables.sum() == used
        return bool(counted) and self.index.entries(used) == used

    def _use(self, index: Arena, counts: Arena) -> None:
        words = counts.bytes[: 8 * (_SIZE_WORDS + SLOTS + self._tables)]
        self.row_counts: NDArray[np.int64] = words[8 * _SIZE_WORDS :].view(np.int64)
        """Live rows of each slot [4096], then of each table."""
        self.index = BucketIndex(
            self._records,
            self._row_words,
            self._capacity,
            memory=index,
            size=words[: 8 * 4].view(np.uint64),
            indexed=self._numbers[int(INDEXED) : int(INDEXED) + 1],
        )
