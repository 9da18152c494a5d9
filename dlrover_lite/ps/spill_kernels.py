"""What ``table_kernels.update`` does with a chunk's rows while a snapshot is taken, before it changes them."""

from __future__ import annotations

import numpy as np

from dlrover_lite.kernels import copy_4, kernel, publish
from dlrover_lite.ps.copying import copy_values
from dlrover_lite.ps.journal_kernels import NEW
from dlrover_lite.ps.rows import CHANGED, META_WORDS
from dlrover_lite.ps.spill import (
    CLOCK,
    COUNT,
    ENTRY_HEAD_WORDS,
    ENTRY_ID,
    ENTRY_META,
    FRESH,
    OVERFLOW,
    PASSED,
    RECLAIMED,
    SEGMENT_ROWS,
    SEGMENTS,
    TAKEN,
    USED,
)

__all__ = ["spill_rows"]

_U0, _U1 = np.uint64(0), np.uint64(1)
_UNIT = np.uint64(16)
_META = np.uint64(META_WORDS)
_ID_AT, _META_AT = np.uint64(ENTRY_ID), np.uint64(ENTRY_META)
_HEAD = np.uint64(ENTRY_HEAD_WORDS)
_HALF = np.uint64(32)


@kernel
def begin_segment(words, entries, count):  # type: ignore[no-untyped-def]
    """Have a segment for the entries from ``count`` on: one whose entries have all been taken, or another. False if there is none."""
    segments, reclaimed = words[SEGMENTS], words[RECLAIMED]
    number = count // words[SEGMENT_ROWS]
    if (reclaimed + _U1) * words[SEGMENT_ROWS] <= words[TAKEN]:
        publish()  # what the persister has read of it, it has read before this is written to
        place = entries[reclaimed % segments]
        words[RECLAIMED] = reclaimed + _U1
    elif words[FRESH] < segments:
        place = np.uint32(words[FRESH])
        words[FRESH] += _U1
    else:
        return False
    entries[number % segments] = place
    return True


@kernel
def spill_rows(rows, n, keys, start, store, words, entries, clock):  # type: ignore[no-untyped-def]
    """Those of the first n rows that change for the first time since the snapshot began, and that the persister hasn't passed, into the
    spill. Their ids are ``keys`` from ``start`` on. ``clock``: of the update under way.

    Clocks are compared by how long ago they are, since they wrap around, and rows that have moved here may be older than the group.
    What has changed since then did so less than ``clock - words[CLOCK]`` pushes ago.
    """
    dim, row_state = store.dim, store.dim * store.parts
    used, passed, count, of_segment = words[USED], words[PASSED], words[COUNT], words[SEGMENT_ROWS]
    lasts = np.uint32(np.uint64(clock) - words[CLOCK])
    entry_words = _HEAD + dim + row_state
    segments_at = (words[SEGMENTS] + _UNIT - _U1) // _UNIT * _UNIT
    place = np.uint64(entries[count // of_segment % words[SEGMENTS]])
    for i in range(n):
        row = rows[i] & ~NEW
        if row >= used or row < passed:
            continue
        if rows[i] & NEW == _U0 and np.uint32(clock - store.meta[row * _META + CHANGED]) < lasts:
            continue
        if count % of_segment == _U0:
            if not begin_segment(words, entries, count):
                words[OVERFLOW] = _U1
                publish()  # before any row changes that isn't here
                words[USED] = _U0
                break
            place = np.uint64(entries[count // of_segment % words[SEGMENTS]])
        at = segments_at + (place * of_segment + count % of_segment) * entry_words
        entries[at] = np.uint32(rows[i])
        entries[at + _U1] = np.uint32(rows[i] >> _HALF)
        key = keys[start + i]
        entries[at + _ID_AT] = np.uint32(key)
        entries[at + _ID_AT + _U1] = np.uint32(key >> _HALF)
        copy_4(entries, at + _META_AT, store.meta, row * _META)
        copy_values(entries, at + _HEAD, store.values, row * dim, dim)
        copy_values(entries, at + _HEAD + dim, store.state, row * row_state, row_state)
        count += _U1
    publish()
    words[COUNT] = count
