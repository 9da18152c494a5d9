"""The arena of one group's records."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError
from dlrover_lite.core.records import TABLE_EPOCH
from dlrover_lite.ps.memory.state_memory import Arenas
from dlrover_lite.ps.tables.row_arrays import TOUCHED, USED

__all__ = ["RowArena"]

_ROWS_MOST = (1 << 32) - 2
"""Maximum number of rows that the index has room for."""
_TOUCH_BYTES = 1 << 20
"""Bytes of memory that new rows get at a time."""
_GIVE_BACK_BYTES = 32 << 20
"""Maximum bytes of memory that one call of ``give_back`` returns: a few milliseconds."""


class RowArena:
    """The memory of one group's records. ``numbers``: the group's, of which it reads the row numbers in use, and keeps those that have
    memory. Beyond those in use records are free: they say that they are of no table."""

    def __init__(
        self, arenas: Arenas, name: str, row_words: int, reserve_bytes: int, numbers: NDArray[np.uint64]
    ) -> None:
        self.row_bytes, self._row_words = 4 * row_words, row_words
        rows = min(reserve_bytes // self.row_bytes, _ROWS_MOST)
        if int(numbers[USED]) and not arenas.left(name):
            raise JobError(f"memory of a parameter server that has ended is gone: {name}")
        self.file = arenas.open(name, max(1, self.row_bytes * rows))
        self.capacity = min(rows, self.file.size // self.row_bytes)
        if int(numbers[USED]) > self.capacity:
            raise JobError(f"{name} is damaged: {int(numbers[USED])} rows where {self.capacity} find room")
        self.records: NDArray[np.uint32] = self.file.bytes.view(np.uint32)
        """Words of all records, as a flat array."""
        self._table_epochs = self.records[: self.capacity * row_words].reshape(-1, row_words)[:, int(TABLE_EPOCH)]
        self._numbers = numbers
        self.free_beyond()

    @property
    def bytes(self) -> int:
        """Bytes of the rows that have memory."""
        return max(self._used, self._touched) * self.row_bytes

    @property
    def slack(self) -> int:
        """Number of rows that have their memory ahead."""
        return _TOUCH_BYTES // self.row_bytes

    def touch(self, new_rows: int) -> None:
        """Have memory for this many more rows, and some beyond."""
        used, touched = self._used, self._touched
        if used + new_rows > touched:
            touched = max(touched, used)
            stop = min(used + new_rows + self.slack, self.capacity)
            end = self.file.touch(touched * self.row_bytes, stop * self.row_bytes)
            self._numbers[TOUCHED] = max(stop, min(end // self.row_bytes, self.capacity))

    def append(self, records: NDArray[np.uint32]) -> bool:
        """Put these records [n, words] (contiguous) behind those in use, which stay as they are; there is address space for them.
        False if it can't be done: they are to be written one by one. ``free_beyond`` those that don't get used."""
        used, stop = self._used, self._used + len(records)
        self._touch_huge(stop)
        if stop <= self._touched:
            self.records[used * self._row_words : stop * self._row_words] = records.reshape(-1)
            return True
        self._numbers[TOUCHED] = stop
        return self.file.put(used * self.row_bytes, records)

    def _touch_huge(self, stop: int) -> None:
        """Have memory for rows below ``stop``, as far as it can be had in huge pages."""
        touched = max(self._touched, self._used)
        if touched < stop:
            end = self.file.touch_huge(touched * self.row_bytes, stop * self.row_bytes)
            self._numbers[TOUCHED] = max(touched, min(end // self.row_bytes, self.capacity))

    def free_beyond(self) -> None:
        """Mark the records beyond those in use as free."""
        if self._touched > self._used:
            self._table_epochs[self._used : min(self._touched, self.capacity)] = 0

    def note_used(self) -> None:
        """Note that rows in use have memory. To be called before their number falls."""
        self._numbers[TOUCHED] = max(self._touched, self._used)

    def give_back(self) -> bool:
        """Return some memory of row numbers no longer used to the system; True when there is no more."""
        if self._touched > self._used + self.slack:
            stop = max(self._used, self._touched - max(1, _GIVE_BACK_BYTES // self.row_bytes))
            self.file.give_back(stop * self.row_bytes, self._touched * self.row_bytes)
            self._numbers[TOUCHED] = stop
        return self._touched <= self._used + self.slack

    @property
    def _used(self) -> int:
        return int(self._numbers[USED])

    @property
    def _touched(self) -> int:
        return int(self._numbers[TOUCHED])
