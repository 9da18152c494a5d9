"""The index of a table group: open addressing from a key's hash to its row.

An entry is two uint64: the key's hash, and row number + 1 in the low 48 bits with the table above; 0 is free. Linear probing from the
hash's low bits; an entry that goes is filled by those after it, so there are no tombstones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.kernels import kernel, prefetch
from dlrover_lite.ps.hashing import mix64
from dlrover_lite.ps.rows import META_WORDS, TABLE, Store

__all__ = ["CHUNK", "ROW_MASK", "TABLE_SHIFT", "Entries", "Index", "enter", "probe", "remove"]

CHUNK = 128
"""Keys that go through a kernel together, so that their cache misses overlap."""
TABLE_SHIFT = np.uint64(48)
ROW_MASK = np.uint64((1 << 48) - 1)

_FIRST_SIZE = 1 << 12
_LOAD = 0.6
"""Rows per entry at most."""
_SPARSE = 0.05
"""Rows per entry below which an index is far too large."""

_U0, _U1, _U2 = np.uint64(0), np.uint64(1), np.uint64(2)
_META = np.uint64(META_WORDS)


class Entries(NamedTuple):
    """The index as kernels take it."""

    words: NDArray[np.uint64]
    mask: np.uint64


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
    """``entries`` is replaced when the index grows or shrinks; kernels change it in place."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.entries = _entries(_FIRST_SIZE)

    @property
    def size(self) -> int:
        return len(self.entries.words) // 2

    @property
    def bytes(self) -> int:
        return self.entries.words.nbytes

    def make_room(self, rows: int, used: int) -> None:
        """For so many rows in all; ``used``: row numbers in use."""
        size = self.size
        while rows > size * _LOAD:
            size *= 2
        self._rebuild(size, used)

    def shrink(self, rows: int, used: int) -> None:
        """If it is far too large for so many rows."""
        if rows < self.size * _SPARSE:
            size = _FIRST_SIZE
            while rows > size * _LOAD / 2:
                size *= 2
            self._rebuild(size, used)

    def _rebuild(self, size: int, used: int) -> None:
        if size != self.size:
            entries = _entries(size)
            _sweep(self._store, np.uint64(0), np.uint64(used), *entries)
            self.entries = entries


def _entries(size: int) -> Entries:
    return Entries(np.zeros(2 * size, np.uint64), np.uint64(size - 1))
