"""The journal of a parameter server's pushes: see ``journal_kernels`` for what is written in which order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.errors import JobError
from dlrover_lite.failpoints import active, failpoint
from dlrover_lite.ps import journal_kernels, move_kernels
from dlrover_lite.ps.arena import Arena
from dlrover_lite.ps.index import Entries
from dlrover_lite.ps.journal_kernels import GROUP_SHIFT, NEW, SLOT_SHIFT_OF_PROGRESS, JournalWords
from dlrover_lite.ps.rows import Store
from dlrover_lite.ps.table_kernels import Book
from dlrover_lite.slots import SLOTS

__all__ = ["ANY_STEP", "STEPS", "Journal", "Progress", "halting", "stopped"]

_CHUNK_ROWS, _CHUNK_BYTES = 128, 48 << 10
"""Of a chunk, about: so that misses overlap; so that the chunk and its journal stay in the second cache."""

STEPS = {
    "ps.chunk.journalled": int(journal_kernels.JOURNALLED),
    "ps.chunk.counted": int(journal_kernels.COUNTED),
    "ps.chunk.half": int(journal_kernels.HALF_CHANGED),
    "ps.chunk.changed": int(journal_kernels.CHANGED_ROWS),
    "ps.chunk.done": int(journal_kernels.ADVANCED),
    "ps.write.half": int(move_kernels.HALF_WRITTEN),
    "ps.compact.copied": int(move_kernels.COPIED),
    "ps.compact.twice": int(move_kernels.TWICE),
    "ps.drop.row": int(move_kernels.DROPPED),
}
"""Failpoints inside kernels (only ``kill``, and ``raise``): the steps they are for ``Book.halt``."""
ANY_STEP = "ps.step"
"""A failpoint at each of these."""
_NAMES = {step: name for name, step in STEPS.items()}


class Progress(NamedTuple):
    """Of the push under way."""

    group: int
    """Groups before are done."""
    slot: int
    """Slots of this group before are done."""
    rows: int
    """In the journal."""


def halting() -> NDArray[np.uint64]:
    """``Book.halt`` as the failpoints of this process want it."""
    for name, step in [*STEPS.items(), (ANY_STEP, 255)]:
        if (point := active(name)) is not None and not point.spent:
            return np.array([step, point.number], np.uint64)
    return np.zeros(2, np.uint64)


def stopped(step: int) -> None:
    """A kernel has returned ``step``: if it isn't 0, a failpoint is there."""
    if step:
        point = active(_NAMES[step]) or active(ANY_STEP)
        assert point is not None, "a kernel stopped where nobody had asked for it"
        point.stopped()


class Journal:
    """Of all groups: one push is under way at a time. ``progress``: uint64 [1], in memory that outlives the process as ``arena`` does."""

    def __init__(self, arena: Arena, progress: NDArray[np.uint64]) -> None:
        self._words = JournalWords(
            arena.bytes.view(np.uint64), arena.bytes.view(np.uint32), arena.bytes.view(np.float32), progress
        )
        self._bytes = arena.size
        self._order = np.empty(0, np.uint64)
        self._ends = np.empty(SLOTS, np.uint64)

    @property
    def progress(self) -> Progress:
        word = int(self._words.progress[0])
        slots = (word >> int(SLOT_SHIFT_OF_PROGRESS)) & 0xFFFF
        return Progress(word >> int(GROUP_SHIFT), slots, word & 0xFFFFFFFF)

    def begin(self) -> None:
        """A push, from its first group on."""
        self._words.progress[0] = 0

    def update(
        self,
        group: int,
        keys: NDArray[np.uint64],
        counts: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        grads: NDArray[np.float32],
        store: Store,
        entries: Entries,
        book: Book,
        *optimizer: Any,
    ) -> None:
        """``optimizer``: the rest of what ``table_kernels.update`` takes. Raises JobError for more rows of one slot than the journal holds;
        nothing is done then."""
        n = len(keys)
        if len(self._order) < n:
            self._order = np.empty(n, np.uint64)
        order = self._order[:n]
        most = int(journal_kernels.order_by_slot(counts, hashes, order, self._ends))
        row_bytes = 4 * int(journal_kernels.entry_words(store.dim, store.parts))
        limit = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes))
        room = min(n, limit + most)
        if room * row_bytes > self._bytes:
            raise JobError(
                f"{most} rows of one slot in one push: their journal takes {room * row_bytes} bytes of {self._bytes}",
                hint="Use smaller minibatches.",
            )
        step = journal_kernels.update(
            keys,
            hashes,
            order,
            self._ends,
            np.uint64(room),
            np.uint64(limit),
            grads,
            store,
            entries,
            book,
            self._words,
            np.uint64(group),
            *optimizer,
        )
        stopped(int(step))

    def undo(self, group: int, store: Store, used: int) -> None:
        """Put back what a chunk of this group had half done when its process was killed. Raises JobError for a journal that can't be."""
        progress = self.progress
        if progress.group != group:
            return
        if progress.rows:
            self._check(progress, store, used)
        # also without any, so that the kernel can be compiled before there is need of it
        journal_kernels.undo(store, self._words, np.uint64(progress.rows))
        if not progress.rows:
            return
        failpoint("ps.attach.undone")
        self._words.progress[0] = (progress.group << int(GROUP_SHIFT)) | (
            progress.slot << int(SLOT_SHIFT_OF_PROGRESS)
        )

    def _check(self, progress: Progress, store: Store, used: int) -> None:
        words = int(journal_kernels.entry_words(store.dim, store.parts))
        if progress.rows * words * 4 > self._bytes:
            raise JobError(f"the journal is damaged: {progress.rows} rows in {self._bytes} bytes")
        rows = self._words.rows[: progress.rows * words // 2 : words // 2] & ~NEW
        if rows.max() >= used:
            raise JobError(f"the journal is damaged: row {rows.max()} of {used}")
