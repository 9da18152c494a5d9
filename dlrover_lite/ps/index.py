"""The index of a table group: open addressing from a key's hash to its row.

An entry is two uint64: the key's hash, and row number + 1 in the low 48 bits with the table above; 0 is free. Linear probing from the
hash's low bits; an entry that goes is filled by those after it, so there are no tombstones.

It changes its size little by little beside the requests of training (at once, an index of 8 M rows takes 0.15 s): the next index is
cleared and then swept row by row, in steps that are as long as rows come in fast. It has the rows below ``swept``, so one of those that
comes or goes does so in both; keys are looked up in the old one until the sweep has reached the last row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.errors import JobError
from dlrover_lite.kernels import kernel, prefetch
from dlrover_lite.ps.hashing import mix64
from dlrover_lite.ps.rows import META_WORDS, TABLE, Store

__all__ = ["CHUNK", "ROW_MASK", "TABLE_SHIFT", "Entries", "Index", "enter", "probe", "remove"]

CHUNK = 128
"""Keys that go through a kernel together, so that their cache misses overlap."""
TABLE_SHIFT = np.uint64(48)
ROW_MASK = np.uint64((1 << 48) - 1)

_FIRST_SIZE = 1 << 12
_GROW, _FULL, _SPARSE = 0.55, 0.7, 0.05
"""Rows per entry: from which the index begins to grow, at most, and below which it is far too large."""
_AT_ONCE = 1 << 14
"""Up to so many rows an index is rebuilt in one go: a millisecond or less."""
_STEP = 1024
"""Rows swept beside each request at least."""
_CLEARED = 16
"""Words cleared in the time that it takes to sweep a row."""
_HASTE = 1.25
"""How much faster it grows than it has to."""

_U0, _U1, _U2 = np.uint64(0), np.uint64(1), np.uint64(2)
_META = np.uint64(META_WORDS)


class Entries(NamedTuple):
    """The index as kernels take it, and the one that is to follow, if ``swept`` isn't 0."""

    words: NDArray[np.uint64]
    mask: np.uint64
    next_words: NDArray[np.uint64]
    next_mask: np.uint64
    swept: np.uint64


@kernel
def probe(key_hash, table, words, mask):  # type: ignore[no-untyped-def]
    """Position of the key's entry, or of the free one where it would go."""
    position = key_hash & mask
    while True:
        entry = words[position * _U2 + _U1]
        if entry == _U0 or (words[position * _U2] == key_hash and entry >> TABLE_SHIFT == table):
            return position
        position = (position + _U1) & mask


@kernel
def enter(key_hash, table, row, words, mask):  # type: ignore[no-untyped-def]
    """A key that isn't there yet."""
    position = key_hash & mask
    while words[position * _U2 + _U1] != _U0:
        position = (position + _U1) & mask
    words[position * _U2] = key_hash
    words[position * _U2 + _U1] = (table << TABLE_SHIFT) | (row + _U1)


@kernel
def remove(position, words, mask):  # type: ignore[no-untyped-def]
    """Free the entry at ``position``: later ones of the same run move back into the hole, unless that is before their home."""
    hole = position
    while True:
        position = (position + _U1) & mask
        entry = words[position * _U2 + _U1]
        if entry == _U0:
            words[hole * _U2 + _U1] = _U0
            return
        home = words[position * _U2] & mask
        if (position - home) & mask >= (position - hole) & mask:
            words[hole * _U2] = words[position * _U2]
            words[hole * _U2 + _U1] = entry
            hole = position


@kernel
def _sweep(store, start, stop, words, mask):  # type: ignore[no-untyped-def]
    """Enter the live rows of [start, stop)."""
    ids, meta, salts = store.ids, store.meta, store.salts
    hashes = np.empty(CHUNK, np.uint64)
    while start < stop:
        n = min(np.uint64(CHUNK), stop - start)
        for i in range(n):
            table = np.uint64(meta[(start + i) * _META + TABLE])
            if table != _U0:
                hashes[i] = mix64(ids[start + i] ^ salts[table - _U1])
                prefetch(words, np.int64((hashes[i] & mask) * _U2))
        for i in range(n):
            table = np.uint64(meta[(start + i) * _META + TABLE])
            if table != _U0:
                enter(hashes[i], table - _U1, start + i, words, mask)
        start += n


class Index:
    """``entries`` is replaced when the index grows or shrinks; kernels change it in place. ``rows`` counts live ones, ``used``
    the row numbers in use."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.entries = _entries(np.zeros(2 * _FIRST_SIZE, np.uint64))
        self._next: NDArray[np.uint64] | None = None
        self._cleared = 0
        self._pace = 0

    @property
    def size(self) -> int:
        return len(self.entries.words) // 2

    @property
    def changing(self) -> bool:
        """It is about to have another size."""
        return self._next is not None

    @property
    def bytes(self) -> int:
        return self.entries.words.nbytes + (0 if self._next is None else self._next.nbytes)

    def restore(self, used: int, row_counts: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Enter the rows below ``used`` that live, and add them to ``row_counts``; the other numbers, rising. Raises JobError for arenas
        that hold something else."""
        from dlrover_lite.ps.restore_kernels import restore

        words = np.zeros(2 * _size_for(used), np.uint64)
        self.entries = _entries(words)
        free = np.empty(used, np.uint64)
        freed, right = restore(self._store, np.uint64(used), words, self.entries.mask, row_counts, free)
        if right < used:
            raise JobError(
                f"rows of a parameter server that has ended are damaged: row {right} of {used} is of no table"
            )
        return free[: int(freed)].copy()

    def make_room(self, rows: int, used: int) -> None:
        """For so many rows, right now."""
        if self._next is not None and rows > len(self._next) // 2 * _FULL:
            self.stay()
        if rows > self.size * _FULL:
            if self._next is None:
                self._begin(_size_for(rows), rows, used)
            if self._next is not None:
                self._work(len(self._next) + used, used)

    def reserve(self, rows: int, more_rows: int, used: int) -> None:
        """Begin to grow for so many more, if that takes a larger index."""
        size = _size_for(rows + more_rows)
        if size > max(self.size, 0 if self._next is None else len(self._next) // 2):
            self._begin(size, rows, used)

    def advance(self, new_rows: int, rows: int, used: int) -> None:
        """So many rows have come: grow on, or begin to, if the index needs to grow."""
        if self._next is None and rows > self.size * _GROW:
            self._begin(2 * self.size, rows, used)
        if self._next is not None:
            self._work(new_rows * self._pace + _STEP, used)

    def shrink(self, limit: int, rows: int, used: int) -> bool:
        """If it is far too large for so many rows: ``limit`` of them further. True if there is no more to do."""
        if self._next is None and rows < self.size * _SPARSE and _size_for(2 * rows) < self.size:
            self._begin(_size_for(2 * rows), rows, used)
        if self._next is not None:
            self._work(limit, used)
        return self._next is None

    def stay(self) -> None:
        """Don't change size: rows get other numbers."""
        self._next = None
        self.entries = _entries(self.entries.words)

    def _begin(self, size: int, rows: int, used: int) -> None:
        self.entries = _entries(self.entries.words)
        if used <= _AT_ONCE:
            self._next, self._cleared = np.zeros(2 * size, np.uint64), 2 * size
            self._work(used + 1, used)
            return
        self._next, self._cleared = np.empty(2 * size, np.uint64), 0
        # done by the time that the old one is full
        headroom = max(1, int(self.size * _FULL) - rows)
        self._pace = 1 + int(_HASTE * (len(self._next) // _CLEARED + used) / headroom)

    def _work(self, rows: int, used: int) -> None:
        """Sweep so many rows, or clear as much as takes as long."""
        words = self._next
        assert words is not None
        if self._cleared < len(words):
            stop = min(len(words), self._cleared + rows * _CLEARED)
            words[self._cleared : stop] = 0
            rows -= (stop - self._cleared) // _CLEARED
            self._cleared = stop
        if self._cleared == len(words) and rows > 0:
            mask = np.uint64(len(words) // 2 - 1)
            start, stop = int(self.entries.swept), min(used, int(self.entries.swept) + rows)
            _sweep(self._store, np.uint64(start), np.uint64(stop), words, mask)
            self.entries = self.entries._replace(next_words=words, next_mask=mask, swept=np.uint64(stop))
            if stop == used:
                self._next, self.entries = None, _entries(words)


def _entries(words: NDArray[np.uint64]) -> Entries:
    return Entries(words, np.uint64(len(words) // 2 - 1), _NO_WORDS, _U0, _U0)


def _size_for(rows: int) -> int:
    """Smallest one that needn't grow with so many rows."""
    size = _FIRST_SIZE
    while rows > size * _GROW:
        size *= 2
    return size


_NO_WORDS = np.zeros(2, np.uint64)
