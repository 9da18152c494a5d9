"""What ``table_kernels.update`` does with a chunk's rows while a snapshot is taken, before it changes them."""

from __future__ import annotations

import numpy as np

from dlrover_lite.kernels import copy_4, kernel, publish
from dlrover_lite.ps.copying import copy_values
from dlrover_lite.ps.journal_kernels import NEW
from dlrover_lite.ps.rows import CHANGED, META_WORDS
from dlrover_lite.ps.spill import CAPACITY, CLOCK, COUNT, ENTRY_HEAD_WORDS, OVERFLOW, PASSED, USED

__all__ = ["spill_rows"]

_U0, _U1, _U2 = np.uint64(0), np.uint64(1), np.uint64(2)
_META = np.uint64(META_WORDS)
_HEAD = np.uint64(ENTRY_HEAD_WORDS)
_HALF = np.uint64(32)


@kernel
def spill_rows(rows, n, store, words, entries, clock):  # type: ignore[no-untyped-def]
    """Those of the first n rows that change for the first time since the snapshot began, and that the persister hasn't passed, into the
    spill. ``clock``: of the update under way.

    Clocks are compared by how long ago they are, since they wrap around, and rows that have moved here may be older than the group.
    What has changed since then did so less than ``clock - words[CLOCK]`` pushes ago.
    """
    dim, row_state = store.dim, store.dim * store.parts
    used, passed, count, capacity = words[USED], words[PASSED], words[COUNT], words[CAPACITY]
    lasts = np.uint32(np.uint64(clock) - words[CLOCK])
    entry_words = _HEAD + dim + row_state
    for i in range(n):
        row = rows[i] & ~NEW
        if row >= used or row < passed:
            continue
        if rows[i] & NEW == _U0 and np.uint32(clock - store.meta[row * _META + CHANGED]) < lasts:
            continue
        if count == capacity:
            words[OVERFLOW] = _U1
            publish()  # before any row changes that isn't here
            words[USED] = _U0
            break
        at = count * entry_words
        entries[at] = np.uint32(rows[i])
        entries[at + _U1] = np.uint32(rows[i] >> _HALF)
        copy_4(entries, at + _U2, store.meta, row * _META)
        copy_values(entries, at + _HEAD, store.values, row * dim, dim)
        copy_values(entries, at + _HEAD + dim, store.state, row * row_state, row_state)
        count += _U1
    publish()
    words[COUNT] = count
