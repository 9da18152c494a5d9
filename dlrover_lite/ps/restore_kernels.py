"""What a process that takes up the arena of another finds out about its rows, in one pass: index, free numbers, rows of each slot."""

from __future__ import annotations

import numpy as np

from dlrover_lite.kernels import kernel, prefetch
from dlrover_lite.ps.bucket_index import CHUNK, NOWHERE, find, prefetch_bucket
from dlrover_lite.ps.table_kernels import enter_row
from dlrover_lite.records import EPOCH_BITS, HASH_HIGH, HASH_LOW, TABLE_EPOCH

__all__ = ["restore"]

_U0, _U1 = np.uint64(0), np.uint64(1)
_HALF = np.uint64(32)


@kernel
def restore(store, used, index, row_counts, free):  # type: ignore[no-untyped-def]
    """Enter the live rows below ``used`` into an empty index, count them by slot and table, and list the numbers that are free, rising: how
    many, and the first row whose table is none (``used``: all are right).

    The last row may have been about to move to one of the others (``move_kernels.compact``), and be the same in both: it is freed.
    """
    records, row_words = store.records, store.row_words
    tables = np.uint64(store.salts.shape[0])
    hashes = np.empty(CHUNK, np.uint64)
    freed, last = _U0, used
    while last > _U0 and records[(last - _U1) * row_words + TABLE_EPOCH] >> EPOCH_BITS == np.uint32(0):
        last -= _U1
    for start in range(_U0, used, np.uint64(CHUNK)):
        n = min(np.uint64(CHUNK), used - start)
        for i in range(n):
            at = (start + i) * row_words
            prefetch(records, np.int64(at + np.uint64(CHUNK) * row_words))
            table = np.uint64(records[at + TABLE_EPOCH] >> EPOCH_BITS)
            if table > tables:
                return freed, start + i
            if table != _U0:
                hashes[i] = np.uint64(records[at + HASH_LOW]) | np.uint64(records[at + HASH_HIGH]) << _HALF
                prefetch_bucket(hashes[i], index)
        for i in range(n):
            row = start + i
            at = row * row_words + TABLE_EPOCH
            table = np.uint64(records[at] >> EPOCH_BITS)
            if table != _U0:
                if row + _U1 != last or find(hashes[i], table - _U1, index, records, row_words) == NOWHERE:
                    enter_row(hashes[i], table - _U1, row, index, row_counts)
                    continue
                records[at] = np.uint32(0)
            free[freed] = row
            freed += _U1
    return freed, used
