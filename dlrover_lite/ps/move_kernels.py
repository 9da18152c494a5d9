"""What moving slots does with rows: find those of some slots, copy them out, take them in, drop them, and close the gaps.

They run between the requests of training, a bounded number of rows at a time. As in ``table_kernels``, rows go in chunks whose cache
misses overlap.

The process may be killed at any instruction, and another take up its arenas: what has a table there is a row. So a row gets its table
last and loses it first, with fences between. A row that moves within the arena has it in both places for a moment: two rows that are the
same, of which the follower frees one (``restore_kernels``). One that is overwritten is gone for a moment; its slot isn't owned here, and
whoever takes over has its move begin anew.
"""

from __future__ import annotations

import numpy as np

from dlrover_lite.kernels import copy_16, fence, kernel, prefetch
from dlrover_lite.ps.hashing import SLOT_SHIFT, mix64
from dlrover_lite.ps.index import CHUNK, ROW_MASK, TABLE_SHIFT, enter, probe, remove
from dlrover_lite.ps.rows import CHANGED, COUNT, FREE, LOGGED, META_WORDS, TABLE, USED
from dlrover_lite.ps.slot_counters import TABLE_ROWS
from dlrover_lite.ps.table_kernels import halts, log_row, prefetch_row, take_row

__all__ = [
    "COPIED",
    "DROPPED",
    "HALF_WRITTEN",
    "TWICE",
    "among",
    "compact",
    "drop",
    "enter_new",
    "find",
    "read",
    "sort_out",
    "write",
]

HALF_WRITTEN, COPIED, TWICE, DROPPED = (np.uint64(step) for step in range(6, 10))
"""Steps of ``write``, ``compact`` and ``drop``, for ``Book.halt``: they return them when they are stopped there."""

_U0, _U1, _U2 = np.uint64(0), np.uint64(1), np.uint64(2)
_META = np.uint64(META_WORDS)
_LINE = np.uint64(16)
_LINES = ~np.uint64(15)
"""Of a count: those that fill whole cache lines, and are copied one line after the other; a loop of so few would go one by one."""
_SHIFT = np.uint64(SLOT_SHIFT)
_AHEAD = np.uint64(24)
"""Rows that the index entries of those to be moved are fetched ahead."""


@kernel
def _hash_of(row, ids, meta, salts):  # type: ignore[no-untyped-def]
    """Of a live row's key."""
    return mix64(ids[row] ^ salts[np.uint64(meta[row * _META + TABLE]) - _U1])


@kernel
def find(store, members, start, stop, rows):  # type: ignore[no-untyped-def]
    """Live rows of the slots in ``members`` (bool [4096]) among [start, stop), into ``rows`` until that is full: (how many, next row)."""
    ids, meta, salts = store.ids, store.meta, store.salts
    limit = np.uint64(rows.shape[0])
    found = _U0
    row = start
    while row < stop and found < limit:
        # without branches, which would be guessed wrongly half of the time where half of the slots move
        table = np.uint64(meta[row * _META + TABLE])
        salt = salts[max(table, _U1) - _U1]
        rows[found] = row
        found += np.uint64(members[mix64(ids[row] ^ salt) >> _SHIFT]) & np.uint64(table != _U0)
        row += _U1
    return found, row


@kernel
def sort_out(store, batches, start, stop, rows, ends, limits):  # type: ignore[no-untyped-def]
    """Put the number of each live row among [start, stop) behind those of its slot's batch (``batches``: uint16 [4096], 0: none): to
    ``rows[ends[batch]]``, below ``limits[batch]``. Returns how many found no room."""
    ids, meta, salts = store.ids, store.meta, store.salts
    lost = _U0
    for row in range(start, stop):
        if meta[row * _META + TABLE] != np.uint32(0):
            batch = np.uint64(batches[_hash_of(row, ids, meta, salts) >> _SHIFT])
            if batch != _U0:
                if ends[batch] < limits[batch]:
                    rows[ends[batch]] = row
                    ends[batch] += _U1
                else:
                    lost += _U1
    return lost


@kernel
def among(store, members, rows, out):  # type: ignore[no-untyped-def]
    """Whether each of ``rows`` lives, in a slot of ``members`` (bool [4096]), into ``out`` (bool [n])."""
    ids, meta, salts = store.ids, store.meta, store.salts
    for i in range(np.uint64(rows.shape[0])):
        row = rows[i]
        live = meta[row * _META + TABLE] != np.uint32(0)
        out[i] = live and members[_hash_of(row, ids, meta, salts) >> _SHIFT]


@kernel
def read(store, rows, clock, ids, tables, counts, ages, values, state):  # type: ignore[no-untyped-def]
    """Copies of ``rows`` (uint64 [n]) into arrays of n rows, flat. False if one of them is free."""
    dim, row_state = store.dim, store.dim * store.parts
    dim_lines, state_lines = dim & _LINES, row_state & _LINES
    from_ids, meta, from_values, from_state = store.ids, store.meta, store.values, store.state
    for start in range(_U0, np.uint64(rows.shape[0]), np.uint64(CHUNK)):
        n = min(np.uint64(CHUNK), np.uint64(rows.shape[0]) - start)
        for i in range(n):
            row = rows[start + i]
            prefetch(from_ids, np.int64(row))
            prefetch(meta, np.int64(row * _META))
            for line in range(_U0, dim, _LINE):
                prefetch(from_values, np.int64(row * dim + line))
            for line in range(_U0, row_state, _LINE):
                prefetch(from_state, np.int64(row * row_state + line))
        for i in range(start, start + n):
            row = rows[i]
            table = meta[row * _META + TABLE]
            if table == np.uint32(0):
                return False
            ids[i] = from_ids[row]
            tables[i] = np.uint16(table - np.uint32(1))
            counts[i] = meta[row * _META + COUNT]
            ages[i] = np.uint32(clock - meta[row * _META + CHANGED])
            to, at = i * dim, row * dim
            for j in range(_U0, dim_lines, _LINE):
                copy_16(values, to + j, from_values, at + j)
            for j in range(dim_lines, dim):
                values[to + j] = from_values[at + j]
            to, at = i * row_state, row * row_state
            for j in range(_U0, state_lines, _LINE):
                copy_16(state, to + j, from_state, at + j)
            for j in range(state_lines, row_state):
                state[to + j] = from_state[at + j]
    return True


@kernel
def write(  # type: ignore[no-untyped-def]
    store, entries, book, clock, log_round, ids, tables, counts, ages, values, state
):
    """Insert or overwrite n rows (flat arrays). The caller has made sure that index, arenas and log have room for n more. Returns 0, or
    the step at which it was stopped."""
    dim, row_state = store.dim, store.dim * store.parts
    dim_lines, state_lines = dim & _LINES, row_state & _LINES
    words, mask = entries.words, entries.mask
    to_values, to_state, meta, numbers = store.values, store.state, store.meta, book.numbers
    hashes = np.empty(CHUNK, np.uint64)
    rows = np.empty(CHUNK, np.uint64)
    for start in range(_U0, np.uint64(ids.shape[0]), np.uint64(CHUNK)):
        n = min(np.uint64(CHUNK), np.uint64(ids.shape[0]) - start)
        for i in range(n):
            hashes[i] = mix64(ids[start + i] ^ store.salts[np.uint64(tables[start + i])])
            prefetch(words, np.int64((hashes[i] & mask) * _U2))
        for i in range(n):
            table = np.uint64(tables[start + i])
            position = probe(hashes[i], table, words, mask)
            entry = words[position * _U2 + _U1]
            if entry != _U0:
                row = (entry & ROW_MASK) - _U1
            else:
                row = take_row(numbers, book.free)
                words[position * _U2] = hashes[i]
                words[position * _U2 + _U1] = (table << TABLE_SHIFT) | (row + _U1)
                if row < entries.swept:
                    enter(hashes[i], table, row, entries.next_words, entries.next_mask)
                book.row_counts[hashes[i] >> _SHIFT] += 1
                book.row_counts[TABLE_ROWS + table] += 1
                store.ids[row] = ids[start + i]
                meta[row * _META + LOGGED] = np.uint32(0)
            prefetch_row(row, store)
            rows[i] = row
        for i in range(n):
            row, source = rows[i], start + i
            meta[row * _META + TABLE] = np.uint32(0)
            fence()
            meta[row * _META + COUNT] = counts[source]
            meta[row * _META + CHANGED] = np.uint32(clock - ages[source])
            to, at = row * dim, source * dim
            for j in range(_U0, dim_lines, _LINE):
                copy_16(to_values, to + j, values, at + j)
            for j in range(dim_lines, dim):
                to_values[to + j] = values[at + j]
            to, at = row * row_state, source * row_state
            for j in range(_U0, state_lines, _LINE):
                copy_16(to_state, to + j, state, at + j)
            for j in range(state_lines, row_state):
                to_state[to + j] = state[at + j]
            if halts(HALF_WRITTEN, book.halt):
                return HALF_WRITTEN
            fence()
            meta[row * _META + TABLE] = np.uint32(tables[source]) + np.uint32(1)
            if log_round != np.uint32(0):
                log_row(row, hashes[i], log_round, meta, numbers, book.log, book.slot_flags)
    return _U0


@kernel
def enter_new(store, entries, book, clock, ids, tables, counts, ages):  # type: ignore[no-untyped-def]
    """Make rows of keys that have none, with the next row numbers in turn, whose ids, values and state are there already; stops at the
    first key that has a row. The caller has made sure that index and arenas have room for all. Returns how many it has made; and 0, or the
    step at which it was stopped."""
    words, mask = entries.words, entries.mask
    meta, numbers = store.meta, book.numbers
    hashes = np.empty(CHUNK, np.uint64)
    total = np.uint64(ids.shape[0])
    for start in range(_U0, total, np.uint64(CHUNK)):
        n = min(np.uint64(CHUNK), total - start)
        for i in range(n):
            hashes[i] = mix64(ids[start + i] ^ store.salts[np.uint64(tables[start + i])])
            prefetch(words, np.int64((hashes[i] & mask) * _U2))
        for i in range(n):
            source = start + i
            table = np.uint64(tables[source])
            position = probe(hashes[i], table, words, mask)
            if words[position * _U2 + _U1] != _U0:
                return source, _U0
            row = numbers[USED]
            words[position * _U2] = hashes[i]
            words[position * _U2 + _U1] = (table << TABLE_SHIFT) | (row + _U1)
            book.row_counts[hashes[i] >> _SHIFT] += 1
            book.row_counts[TABLE_ROWS + table] += 1
            # it may have been another row's once
            meta[row * _META + TABLE] = np.uint32(0)
            fence()
            numbers[USED] = row + _U1
            meta[row * _META + COUNT] = counts[source]
            meta[row * _META + CHANGED] = np.uint32(clock - ages[source])
            meta[row * _META + LOGGED] = np.uint32(0)
            if halts(HALF_WRITTEN, book.halt):
                return source, HALF_WRITTEN
            fence()
            meta[row * _META + TABLE] = np.uint32(table + _U1)
    return total, _U0


@kernel
def drop(store, entries, book, members, start, stop):  # type: ignore[no-untyped-def]
    """Free the live rows of the slots in ``members`` among [start, stop); the stack has room. Returns whether the free row numbers still
    rise from the bottom of the stack to its top, if they did before; and 0, or the step at which it was stopped."""
    words, mask = entries.words, entries.mask
    ids, meta, salts = store.ids, store.meta, store.salts
    numbers, free = book.numbers, book.free
    hashes = np.empty(CHUNK, np.uint64)
    rows = np.empty(CHUNK, np.uint64)
    rising = True
    row = start
    while row < stop:
        n = _U0
        while row < stop and n < np.uint64(CHUNK):
            if meta[row * _META + TABLE] != np.uint32(0):
                key_hash = _hash_of(row, ids, meta, salts)
                if members[key_hash >> _SHIFT]:
                    prefetch(words, np.int64((key_hash & mask) * _U2))
                    hashes[n] = key_hash
                    rows[n] = row
                    n += _U1
            row += _U1
        for i in range(n):
            at = rows[i] * _META + TABLE
            table = np.uint64(meta[at]) - _U1
            remove(probe(hashes[i], table, words, mask), words, mask)
            if rows[i] < entries.swept:
                position = probe(hashes[i], table, entries.next_words, entries.next_mask)
                remove(position, entries.next_words, entries.next_mask)
            meta[at] = np.uint32(0)
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
def compact(store, entries, book, limit):  # type: ignore[no-untyped-def]
    """Move at most ``limit`` of the last rows into the lowest free ones, whose numbers rise in the stack. Returns how many numbers at the
    bottom of the stack were used up; and 0, or the step at which it was stopped. No other index is to follow: it would have the old
    numbers."""
    ids, meta, salts = store.ids, store.meta, store.salts
    dim, row_state = store.dim, store.dim * store.parts
    words, mask = entries.words, entries.mask
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
        if last >= _AHEAD and meta[(last - _AHEAD) * _META + TABLE] != np.uint32(0):
            prefetch(words, np.int64((_hash_of(last - _AHEAD, ids, meta, salts) & mask) * _U2))
        row = free[bottom]
        bottom += _U1
        table = np.uint64(meta[last * _META + TABLE]) - _U1
        position = probe(_hash_of(last, ids, meta, salts), table, words, mask)
        words[position * _U2 + _U1] = (table << TABLE_SHIFT) | (row + _U1)
        ids[row] = ids[last]
        for j in range(TABLE + _U1, _META):
            meta[row * _META + j] = meta[last * _META + j]
        for j in range(dim):
            store.values[row * dim + j] = store.values[last * dim + j]
        for j in range(row_state):
            store.state[row * row_state + j] = store.state[last * row_state + j]
        if halts(COPIED, book.halt):
            return bottom, COPIED
        fence()
        meta[row * _META + TABLE] = np.uint32(table + _U1)
        fence()
        if halts(TWICE, book.halt):
            return bottom, TWICE
        meta[last * _META + TABLE] = np.uint32(0)
        used = last
    fence()  # numbers that are no longer in use are free before
    book.numbers[USED] = used
    book.numbers[FREE] = top - bottom
    return bottom, _U0
