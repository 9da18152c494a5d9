"""What moving slots does with rows: find those of some slots, copy them out, take them in, drop them, and close the gaps.

They run between the requests of training, a bounded number of rows at a time. As in ``table_kernels``, rows go in chunks whose cache
misses overlap.

The process may be killed at any instruction, and another take up its arena: what has a table there is a row. So a row gets its table
last and loses it first, with fences between. A row that moves within the arena has it in both places for a moment: two rows that are the
same, of which the follower frees one (``restore_kernels``). One that is overwritten is gone for a moment; its slot isn't owned here, and
whoever takes over has its move begin anew.
"""

from __future__ import annotations

import numpy as np

from dlrover_lite.core.kernels.compile import fence, kernel, prefetch
from dlrover_lite.core.records import EPOCH_BITS, HASH_HIGH, HASH_LOW, TABLE_EPOCH
from dlrover_lite.ps.tables.bucket_index import CHUNK, NOWHERE, candidate, find, is_row_of, prefetch_bucket, remove
from dlrover_lite.ps.tables.copy_values import copy_values
from dlrover_lite.ps.tables.row_arrays import FREE, USED
from dlrover_lite.ps.tables.slot_counters import TABLE_ROWS
from dlrover_lite.ps.tables.table_kernels import enter_row, halts, log_row, look_up, prefetch_record, take_row
from dlrover_lite.tables.hashing import SLOT_SHIFT

__all__ = [
    "COPIED",
    "DROPPED",
    "HALF_WRITTEN",
    "TWICE",
    "among",
    "compact",
    "drop",
    "enter_new",
    "find_rows",
    "read",
    "sort_out",
    "write",
]

HALF_WRITTEN, COPIED, TWICE, DROPPED = (np.uint64(step) for step in range(6, 10))
"""Steps of ``write``, ``compact`` and ``drop``, for ``Book.halt``: they return them when they are stopped there."""

_U0, _U1 = np.uint64(0), np.uint64(1)
_HALF = np.uint64(32)
_SHIFT = np.uint64(SLOT_SHIFT)
_SLOT_SHIFT = np.uint32(SLOT_SHIFT - 32)
"""Shift of the hash's upper half that leaves the slot."""
_BEHIND = TABLE_EPOCH + _U1
"""Word from which on records are copied apart: the table comes last."""
_AHEAD = np.uint64(24)
"""Number of rows that records or buckets are fetched ahead of their turn."""


@kernel
def _hash_at(at, records):  # type: ignore[no-untyped-def]
    """Return the hash of the key whose record begins there."""
    return np.uint64(records[at + HASH_LOW]) | np.uint64(records[at + HASH_HIGH]) << _HALF


@kernel
def find_rows(store, members, start, stop, rows):  # type: ignore[no-untyped-def]
    """Put the live rows of the slots in ``members`` (bool [4096]) among [start, stop) into ``rows`` until that is full. Returns how many,
    and the next row."""
    records, row_words = store.records, store.row_words
    limit = np.uint64(rows.shape[0])
    found = _U0
    row = start
    while row < stop and found < limit:
        # without branches, which would be guessed wrongly half of the time where half of the slots move
        at = row * row_words
        prefetch(records, np.int64(at + _AHEAD * row_words))
        rows[found] = row
        is_live = np.uint64(records[at + TABLE_EPOCH] >> EPOCH_BITS != np.uint32(0))
        found += np.uint64(members[records[at + HASH_HIGH] >> _SLOT_SHIFT]) & is_live
        row += _U1
    return found, row


@kernel
def sort_out(store, batches, start, stop, rows, ends, limits):  # type: ignore[no-untyped-def]
    """Put the number of each live row among [start, stop) behind those of its slot's batch (``batches``: uint16 [4096], 0: none): to
    ``rows[ends[batch]]``, below ``limits[batch]``. Returns how many found no room."""
    records, row_words = store.records, store.row_words
    lost = _U0
    for row in range(start, stop):
        at = row * row_words
        prefetch(records, np.int64(at + _AHEAD * row_words))
        if records[at + TABLE_EPOCH] >> EPOCH_BITS != np.uint32(0):
            batch = np.uint64(batches[records[at + HASH_HIGH] >> _SLOT_SHIFT])
            if batch != _U0:
                if ends[batch] < limits[batch]:
                    rows[ends[batch]] = np.uint32(row)
                    ends[batch] += _U1
                else:
                    lost += _U1
    return lost


@kernel
def among(store, members, rows, out):  # type: ignore[no-untyped-def]
    """Write into ``out`` (bool [n]) whether each of ``rows`` lives, in a slot of ``members`` (bool [4096])."""
    records, row_words = store.records, store.row_words
    for i in range(np.uint64(rows.shape[0])):
        at = rows[i] * row_words
        live = records[at + TABLE_EPOCH] >> EPOCH_BITS != np.uint32(0)
        out[i] = live and members[records[at + HASH_HIGH] >> _SLOT_SHIFT]


@kernel
def read(store, rows, out):  # type: ignore[no-untyped-def]
    """Copy the records of ``rows`` (uint64 [n]) into ``out`` (uint32, flat). False if one of them is free."""
    records, row_words = store.records, store.row_words
    for start in range(_U0, np.uint64(rows.shape[0]), np.uint64(CHUNK)):
        n = min(np.uint64(CHUNK), np.uint64(rows.shape[0]) - start)
        for i in range(start, start + n):
            prefetch_record(records, rows[i] * row_words, row_words)
        for i in range(start, start + n):
            at = rows[i] * row_words
            if records[at + TABLE_EPOCH] >> EPOCH_BITS == np.uint32(0):
                return False
            copy_values(out, i * row_words, records, at, row_words)
    return True


@kernel
def write(store, index, book, epoch, tracks, given):  # type: ignore[no-untyped-def]
    """Insert or overwrite the rows with the records ``given`` (uint32, flat). The caller has made sure that index, arena and log have room
    for all. Returns 0, or the step at which it was stopped."""
    records, row_words, numbers = store.records, store.row_words, book.numbers
    total = np.uint64(given.shape[0]) // row_words
    hashes = np.empty(CHUNK, np.uint64)
    rows = np.empty(CHUNK, np.uint64)
    for start in range(_U0, total, np.uint64(CHUNK)):
        n = min(np.uint64(CHUNK), total - start)
        for i in range(n):
            hashes[i] = _hash_at((start + i) * row_words, given)
            prefetch_bucket(hashes[i], index)
        for i in range(n):
            rows[i] = candidate(hashes[i], index)
            prefetch_record(records, (max(rows[i], _U1) - _U1) * row_words, row_words)
        for i in range(n):
            source, key_hash = (start + i) * row_words, hashes[i]
            table = np.uint64(given[source + TABLE_EPOCH] >> EPOCH_BITS) - _U1
            row = candidate(key_hash, index)  # anew, since a key may come twice
            if row != _U0 and not is_row_of(row - _U1, row_words, key_hash, table, records):
                row = look_up(key_hash, table, index, records, row_words)
            if row != _U0:
                row -= _U1
            else:
                row = take_row(numbers, book.free)
                enter_row(key_hash, table, row, index, book.row_counts)
            at = row * row_words
            records[at + TABLE_EPOCH] = np.uint32(0)
            fence()
            records[at + HASH_LOW], records[at + HASH_HIGH] = given[source + HASH_LOW], given[source + HASH_HIGH]
            copy_values(records, at + _BEHIND, given, source + _BEHIND, row_words - _BEHIND)
            if halts(HALF_WRITTEN, book.halt):
                return HALF_WRITTEN
            fence()
            records[at + TABLE_EPOCH] = np.uint32(table + _U1) << EPOCH_BITS | epoch
            if tracks:
                log_row(row, key_hash, book.logged, numbers, book.log, book.slot_flags)
    return _U0


@kernel
def enter_new(store, index, book, epoch, total):  # type: ignore[no-untyped-def]
    """Make rows of the ``total`` records behind those in use; stops at the first whose key has a row. The caller has made sure that the
    index has room for all. Returns how many it has made; and 0, or the step at which it was stopped."""
    records, row_words, numbers = store.records, store.row_words, book.numbers
    first = numbers[USED]
    for start in range(_U0, total, np.uint64(CHUNK)):
        n = min(np.uint64(CHUNK), total - start)
        for i in range(n):
            prefetch_bucket(_hash_at((first + start + i) * row_words, records), index)
        for i in range(n):
            row = first + start + i
            at = row * row_words
            key_hash, table = _hash_at(at, records), np.uint64(records[at + TABLE_EPOCH] >> EPOCH_BITS) - _U1
            if find(key_hash, table, index, records, row_words) != NOWHERE:
                return start + i, _U0
            enter_row(key_hash, table, row, index, book.row_counts)
            records[at + TABLE_EPOCH] = np.uint32(table + _U1) << EPOCH_BITS | epoch
            if halts(HALF_WRITTEN, book.halt):
                return start + i, HALF_WRITTEN
            fence()
            numbers[USED] = row + _U1
    return total, _U0


@kernel
def drop(store, index, book, members, start, stop):  # type: ignore[no-untyped-def]
    """Free the live rows of the slots in ``members`` among [start, stop); the stack has room. Returns whether the free row numbers still
    rise from the bottom of the stack to its top, if they did before; and 0, or the step at which it was stopped."""
    records, row_words = store.records, store.row_words
    numbers, free = book.numbers, book.free
    hashes = np.empty(CHUNK, np.uint64)
    rows = np.empty(CHUNK, np.uint64)
    rising = True
    row = start
    while row < stop:
        n = _U0
        while row < stop and n < np.uint64(CHUNK):
            at = row * row_words
            prefetch(records, np.int64(at + _AHEAD * row_words))
            live = records[at + TABLE_EPOCH] >> EPOCH_BITS != np.uint32(0)
            if live and members[records[at + HASH_HIGH] >> _SLOT_SHIFT]:
                hashes[n] = _hash_at(at, records)
                prefetch_bucket(hashes[n], index)
                rows[n] = row
                n += _U1
            row += _U1
        for i in range(n):
            at = rows[i] * row_words + TABLE_EPOCH
            table = np.uint64(records[at] >> EPOCH_BITS) - _U1
            remove(hashes[i], find(hashes[i], table, index, records, row_words), index)
            records[at] = np.uint32(0)
            book.row_counts[hashes[i] >> _SHIFT] -= 1
            book.row_counts[TABLE_ROWS + table] -= 1
            top = numbers[FREE]
            if top != _U0 and free[top - _U1] > rows[i]:
                rising = False
            free[top] = rows[i]
            numbers[FREE] = top + _U1
            if halts(DROPPED, book.halt):
                return rising, DROPPED
    return rising, _U0


@kernel
def compact(store, index, book, limit):  # type: ignore[no-untyped-def]
    """Move at most ``limit`` of the last rows into the lowest free ones, whose numbers rise in the stack. Returns how many numbers at the
    bottom of the stack were used up; and 0, or the step at which it was stopped."""
    records, row_words = store.records, store.row_words
    free = book.free
    used, top, bottom = book.numbers[USED], book.numbers[FREE], _U0
    while bottom < top:
        last = used - _U1
        if free[top - _U1] == last:
            top -= _U1
            used = last
            continue
        if bottom == limit:
            break
        if last >= _AHEAD:
            prefetch_bucket(_hash_at((last - _AHEAD) * row_words, records), index)
        row = free[bottom]
        bottom += _U1
        source, at = last * row_words, row * row_words
        key_hash, table_epoch = _hash_at(source, records), records[source + TABLE_EPOCH]
        position = find(key_hash, np.uint64(table_epoch >> EPOCH_BITS) - _U1, index, records, row_words)
        index.rows[position] = np.uint32(row + _U1)
        records[at + HASH_LOW], records[at + HASH_HIGH] = records[source + HASH_LOW], records[source + HASH_HIGH]
        copy_values(records, at + _BEHIND, records, source + _BEHIND, row_words - _BEHIND)
        if halts(COPIED, book.halt):
            return bottom, COPIED
        fence()
        records[at + TABLE_EPOCH] = table_epoch
        fence()
        if halts(TWICE, book.halt):
            return bottom, TWICE
        records[source + TABLE_EPOCH] = np.uint32(0)
        used = last
    fence()  # numbers that are no longer in use are free before
    book.numbers[USED] = used
    book.numbers[FREE] = top - bottom
    return bottom, _U0
