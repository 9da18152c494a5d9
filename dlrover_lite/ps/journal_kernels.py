"""An update that can be undone: what the process that follows finds, wherever this one was killed.

Rows are changed in chunks of whole slots, in the order of slots. A chunk's rows as they were go into the journal first. One word says how
far it all is: the group, the slots below which all is done, and the rows in the journal that have to be put back. Since it is one word,
no moment lies between "the chunk is done" and "the journal is empty". In this order, with a fence after each:

1. The old rows into the journal, behind a word that says that it is empty: what it holds means nothing yet.
2. The word, with their number: from now on they are put back.
3. The rows are changed; halves of rows, new rows without their values, whatever there is, is put back.
4. The word, with the next slot and no rows: the chunk is done. The fence after it keeps the next chunk's rows out of the journal until then.

A new row is in the journal as a number that was free: to put it back is to free it. Its number is in use before it is in the journal
(``take_row``), and it lives from its table on, which step 3 sets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.kernels import fence, kernel, prefetch
from dlrover_lite.ps.hashing import SLOT_SHIFT
from dlrover_lite.ps.index import ROW_MASK, TABLE_SHIFT, enter, probe
from dlrover_lite.ps.optimizers import update_rows
from dlrover_lite.ps.rows import CHANGED, COUNT, META_WORDS, TABLE
from dlrover_lite.ps.table_kernels import halts, log_row, make_row, prefetch_row, take_row
from dlrover_lite.slots import SLOTS

__all__ = [
    "ADVANCED",
    "CHANGED_ROWS",
    "COUNTED",
    "GROUP_SHIFT",
    "HALF_CHANGED",
    "JOURNALLED",
    "JournalWords",
    "NEW",
    "SLOT_SHIFT_OF_PROGRESS",
    "entry_words",
    "order_by_slot",
    "undo",
    "update",
]

JOURNALLED, COUNTED, HALF_CHANGED, CHANGED_ROWS, ADVANCED = (np.uint64(step) for step in range(1, 6))
"""Steps of a chunk, for ``Book.halt``."""
NEW = np.uint64(1 << 63)
"""Beside a row's number: it was free."""
GROUP_SHIFT, SLOT_SHIFT_OF_PROGRESS = np.uint64(48), np.uint64(32)
"""In the word of progress; the rows in the journal are below."""

_U0, _U1, _U2 = np.uint64(0), np.uint64(1), np.uint64(2)
_META = np.uint64(META_WORDS)
_HEAD = np.uint64(2 + META_WORDS)
"""Words of 4 bytes before a row's values in the journal: its number, its metadata."""
_SHIFT = np.uint64(SLOT_SHIFT)
_SLOTS = np.uint64(SLOTS)


class JournalWords(NamedTuple):
    """The journal as kernels take it: one memory as words of each kind, and the word of progress."""

    rows: NDArray[np.uint64]
    meta: NDArray[np.uint32]
    values: NDArray[np.float32]
    progress: NDArray[np.uint64]
    """[1]"""


@kernel
def entry_words(dim, parts):  # type: ignore[no-untyped-def]
    """Words of 4 bytes that a row takes in the journal: an even number."""
    words = _HEAD + dim + dim * parts
    return words + (words & _U1)


@kernel
def order_by_slot(counts, hashes, order, ends):  # type: ignore[no-untyped-def]
    """Positions of the keys (``hashes``: theirs), slot after slot and in a slot as they come, each with its table above TABLE_SHIFT, into
    ``order`` [n]; where each slot's end there, into ``ends`` [4096]. Returns the most keys of one slot."""
    ends[:] = _U0
    n = _U0
    for t in range(np.uint64(counts.shape[0])):
        n += np.uint64(counts[t])
    for i in range(n):
        ends[hashes[i] >> _SHIFT] += _U1
    total, most = _U0, _U0
    for slot in range(_SLOTS):
        count = ends[slot]
        ends[slot] = total
        total += count
        most = max(most, count)
    start = _U0
    for t in range(np.uint64(counts.shape[0])):
        stop = start + np.uint64(counts[t])
        for i in range(start, stop):
            slot = hashes[i] >> _SHIFT
            order[ends[slot]] = (t << TABLE_SHIFT) | i
            ends[slot] += _U1
        start = stop
    return most


@kernel
def _save(rows, n, store, journal, size):  # type: ignore[no-untyped-def]
    """Rows as they are, into the journal."""
    meta, values, state = store.meta, store.values, store.state
    dim, row_state = store.dim, store.dim * store.parts
    for i in range(n):
        row = rows[i]
        at = i * size
        journal.rows[at >> _U1] = row
        if row & NEW == _U0:
            for j in range(_META):
                journal.meta[at + _U2 + j] = meta[row * _META + j]
            at += _HEAD
            for j in range(dim):
                journal.values[at + j] = values[row * dim + j]
            at += dim
            for j in range(row_state):
                journal.values[at + j] = state[row * row_state + j]


@kernel
def undo(store, journal, n):  # type: ignore[no-untyped-def]
    """Put back the first n rows of the journal. It may be done again."""
    meta, values, state = store.meta, store.values, store.state
    dim, row_state = store.dim, store.dim * store.parts
    size = entry_words(dim, store.parts)
    for i in range(n):
        at = i * size
        row = journal.rows[at >> _U1]
        if row & NEW != _U0:
            meta[(row ^ NEW) * _META + TABLE] = np.uint32(0)
            continue
        for j in range(_META):
            meta[row * _META + j] = journal.meta[at + _U2 + j]
        at += _HEAD
        for j in range(dim):
            values[row * dim + j] = journal.values[at + j]
        at += dim
        for j in range(row_state):
            state[row * row_state + j] = journal.values[at + j]


@kernel
def update(  # type: ignore[no-untyped-def]
    keys, hashes, order, ends, room, limit, grads, store, entries, book, journal, group, kind, hyper, factor, clock, log_round
):
    """As ``table_kernels.update``, of the keys in ``order`` (with ``ends``, as ``order_by_slot`` gives them), in chunks of whole slots: about
    ``limit`` rows, at most ``room``. Returns 0, or the step at which it was stopped."""
    meta, values, state = store.meta, store.values, store.state
    dim = store.dim
    words, mask = entries.words, entries.mask
    numbers, free = book.numbers, book.free
    size = entry_words(dim, store.parts)
    rows = np.empty(room, np.uint64)
    places = np.empty(room, np.uint64)
    tables = np.empty(room, np.uint64)
    steps = np.empty(room, np.uint32)
    chunk_grads = np.empty(room * dim, np.float32)
    total = np.uint64(order.shape[0])
    start, slot, done_slots = _U0, _U0, _U0
    base = group << GROUP_SHIFT
    while start < total:
        stop = start
        while slot < _SLOTS and stop - start < limit:
            stop = ends[slot]
            slot += _U1
        n = stop - start
        for i in range(n):
            place = order[start + i]
            places[i] = place & ROW_MASK
            tables[i] = place >> TABLE_SHIFT
            prefetch(words, np.int64((hashes[places[i]] & mask) * _U2))
        for i in range(n):
            key_hash, t = hashes[places[i]], tables[i]
            position = probe(key_hash, t, words, mask)
            entry = words[position * _U2 + _U1]
            if entry != _U0:
                row = (entry & ROW_MASK) - _U1
                prefetch_row(row, store)
            else:
                row = take_row(numbers, free)
                words[position * _U2] = key_hash
                words[position * _U2 + _U1] = (t << TABLE_SHIFT) | (row + _U1)
                if row < entries.swept:
                    enter(key_hash, t, row, entries.next_words, entries.next_mask)
                book.slot_rows[key_hash >> _SHIFT] += 1
                row |= NEW
            rows[i] = row
            for j in range(dim):
                chunk_grads[i * dim + j] = grads[places[i] * dim + j]
        _save(rows, n, store, journal, size)
        fence()
        if halts(JOURNALLED, book.halt):
            return JOURNALLED
        journal.progress[0] = base | (done_slots << SLOT_SHIFT_OF_PROGRESS) | n
        fence()
        if halts(COUNTED, book.halt):
            return COUNTED
        for i in range(n):
            row = rows[i]
            if row & NEW != _U0:
                row ^= NEW
                rows[i] = row
                make_row(row, keys[places[i]], hashes[places[i]], tables[i], store, kind, hyper)
            at = row * _META
            steps[i] = meta[at + COUNT] + np.uint32(1)
            meta[at + COUNT] = steps[i]
            meta[at + CHANGED] = clock
        if halts(HALF_CHANGED, book.halt):
            return HALF_CHANGED
        if log_round != np.uint32(0):
            for i in range(n):
                log_row(rows[i], hashes[places[i]], log_round, meta, numbers, book.log, book.slot_flags)
        update_rows(kind, hyper, factor, values, state, dim, rows, n, chunk_grads, _U0, steps)
        fence()
        if halts(CHANGED_ROWS, book.halt):
            return CHANGED_ROWS
        journal.progress[0] = base | (slot << SLOT_SHIFT_OF_PROGRESS)
        fence()
        if halts(ADVANCED, book.halt):
            return ADVANCED
        start, done_slots = stop, slot
    journal.progress[0] = (group + _U1) << GROUP_SHIFT
    fence()
    return _U0
