"""The rows that an update is about to change, as they were, so that it can be undone wherever its process was killed.

Keys are updated in chunks. One word says how far it all is: the group, how many of its keys are done, and the rows in the journal that have
to be put back. Since it is one word, no moment lies between "the chunk is done" and "the journal is empty". In this order, with a fence
after each:

1. The old rows into the journal, behind a word that says that it is empty: what it holds means nothing yet.
2. The word, with their number: from now on they are put back.
3. The rows are changed; halves of rows, new rows without their values, whatever there is, is put back.
4. The word, with the keys done and no rows: the chunk is done. The fence after it keeps the next chunk's rows out of the journal until
   then.

A new row is in the journal as a number that was free: to put it back is to free it. Its number is in use before it is in the journal
(``take_row``), and it lives from its table on, which step 3 sets.

Which keys are done, the rows say: their last change is that of the group's clock. (To do them in the order of their slots, and keep slots
instead, was measured: 10% to 15% on top of the update, since keys of one table, and their gradients, lie together.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.kernels import copy_4, copy_16, kernel, prefetch
from dlrover_lite.ps.hashing import mix64
from dlrover_lite.ps.index import CHUNK
from dlrover_lite.ps.rows import CHANGED, META_WORDS, TABLE

__all__ = ["DONE_SHIFT", "GROUP_SHIFT", "NEW", "JournalWords", "changed_at", "journal_bytes", "save", "undo"]

NEW = np.uint64(1 << 63)
"""Beside a row's number: it was free."""
GROUP_SHIFT, DONE_SHIFT = np.uint64(48), np.uint64(16)
"""In the word of progress: the group, below it the keys done, below them the rows in the journal."""

_U0, _U1, _U2 = np.uint64(0), np.uint64(1), np.uint64(2)
_META = np.uint64(META_WORDS)
_ROWS, _METAS = np.uint64(CHUNK), np.uint64(CHUNK * 2)
_VALUES = _METAS + _ROWS * _META
"""Where the rows' metadata and values begin in the journal, in words of 4 bytes: behind the numbers of a chunk, and behind its metadata."""
_LINE = np.uint64(16)
_LINES = ~np.uint64(15)


def journal_bytes(dim: int, parts: int) -> int:
    """That it takes for rows of this length."""
    return 4 * (int(_VALUES) + CHUNK * dim * (1 + parts))


class JournalWords(NamedTuple):
    """The journal as kernels take it: one memory as words of each kind, and the word of progress."""

    rows: NDArray[np.uint64]
    meta: NDArray[np.uint32]
    values: NDArray[np.float32]
    progress: NDArray[np.uint64]
    """[1]"""


@kernel
def save(rows, n, store, journal, words, mask, hashes, ahead, stop):  # type: ignore[no-untyped-def]
    """The first n rows as they are, into the journal. Meanwhile the index entries of the next keys, ``hashes[ahead:stop]``, are fetched:
    that hides some of what the copying costs."""
    meta, values, state, saved = store.meta, store.values, store.state, journal.values
    dim, row_state = store.dim, store.dim * store.parts
    dim_lines, state_lines = dim & _LINES, row_state & _LINES
    saved_state = _VALUES + _ROWS * dim
    for i in range(n):
        if ahead < stop:
            prefetch(words, np.int64((hashes[ahead] & mask) * _U2))
            ahead += _U1
        row = rows[i]
        journal.rows[i] = row
        if row & NEW == _U0:
            copy_4(journal.meta, _METAS + i * _META, meta, row * _META)
            to, at = _VALUES + i * dim, row * dim
            for j in range(_U0, dim_lines, _LINE):
                copy_16(saved, to + j, values, at + j)
            for j in range(dim_lines, dim):
                saved[to + j] = values[at + j]
            to, at = saved_state + i * row_state, row * row_state
            for j in range(_U0, state_lines, _LINE):
                copy_16(saved, to + j, state, at + j)
            for j in range(state_lines, row_state):
                saved[to + j] = state[at + j]


@kernel
def undo(store, journal, n):  # type: ignore[no-untyped-def]
    """Put back the first n rows of the journal. It may be done again."""
    meta, values, state, saved = store.meta, store.values, store.state, journal.values
    dim, row_state = store.dim, store.dim * store.parts
    saved_state = _VALUES + _ROWS * dim
    for i in range(n):
        row = journal.rows[i]
        if row & NEW != _U0:
            meta[(row ^ NEW) * _META + TABLE] = np.uint32(0)
            continue
        for j in range(_META):
            meta[row * _META + j] = journal.meta[_METAS + i * _META + j]
        for j in range(dim):
            values[row * dim + j] = saved[_VALUES + i * dim + j]
        for j in range(row_state):
            state[row * row_state + j] = saved[saved_state + i * row_state + j]


@kernel
def changed_at(store, used, clock, tables, hashes):  # type: ignore[no-untyped-def]
    """Tables and hashes of the keys below ``used`` that were last changed then, into the arrays until they are full. Returns how many keys
    there are."""
    ids, meta = store.ids, store.meta
    found = _U0
    for row in range(used):
        table = meta[row * _META + TABLE]
        if table != np.uint32(0) and meta[row * _META + CHANGED] == clock:
            if found < np.uint64(tables.shape[0]):
                tables[found] = np.uint16(table - np.uint32(1))
                hashes[found] = mix64(ids[row] ^ store.salts[np.uint64(table) - _U1])
            found += _U1
    return found
