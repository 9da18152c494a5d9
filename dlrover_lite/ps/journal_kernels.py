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

from dlrover_lite.kernels import copy_line, kernel
from dlrover_lite.ps.hashing import mix64
from dlrover_lite.ps.rows import CHANGED, META_WORDS, TABLE

__all__ = ["DONE_SHIFT", "GROUP_SHIFT", "NEW", "JournalWords", "changed_at", "entry_words", "save", "undo"]

NEW = np.uint64(1 << 63)
"""Beside a row's number: it was free."""
GROUP_SHIFT, DONE_SHIFT = np.uint64(48), np.uint64(16)
"""In the word of progress: the group, below it the keys done, below them the rows in the journal."""

_U0, _U1, _U2 = np.uint64(0), np.uint64(1), np.uint64(2)
_META = np.uint64(META_WORDS)
_HEAD = np.uint64(2 + META_WORDS)
"""Words of 4 bytes before a row's values in the journal: its number, its metadata."""
_LINE = np.uint64(16)
_LINES = ~np.uint64(15)


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
def save(rows, n, store, journal):  # type: ignore[no-untyped-def]
    """The first n rows as they are, into the journal."""
    meta, values, state, saved = store.meta, store.values, store.state, journal.values
    dim, row_state = store.dim, store.dim * store.parts
    dim_lines, state_lines = dim & _LINES, row_state & _LINES
    size = entry_words(dim, store.parts)
    for i in range(n):
        row = rows[i]
        at = i * size
        journal.rows[at >> _U1] = row
        if row & NEW == _U0:
            for j in range(_META):
                journal.meta[at + _U2 + j] = meta[row * _META + j]
            at += _HEAD
            for j in range(_U0, dim_lines, _LINE):
                copy_line(saved, at + j, values, row * dim + j)
            for j in range(dim_lines, dim):
                saved[at + j] = values[row * dim + j]
            at += dim
            for j in range(_U0, state_lines, _LINE):
                copy_line(saved, at + j, state, row * row_state + j)
            for j in range(state_lines, row_state):
                saved[at + j] = state[row * row_state + j]


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
