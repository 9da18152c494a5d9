"""The rows that an update is about to change, as they were, so that it can be undone wherever its process was killed.

Keys are updated in chunks. One word says how far it all is: the group, how many of its keys are done, and the rows in the journal that have
to be put back. Since it is one word, no moment lies between "the chunk is done" and "the journal is empty". In this order, with a fence
after each:

1. The old records into the journal, behind a word that says that it is empty: what it holds means nothing yet.
2. The word, with their number: from now on they are put back.
3. The rows are changed; halves of rows, new rows without their values, whatever there is, is put back.
4. The word, with the keys done and no rows: the chunk is done. The fence after it keeps the next chunk's rows out of the journal until
   then.

A new row is in the journal as a number that was free: to put it back is to free it. Its number is in use before it is in the journal
(``take_row``), and it lives from its table on, which step 3 sets.

Which keys are done, their rows' numbers say, in the order of the push's keys.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.core.records import TABLE_EPOCH
from dlrover_lite.ps.tables.bucket_index import CHUNK, prefetch_bucket
from dlrover_lite.ps.tables.copy_values import copy_values

__all__ = ["DONE_SHIFT", "GROUP_SHIFT", "NEW", "JournalWords", "journal_bytes", "save", "undo"]

NEW = np.uint64(1 << 63)
"""Bit beside a row's number in the journal: the row was free."""
GROUP_SHIFT, DONE_SHIFT = np.uint64(48), np.uint64(16)
"""Shifts in the word of progress: the group at the top, below it the number of keys done, below that the number of rows in the journal."""

_U0, _U1 = np.uint64(0), np.uint64(1)
_RECORDS = np.uint64(CHUNK * 2)
"""Position where records begin in the journal, in words of 4 bytes: behind the row numbers of a chunk."""


def journal_bytes(row_words: int) -> int:
    """Tell how many bytes the journal takes for records of this length."""
    return 4 * (int(_RECORDS) + CHUNK * row_words)


class JournalWords(NamedTuple):
    """The journal as kernels take it: one memory as words of each kind, and the word of progress."""

    rows: NDArray[np.uint64]
    records: NDArray[np.uint32]
    progress: NDArray[np.uint64]
    """uint64 [1]: the word of progress."""


@kernel
def save(rows, n, store, journal, index, hashes, ahead, stop):  # type: ignore[no-untyped-def]
    """Copy the first n rows as they are into the journal. Meanwhile the buckets of the next keys, ``hashes[ahead:stop]``, are fetched: that
    hides some of what the copying costs."""
    row_words = store.row_words
    for i in range(n):
        if ahead < stop:
            prefetch_bucket(hashes[ahead], index)
            ahead += _U1
        row = rows[i]
        journal.rows[i] = row
        if row & NEW == _U0:
            copy_values(journal.records, _RECORDS + i * row_words, store.records, row * row_words, row_words)


@kernel
def undo(store, journal, n):  # type: ignore[no-untyped-def]
    """Put back the first n rows of the journal. It may be done again."""
    records, row_words = store.records, store.row_words
    for i in range(n):
        row = journal.rows[i]
        if row & NEW != _U0:
            records[(row ^ NEW) * row_words + TABLE_EPOCH] = np.uint32(0)
        else:
            copy_values(records, row * row_words, journal.records, _RECORDS + i * row_words, row_words)
