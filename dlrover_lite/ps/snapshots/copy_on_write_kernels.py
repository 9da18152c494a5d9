"""What ``table_kernels.update`` does with a chunk's rows while a snapshot is taken, before it changes them."""

from __future__ import annotations

import numpy as np

from dlrover_lite.core.kernels.compile import kernel, publish
from dlrover_lite.core.records import EPOCH_MASK, TABLE_EPOCH
from dlrover_lite.ps.journal.journal_kernels import NEW
from dlrover_lite.ps.snapshots.copy_on_write_log import (
    COUNT,
    ENTRY_RECORD,
    EPOCH,
    FRESH,
    OVERFLOW,
    PASSED,
    RECLAIMED,
    SEGMENT_ROWS,
    SEGMENTS,
    TAKEN,
    USED,
)
from dlrover_lite.ps.tables.copy_values import copy_values

__all__ = ["spill_rows"]

_U0, _U1 = np.uint64(0), np.uint64(1)
_UNIT = np.uint64(16)
_RECORD = np.uint64(ENTRY_RECORD)
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
def spill_rows(rows, n, store, words, entries):  # type: ignore[no-untyped-def]
    """Copy into the spill those of the first n rows that change for the first time since the snapshot began, and that the persister hasn't
    passed. A row that has changed since then has a later epoch."""
    records, row_words = store.records, store.row_words
    used, passed, count, of_segment = words[USED], words[PASSED], words[COUNT], words[SEGMENT_ROWS]
    epoch = np.uint32(words[EPOCH])
    entry_words = _RECORD + row_words
    segments_at = (words[SEGMENTS] + _UNIT - _U1) // _UNIT * _UNIT
    place = np.uint64(entries[count // of_segment % words[SEGMENTS]])
    for i in range(n):
        row = rows[i] & ~NEW
        if row >= used or row < passed:
            continue
        if rows[i] & NEW == _U0 and records[row * row_words + TABLE_EPOCH] & EPOCH_MASK > epoch:
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
        copy_values(entries, at + _RECORD, records, row * row_words, row_words)
        count += _U1
    publish()
    words[COUNT] = count
