"""What a process that takes up the arenas of another finds out about their rows, in one pass: index, free numbers, rows of each slot."""

from __future__ import annotations

import numpy as np

from dlrover_lite.kernels import kernel, prefetch
from dlrover_lite.ps.hashing import SLOT_SHIFT, mix64
from dlrover_lite.ps.index import CHUNK, TABLE_SHIFT, probe
from dlrover_lite.ps.rows import META_WORDS, TABLE
from dlrover_lite.ps.slot_counters import TABLE_ROWS

__all__ = ["restore"]

_U0, _U1, _U2 = np.uint64(0), np.uint64(1), np.uint64(2)
_META = np.uint64(META_WORDS)
_SHIFT = np.uint64(SLOT_SHIFT)


@kernel
def restore(store, used, words, mask, row_counts, free):  # type: ignore[no-untyped-def]
    """Enter the live rows below ``used`` into an empty index, count them by slot and table, and list the numbers that are free, rising: how
    many, and the first row whose table is none (``used``: all are right).

    A key that comes twice was about to move from one of the two numbers to the other, and is the same in both: the latter is freed.
    """
    ids, meta, salts = store.ids, store.meta, store.salts
    tables = np.uint64(salts.shape[0])
    hashes = np.empty(CHUNK, np.uint64)
    freed = _U0
    for start in range(_U0, used, np.uint64(CHUNK)):
        n = min(np.uint64(CHUNK), used - start)
        for i in range(n):
            table = np.uint64(meta[(start + i) * _META + TABLE])
            if table > tables:
                return freed, start + i
            if table != _U0:
                hashes[i] = mix64(ids[start + i] ^ salts[table - _U1])
                prefetch(words, np.int64((hashes[i] & mask) * _U2))
        for i in range(n):
            row = start + i
            table = np.uint64(meta[row * _META + TABLE])
            if table != _U0:
                position = probe(hashes[i], table - _U1, words, mask)
                if words[position * _U2 + _U1] == _U0:
                    words[position * _U2] = hashes[i]
                    words[position * _U2 + _U1] = ((table - _U1) << TABLE_SHIFT) | (row + _U1)
                    row_counts[hashes[i] >> _SHIFT] += 1
                    row_counts[TABLE_ROWS + table - _U1] += 1
                    continue
                meta[row * _META + TABLE] = np.uint32(0)
            free[freed] = row
            freed += _U1
    return freed, used
