"""The arenas of one group's rows: ids, metadata, values and state, each in one of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.errors import JobError
from dlrover_lite.ps.memory import Arenas
from dlrover_lite.ps.rows import META_WORDS, TOUCHED, USED

__all__ = ["RowArenas"]

_TOUCH_BYTES = 1 << 20
"""New rows get their memory so much at a time."""
_GIVE_BACK_BYTES = 32 << 20
"""Memory that one call of ``give_back`` returns at most: a few milliseconds."""


class RowArenas:
    """``numbers``: the group's, of which it reads the row numbers in use, and keeps those that have memory."""

    def __init__(
        self,
        arenas: Arenas,
        name: str,
        dim: int,
        parts: int,
        reserve_bytes: int,
        numbers: NDArray[np.uint64],
    ) -> None:
        sizes = {"ids": 8, "meta": 4 * META_WORDS, "values": 4 * dim, "state": 4 * dim * parts}
        self.row_bytes = sum(sizes.values())
        rows = min(reserve_bytes // self.row_bytes, 1 << 40)
        missing = [f"{name}-{part}" for part in sizes if not arenas.left(f"{name}-{part}")]
        if int(numbers[USED]) and missing:
            raise JobError(f"memory of a parameter server that has ended is gone: {', '.join(missing)}")
        opened = [arenas.open(f"{name}-{part}", max(1, size * rows)) for part, size in sizes.items()]
        self.files = opened
        """Arenas of ids, metadata, values and state."""
        self._arenas = [(arena, size) for arena, size in zip(opened, sizes.values(), strict=True) if size]
        self._columns, self._meta = (opened[0], *opened[2:]), opened[1]
        self.capacity = min(rows, *(arena.size // size for arena, size in self._arenas))
        if int(numbers[USED]) > self.capacity:
            raise JobError(f"{name} is damaged: {int(numbers[USED])} rows where {self.capacity} find room")
        ids, meta, values, state = (arena.bytes for arena in opened)
        self.ids: NDArray[np.uint64] = ids.view(np.uint64)
        self.meta: NDArray[np.uint32] = meta.view(np.uint32)
        self.values: NDArray[np.float32] = values.view(np.float32)
        self.state: NDArray[np.float32] = state.view(np.float32)
        self._numbers = numbers

    @property
    def bytes(self) -> int:
        """Of the rows that have memory."""
        return max(self._used, self._touched) * self.row_bytes

    @property
    def slack(self) -> int:
        """Rows that have their memory ahead."""
        return _TOUCH_BYTES // self.row_bytes

    def touch(self, new_rows: int) -> None:
        """Have memory for so many more rows, and some beyond."""
        used, touched = self._used, self._touched
        if used + new_rows > touched:
            touched = max(touched, used)
            stop = min(used + new_rows + self.slack, self.capacity)
            for arena, size in self._arenas:
                arena.touch(touched * size, stop * size)
            self._numbers[TOUCHED] = stop

    def append(self, ids: NDArray[np.uint64], values: NDArray[np.float32], state: NDArray[np.float32]) -> bool:
        """Put the ids, values and state of n rows (contiguous) behind those in use, which stay as they are; there is address space for
        them. Their metadata has memory then. False if it can't be done: the rows are to be written one by one."""
        used, touched = self._used, self._touched
        stop = used + len(ids)
        columns: tuple[NDArray[Any], ...] = (ids, values, state)
        for arena, column in zip(self._columns, columns, strict=True):
            if column.nbytes and not arena.put(used * (column.nbytes // len(ids)), column):
                return False
        if stop > touched:
            self._meta.touch(4 * META_WORDS * max(touched, used), 4 * META_WORDS * stop)
            self._numbers[TOUCHED] = stop
        return True

    def note_used(self) -> None:
        """Rows in use have memory: to be called before their number falls."""
        self._numbers[TOUCHED] = max(self._touched, self._used)

    def give_back(self) -> bool:
        """Some memory of row numbers no longer used; True when there is no more."""
        if self._touched > self._used + self.slack:
            stop = max(self._used, self._touched - max(1, _GIVE_BACK_BYTES // self.row_bytes))
            for arena, size in self._arenas:
                arena.give_back(stop * size, self._touched * size)
            self._numbers[TOUCHED] = stop
        return self._touched <= self._used + self.slack

    @property
    def _used(self) -> int:
        return int(self._numbers[USED])

    @property
    def _touched(self) -> int:
        return int(self._numbers[TOUCHED])
