"""What a process that takes up the arena of another finds out about its rows, in one pass: index, free numbers, rows of each slot."""

from __future__ import annotations

import numpy as np

from dlrover_lite.core.kernels.compile import kernel, prefetch
from dlrover_lite.core.records import EPOCH_BITS, HASH_HIGH, HASH_LOW, TABLE_EPOCH
from dlrover_lite.ps.tables.bucket_index import CHUNK, NOWHERE, enter_first, find, prefetch_home
from dlrover_lite.ps.tables.slot_counters import TABLE_ROWS
from dlrover_lite.ps.tables.table_kernels import enter_row
from dlrover_lite.tables.hashing import SLOT_SHIFT

__all__ = ["restore"]

_U0, _U1 = np.uint64(0), np.uint64(1)
_HALF = np.uint64(32)
_SHIFT = np.uint64(SLOT_SHIFT)


@kernel
def restore(store, used, index, filled, row_counts, free):  # type: ignore[no-untyped-def]
    """Enter the live rows below ``used`` into an empty index that has room for all (``filled``: zeros for ``enter_first``), count them by
    slot and table, and list the numbers that are free, rising: how many, and the first row whose table is none (``used``: all are right).

    The last row may have been about to move to one of the others (``move_kernels.compact``), and be the same in both: it is freed.
    """
    records, row_words = store.records, store.row_words
    rows, fingerprints, buckets = index.rows, index.fingerprints, index.size[0]
    tables = np.uint64(store.salts.shape[0])
    hashes = np.empty(CHUNK, np.uint64)
    live = np.empty(CHUNK, np.uint64)
    freed, end = _U0, used
    while end > _U0 and records[(end - _U1) * row_words + TABLE_EPOCH] >> EPOCH_BITS == np.uint32(0):
        end -= _U1
    last = max(end, _U1) - _U1  # the last live row, which the others come before
    for start in range(_U0, last, np.uint64(CHUNK)):
        n = _U0
        for row in range(start, min(start + np.uint64(CHUNK), last)):
            at = row * row_words
            prefetch(records, np.int64(at + np.uint64(CHUNK) * row_words))
            table = np.uint64(records[at + TABLE_EPOCH] >> EPOCH_BITS)
            if table > tables:
                return freed, row
            if table == _U0:
                free[freed] = row
                freed += _U1
                continue
            key_hash = np.uint64(records[at + HASH_LOW]) | np.uint64(records[at + HASH_HIGH]) << _HALF
            prefetch_home(key_hash, rows, buckets)
            hashes[n], live[n] = key_hash, row
            n += _U1
            row_counts[key_hash >> _SHIFT] += 1
            row_counts[TABLE_ROWS + table - _U1] += 1
        enter_first(hashes, live, n, rows, fingerprints, buckets, filled)
    if last < end:
        at = last * row_words
        table = np.uint64(records[at + TABLE_EPOCH] >> EPOCH_BITS)
        if table > tables:
            return freed, last
        key_hash = np.uint64(records[at + HASH_LOW]) | np.uint64(records[at + HASH_HIGH]) << _HALF
        if find(key_hash, table - _U1, index, records, row_words) == NOWHERE:
            enter_row(key_hash, table - _U1, last, index, row_counts)
            last = end
        else:
            records[at + TABLE_EPOCH] = np.uint32(0)
    for row in range(last, used):
        free[freed] = row
        freed += _U1
    return freed, used
