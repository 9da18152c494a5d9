"""What a parameter server does with rows all the time: gather and update.

Keys go in chunks: hash all and prefetch their index entries, find all and prefetch their rows, then touch the rows, so that cache
misses overlap. Positions are uint64 throughout: numba leaves out the check for negative indices, and inner loops vectorise.

``gather`` and ``update`` take plain tuples and single arrays: named tuples cost a call as much as 10 microseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.kernels import fence, kernel, prefetch, publish
from dlrover_lite.ps.hashing import SLOT_SHIFT, initial_value, mix64
from dlrover_lite.ps.index import CHUNK, ROW_MASK, TABLE_SHIFT, enter, probe
from dlrover_lite.ps.journal_kernels import DONE_SHIFT, NEW, JournalWords, save
from dlrover_lite.ps.optimizers import init_state, update_rows
from dlrover_lite.ps.rows import CHANGED, COUNT, FREE, LOG_LENGTH, LOGGED, META_WORDS, TABLE, USED, Store
from dlrover_lite.ps.slot_counters import OWNED, TABLE_ROWS, TRACKED, flags_of
from dlrover_lite.ps.spill import COUNT as SPILL_COUNT
from dlrover_lite.ps.spill import STAMPED as SPILL_STAMPED
from dlrover_lite.ps.spill import USED as SPILL_USED
from dlrover_lite.ps.spill_kernels import spill_rows

__all__ = [
    "Book",
    "contains",
    "fill_state",
    "gather",
    "halts",
    "log_row",
    "make_row",
    "prefetch_row",
    "take_row",
    "update",
]

_U0, _U1, _U2 = np.uint64(0), np.uint64(1), np.uint64(2)
_META = np.uint64(META_WORDS)
_LINE = np.uint64(16)
"""float32 values in a cache line."""
_SHIFT = np.uint64(SLOT_SHIFT)

JOURNALLED, COUNTED, HALF_CHANGED, CHANGED_ROWS, ADVANCED = (np.uint64(step) for step in range(1, 6))
SPILLED, STAMPED = np.uint64(10), np.uint64(11)
"""Steps of a chunk, for ``Book.halt``."""
_ANY = np.uint64(255)


class Book(NamedTuple):
    """Which row numbers are free and which rows have changed, as kernels take it."""

    numbers: NDArray[np.uint64]
    free: NDArray[np.uint64]
    """Free row numbers, a stack; room for more behind them."""
    log: NDArray[np.uint64]
    slot_flags: NDArray[np.uint8]
    row_counts: NDArray[np.int64]
    """[4096 + tables]: live rows of each slot, then of each table."""
    halt: NDArray[np.uint64]
    """[2], for tests: the step at which a kernel is to stop as if it were killed (0: none, 255: any), and the how manieth time."""


@kernel
def halts(step, halt):  # type: ignore[no-untyped-def]
    """Whether to stop here."""
    if halt[0] != step and halt[0] != _ANY:
        return False
    halt[1] -= _U1
    return halt[1] == _U0


@kernel
def take_row(numbers, free):  # type: ignore[no-untyped-def]
    """Number for a new row: a free one if there is any."""
    if numbers[FREE] != _U0:
        numbers[FREE] -= _U1
        return free[numbers[FREE]]
    numbers[USED] += _U1
    return numbers[USED] - _U1


@kernel
def log_row(row, key_hash, log_round, meta, numbers, log, slot_flags):  # type: ignore[no-untyped-def]
    """Log a row that changes, if its slot is tracked and it isn't logged yet in this round."""
    if flags_of(key_hash, slot_flags) & TRACKED and meta[row * _META + LOGGED] != log_round:
        meta[row * _META + LOGGED] = log_round
        log[numbers[LOG_LENGTH]] = row
        numbers[LOG_LENGTH] += _U1


@kernel
def prefetch_row(row, store):  # type: ignore[no-untyped-def]
    """All that an update of it needs."""
    dim, row_state = store.dim, store.dim * store.parts
    prefetch(store.meta, np.int64(row * _META))
    for line in range(_U0, dim, _LINE):
        prefetch(store.values, np.int64(row * dim + line))
    for line in range(_U0, row_state, _LINE):
        prefetch(store.state, np.int64(row * row_state + line))


@kernel
def make_row(row, key, key_hash, table, store, kind, hyper):  # type: ignore[no-untyped-def]
    """A new row, not updated yet."""
    dim, meta = store.dim, store.meta
    store.ids[row] = key
    meta[row * _META + TABLE] = np.uint32(table + _U1)
    meta[row * _META + COUNT] = np.uint32(0)
    meta[row * _META + LOGGED] = np.uint32(0)
    for j in range(dim):
        store.values[row * dim + j] = initial_value(key_hash, store.init_salts[table], j, store.scales[table])
    init_state(kind, hyper, store.values, store.state, dim, row)


@kernel
def gather(  # type: ignore[no-untyped-def]
    keys, counts, salts, init_salts, scales, values, dim, words, mask, slot_flags, out
):
    """Rows of ``keys`` (uint64 [n], table after table by ``counts``) into ``out`` (float32 [n * dim]). False, and ``out`` is not to be
    used, if a key's slot isn't owned."""
    hashes = np.empty(CHUNK, np.uint64)
    rows = np.empty(CHUNK, np.uint64)  # row + 1; 0: unknown
    start = _U0
    for t in range(np.uint64(counts.shape[0])):
        end = start + np.uint64(counts[t])
        while start < end:
            n = min(np.uint64(CHUNK), end - start)
            for i in range(n):
                key_hash = mix64(keys[start + i] ^ salts[t])
                hashes[i] = key_hash
                prefetch(words, np.int64((key_hash & mask) * _U2))
            common = OWNED
            for i in range(n):
                row = words[probe(hashes[i], t, words, mask) * _U2 + _U1] & ROW_MASK
                rows[i] = row
                common &= flags_of(hashes[i], slot_flags)
                for line in range(_U0, dim, _LINE):
                    prefetch(values, np.int64((row - _U1) * dim + line))
            if common == np.uint8(0):
                return False
            for i in range(n):
                row = rows[i]
                target = (start + i) * dim
                if row != _U0:
                    source = (row - _U1) * dim
                    for j in range(dim):
                        out[target + j] = values[source + j]
                else:
                    for j in range(dim):
                        out[target + j] = initial_value(hashes[i], init_salts[t], j, scales[t])
            start += n
    return True


@kernel
def update(  # type: ignore[no-untyped-def]  # noqa: PLR0915 - a call with so many arrays costs more than a row
    keys,
    counts,
    hashes,
    grads,
    store,
    entries,
    book,
    journal,
    base,
    limit,
    spill,
    spilled,
    kind,
    hyper,
    factor,
    clock,
    log_round,
):
    """Apply ``grads`` (float32 [n * dim]) to the rows of ``keys`` (``hashes``: theirs), making those that aren't there.

    ``store``, ``entries`` and ``book`` are a Store, Entries and a Book as plain tuples. The caller has made sure that index, arenas and
    log have room for n more rows, and that no key comes twice. ``log_round`` 0: no slot is tracked. ``journal``: JournalWords as a
    plain tuple, or None when nothing is to be undone; ``base`` is the group in its word of progress, ``limit`` how many rows it holds:
    at most CHUNK. ``spill``, ``spilled``: words and entries of a ``spill.Area``. Returns how many rows are new, or the negative of the step
    at which it was stopped.
    """
    ids, meta, values, state, dim, parts, salts, init_salts, scales = store
    group = Store(ids, meta, values, state, dim, parts, salts, init_salts, scales)
    words, mask, next_words, next_mask, swept = entries
    numbers, free, log, slot_flags, row_counts, halt = book
    new = 0
    rows = np.empty(CHUNK, np.uint64)
    steps = np.empty(CHUNK, np.uint32)
    start, fetched, total = _U0, _U0, np.uint64(keys.shape[0])
    for t in range(np.uint64(counts.shape[0])):
        end = start + np.uint64(counts[t])
        while start < end:
            n = min(limit, end - start)
            for i in range(max(start, fetched), start + n):
                prefetch(words, np.int64((hashes[i] & mask) * _U2))
            for i in range(n):
                key_hash = hashes[start + i]
                position = probe(key_hash, t, words, mask)
                entry = words[position * _U2 + _U1]
                if entry != _U0:
                    row = (entry & ROW_MASK) - _U1
                    prefetch_row(row, group)
                else:
                    row = take_row(numbers, free)
                    words[position * _U2] = key_hash
                    words[position * _U2 + _U1] = (t << TABLE_SHIFT) | (row + _U1)
                    if row < swept:
                        enter(key_hash, t, row, next_words, next_mask)
                    row_counts[key_hash >> _SHIFT] += 1
                    row_counts[TABLE_ROWS + t] += 1
                    new += 1
                    row |= NEW
                rows[i] = row
            if journal is not None:
                fetched = min(start + n + n, total)
                saved_rows, saved_meta, saved_values, progress = journal
                saved = JournalWords(saved_rows, saved_meta, saved_values, progress)
                save(rows, n, group, saved, words, mask, hashes, start + n, fetched)
                fence()
                if halts(JOURNALLED, halt):
                    return -np.int64(JOURNALLED)
                progress[0] = base | (start << DONE_SHIFT) | n
                fence()
                if halts(COUNTED, halt):
                    return -np.int64(COUNTED)
            if spill[SPILL_USED] != _U0:
                spill_rows(rows, n, keys, start, group, spill, spilled, clock)
                publish()
                if halts(SPILLED, halt):
                    return -np.int64(SPILLED)
            for i in range(n):
                meta[(rows[i] & ~NEW) * _META + CHANGED] = clock
            publish()  # who has read anything newer of a row finds it changed when it looks again
            if spill[SPILL_USED] != _U0:
                spill[SPILL_STAMPED] = spill[SPILL_COUNT]
            if halts(STAMPED, halt):
                return -np.int64(STAMPED)
            for i in range(n):
                row = rows[i]
                if row & NEW != _U0:
                    row ^= NEW
                    rows[i] = row
                    make_row(row, keys[start + i], hashes[start + i], t, group, kind, hyper)
                at = row * _META
                steps[i] = meta[at + COUNT] + np.uint32(1)
                meta[at + COUNT] = steps[i]
            if halts(HALF_CHANGED, halt):
                return -np.int64(HALF_CHANGED)
            if log_round != np.uint32(0):
                for i in range(n):
                    log_row(rows[i], hashes[start + i], log_round, meta, numbers, log, slot_flags)
            update_rows(kind, hyper, factor, values, state, dim, rows, n, grads, start * dim, steps)
            start += n
            if journal is not None:
                fence()
                if halts(CHANGED_ROWS, halt):
                    return -np.int64(CHANGED_ROWS)
                progress[0] = base | (start << DONE_SHIFT)
                fence()
                if halts(ADVANCED, halt):
                    return -np.int64(ADVANCED)
    return new


@kernel
def contains(keys, counts, salts, words, mask, out):  # type: ignore[no-untyped-def]
    """Whether there is a row for each key, into ``out`` (bool [n])."""
    start = _U0
    for t in range(np.uint64(counts.shape[0])):
        end = start + np.uint64(counts[t])
        for i in range(start, end):
            position = probe(mix64(keys[i] ^ salts[t]), t, words, mask)
            out[i] = words[position * _U2 + _U1] != _U0
        start = end


@kernel
def fill_state(kind, hyper, values, state, dim, n):  # type: ignore[no-untyped-def]
    """State of n rows before their first update (flat arrays)."""
    for row in range(np.uint64(n)):
        init_state(kind, hyper, values, state, dim, row)
