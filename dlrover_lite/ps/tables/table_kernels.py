"""What a parameter server does with rows all the time: gather and update.

Keys go in chunks: hash all and prefetch their buckets of the index, find a candidate for each and prefetch its record, see whether it
is the key's, then touch the rows, so that cache misses overlap. Positions are uint64 throughout: numba leaves out the check for negative
indices, and inner loops vectorise.

``gather`` and ``update`` take plain tuples and single arrays: named tuples cost a call as much as 10 microseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import fence, kernel, prefetch, publish
from dlrover_lite.core.records import EPOCH_BITS, EPOCH_MASK, HASH_HIGH, HASH_LOW, HEAD_WORDS, TABLE_EPOCH
from dlrover_lite.ps.journal.journal_kernels import DONE_SHIFT, NEW, JournalWords, save
from dlrover_lite.ps.snapshots.copy_on_write_kernels import spill_rows
from dlrover_lite.ps.snapshots.copy_on_write_log import COUNT as SPILL_COUNT
from dlrover_lite.ps.snapshots.copy_on_write_log import STAMPED as SPILL_STAMPED
from dlrover_lite.ps.snapshots.copy_on_write_log import USED as SPILL_USED
from dlrover_lite.ps.tables.bucket_index import (
    CHUNK,
    NOWHERE,
    Buckets,
    candidate,
    enter,
    find,
    is_row_of,
    prefetch_bucket,
    row_at,
)
from dlrover_lite.ps.tables.copy_values import copy_values
from dlrover_lite.ps.tables.row_arrays import FREE, INDEXED, LOG_LENGTH, USED, Store
from dlrover_lite.ps.tables.slot_counters import OWNED, TABLE_ROWS, TRACKED, flags_of
from dlrover_lite.tables.hashing import SLOT_SHIFT, initial_value, mix64
from dlrover_lite.tables.optimizers import init_state, update_rows

__all__ = [
    "Book",
    "contains",
    "enter_row",
    "gather",
    "halts",
    "log_row",
    "look_up",
    "prefetch_record",
    "take_row",
    "update",
]

_U0, _U1 = np.uint64(0), np.uint64(1)
_LINE = np.uint64(16)
"""Number of words of a cache line."""
_COUNT = np.uint64(HEAD_WORDS)
_HALF = np.uint64(32)
_SHIFT = np.uint64(SLOT_SHIFT)
_BIT_MASK, _WORD_SHIFT = np.uint64(63), np.uint64(6)

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
    logged: NDArray[np.uint64]
    """One bit for each row number: it is in the log. Empty where nothing is tracked."""
    slot_flags: NDArray[np.uint8]
    row_counts: NDArray[np.int64]
    """[4096 + tables]: live rows of each slot, then of each table."""
    halt: NDArray[np.uint64]
    """[2], for tests: the step at which a kernel is to stop as if it were killed (0: none, 255: any), and the how manieth time."""


@kernel
def halts(step, halt):  # type: ignore[no-untyped-def]
    """Return whether a kernel is to stop at this step."""
    if halt[0] != step and halt[0] != _ANY:
        return False
    halt[1] -= _U1
    return halt[1] == _U0


@kernel
def take_row(numbers, free):  # type: ignore[no-untyped-def]
    """Return the number for a new row: a free one if there is any."""
    if numbers[FREE] != _U0:
        numbers[FREE] -= _U1
        return free[numbers[FREE]]
    numbers[USED] += _U1
    return numbers[USED] - _U1


@kernel
def enter_row(key_hash, table, row, index, row_counts):  # type: ignore[no-untyped-def]
    """Enter a key that has had no row into the index and the counts."""
    enter(key_hash, row, index)
    row_counts[key_hash >> _SHIFT] += 1
    row_counts[TABLE_ROWS + table] += 1


@kernel
def log_row(row, key_hash, logged, numbers, log, slot_flags):  # type: ignore[no-untyped-def]
    """Log a row that changes, if its slot is tracked and it isn't in the log yet."""
    if flags_of(key_hash, slot_flags) & TRACKED:
        word, bit = row >> _WORD_SHIFT, _U1 << (row & _BIT_MASK)
        if logged[word] & bit == _U0:
            logged[word] |= bit
            log[numbers[LOG_LENGTH]] = row
            numbers[LOG_LENGTH] += _U1


@kernel
def prefetch_record(records, at, words):  # type: ignore[no-untyped-def]
    """Prefetch so many words of the record that begins there."""
    for line in range(_U0, words, _LINE):
        prefetch(records, np.int64(at + line))
    prefetch(records, np.int64(at + words - _U1))


@kernel
def look_up(key_hash, table, index, records, row_words):  # type: ignore[no-untyped-def]
    """Return number + 1 of the key's row, 0: there is none. To be called where a ``candidate`` is another key's: a call with so many arrays
    takes longer than the rest."""
    position = find(key_hash, table, index, records, row_words)
    if position == NOWHERE:
        return _U0
    return row_at(position, index) + _U1


@kernel
def _make_row(row, key_hash, table, epoch, store, kind, hyper):  # type: ignore[no-untyped-def]
    """Make a new row, not updated yet."""
    records, floats, dim = store.records, store.floats, store.dim
    at = row * store.row_words
    records[at + HASH_LOW] = np.uint32(key_hash)
    records[at + HASH_HIGH] = np.uint32(key_hash >> _HALF)
    records[at + TABLE_EPOCH] = np.uint32(table + _U1) << EPOCH_BITS | epoch
    if store.counted != _U0:
        records[at + _COUNT] = np.uint32(0)
    start = at + store.values_at
    for j in range(dim):
        floats[start + j] = initial_value(key_hash, store.init_salts[table], j, store.scales[table])
    init_state(kind, hyper, floats, start, dim)


@kernel
def gather(keys, counts, store, index, slot_flags, out):  # type: ignore[no-untyped-def]
    """Copy the rows of ``keys`` (uint64 [n], table after table by ``counts``) into ``out`` (float32 [n * dim]). False, and ``out`` is not
    to be used, if a key's slot isn't owned. ``store`` and ``index`` are a Store and Buckets as plain tuples."""
    records, floats, row_words, values_at, _, dim, salts, init_salts, scales = store
    rows_of_index, words, fingerprints, size = index
    buckets = Buckets(rows_of_index, words, fingerprints, size)
    hashes = np.empty(CHUNK, np.uint64)
    rows = np.empty(CHUNK, np.uint64)  # row + 1; 0: unknown
    start = _U0
    for t in range(np.uint64(counts.shape[0])):
        end = start + np.uint64(counts[t])
        while start < end:
            n = min(np.uint64(CHUNK), end - start)
            common = OWNED
            for i in range(n):
                key_hash = mix64(keys[start + i] ^ salts[t])
                hashes[i] = key_hash
                prefetch_bucket(key_hash, buckets)
                common &= flags_of(key_hash, slot_flags)
            if common == np.uint8(0):
                return False
            for i in range(n):
                rows[i] = candidate(hashes[i], buckets)
                prefetch_record(records, (max(rows[i], _U1) - _U1) * row_words, values_at + dim)
            for i in range(n):
                row = rows[i]
                if row != _U0 and not is_row_of(row - _U1, row_words, hashes[i], t, records):
                    row = look_up(hashes[i], t, buckets, records, row_words)
                target = (start + i) * dim
                if row != _U0:
                    copy_values(out, target, floats, (row - _U1) * row_words + values_at, dim)
                else:
                    for j in range(dim):
                        out[target + j] = initial_value(hashes[i], init_salts[t], j, scales[t])
            start += n
    return True


@kernel
def update(  # type: ignore[no-untyped-def]  # noqa: PLR0915 - a call with so many arrays costs more than a row
    counts,
    hashes,
    grads,
    store,
    index,
    book,
    journal,
    base,
    limit,
    pushed,
    spill,
    spilled,
    kind,
    hyper,
    factor,
    epoch,
    tracks,
):
    """Apply ``grads`` (float32 [n * dim]) to the rows of keys with these ``hashes``, table after table by ``counts``, making those that
    aren't there.

    ``store``, ``index`` and ``book`` are a Store, Buckets and a Book as plain tuples. The caller has made sure that index, arena and
    log have room for n more rows, and that no key comes twice. ``tracks``: some slots are tracked. ``journal``: JournalWords as a
    plain tuple, or None when nothing is to be undone; ``base`` is the group in its word of progress, ``limit`` how many rows it holds:
    at most CHUNK; ``pushed`` gets the number of each key's row. ``spill``, ``spilled``: words and entries of a ``spill.Area``. Returns how
    many rows are new, or the negative of the step at which it was stopped.
    """
    records, floats, row_words, values_at, counted, dim, salts, init_salts, scales = store
    group = Store(records, floats, row_words, values_at, counted, dim, salts, init_salts, scales)
    rows_of_index, words, fingerprints, size = index
    buckets = Buckets(rows_of_index, words, fingerprints, size)
    numbers, free, log, logged, slot_flags, row_counts, halt = book
    new = 0
    rows = np.empty(CHUNK, np.uint64)
    steps = np.zeros(CHUNK, np.uint32)
    start, fetched, total = _U0, _U0, np.uint64(hashes.shape[0])
    for t in range(np.uint64(counts.shape[0])):
        end = start + np.uint64(counts[t])
        while start < end:
            n = min(limit, end - start)
            for i in range(max(start, fetched), start + n):
                prefetch_bucket(hashes[i], buckets)
            for i in range(n):
                rows[i] = candidate(hashes[start + i], buckets)
                prefetch_record(records, (max(rows[i], _U1) - _U1) * row_words, row_words)
            for i in range(n):
                key_hash = hashes[start + i]
                row = rows[i]
                if row != _U0 and not is_row_of(row - _U1, row_words, key_hash, t, records):
                    row = look_up(key_hash, t, buckets, records, row_words)
                if row != _U0:
                    rows[i] = row - _U1
                else:
                    if new == 0:
                        numbers[INDEXED] = _U0  # until the caller says otherwise
                        fence()
                    row = take_row(numbers, free)
                    enter_row(key_hash, t, row, buckets, row_counts)
                    new += 1
                    rows[i] = row | NEW
            if journal is not None:
                fetched = min(start + n + n, total)
                saved_rows, saved_records, progress = journal
                save(
                    rows,
                    n,
                    group,
                    JournalWords(saved_rows, saved_records, progress),
                    buckets,
                    hashes,
                    start + n,
                    fetched,
                )
                for i in range(n):
                    pushed[start + i] = np.uint32(rows[i])
                fence()
                if halts(JOURNALLED, halt):
                    return -np.int64(JOURNALLED)
                progress[0] = base | (start << DONE_SHIFT) | n
                fence()
                if halts(COUNTED, halt):
                    return -np.int64(COUNTED)
            if spill[SPILL_USED] != _U0:
                spill_rows(rows, n, group, spill, spilled)
                publish()
                if halts(SPILLED, halt):
                    return -np.int64(SPILLED)
            for i in range(n):
                at = (rows[i] & ~NEW) * row_words + TABLE_EPOCH
                records[at] = records[at] & ~EPOCH_MASK | epoch
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
                    _make_row(row, hashes[start + i], t, epoch, group, kind, hyper)
                if counted != _U0:
                    at = row * row_words + _COUNT
                    steps[i] = records[at] + np.uint32(1)
                    records[at] = steps[i]
            if halts(HALF_CHANGED, halt):
                return -np.int64(HALF_CHANGED)
            if tracks:
                for i in range(n):
                    log_row(rows[i], hashes[start + i], logged, numbers, log, slot_flags)
            update_rows(kind, hyper, factor, floats, row_words, values_at, dim, rows, n, grads, start * dim, steps)
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
def contains(keys, counts, salts, index, records, row_words, out):  # type: ignore[no-untyped-def]
    """Write into ``out`` (bool [n]) whether there is a row for each key."""
    start = _U0
    for t in range(np.uint64(counts.shape[0])):
        end = start + np.uint64(counts[t])
        for i in range(start, end):
            out[i] = find(mix64(keys[i] ^ salts[t]), t, index, records, row_words) != NOWHERE
        start = end
