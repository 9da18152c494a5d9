"""The journal of a parameter server's pushes: see ``journal_kernels`` for what is written in which order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError
from dlrover_lite.core.failpoints import active, failpoint
from dlrover_lite.ps.journal import journal_kernels
from dlrover_lite.ps.journal.journal_kernels import DONE_SHIFT, GROUP_SHIFT, NEW, JournalWords, journal_bytes
from dlrover_lite.ps.memory.arena import Arena
from dlrover_lite.ps.tables import move_kernels, table_kernels
from dlrover_lite.ps.tables.bucket_index import CHUNK
from dlrover_lite.ps.tables.row_arrays import Store

__all__ = ["ANY_STEP", "STEPS", "Journal", "Progress", "halting", "stopped"]

_CHUNK_BYTES = 48 << 10
"""Approximate bytes of a chunk of long rows: it and its journal stay in the L2 cache."""

STEPS = {
    "ps.chunk.journalled": int(table_kernels.JOURNALLED),
    "ps.chunk.counted": int(table_kernels.COUNTED),
    "ps.chunk.spilled": int(table_kernels.SPILLED),
    "ps.chunk.stamped": int(table_kernels.STAMPED),
    "ps.chunk.half": int(table_kernels.HALF_CHANGED),
    "ps.chunk.changed": int(table_kernels.CHANGED_ROWS),
    "ps.chunk.done": int(table_kernels.ADVANCED),
    "ps.write.half": int(move_kernels.HALF_WRITTEN),
    "ps.compact.copied": int(move_kernels.COPIED),
    "ps.compact.twice": int(move_kernels.TWICE),
    "ps.drop.row": int(move_kernels.DROPPED),
}
"""Failpoints inside kernels (only ``kill``, and ``raise``), each with the step that it is for ``Book.halt``."""
ANY_STEP = "ps.step"
"""Name of the failpoint that is hit at each of the ``STEPS``."""
_NAMES = {step: name for name, step in STEPS.items()}


_halt = np.zeros(2, np.uint64)
"""``Book.halt`` of all groups together: it counts the steps of all of them."""


class Progress(NamedTuple):
    """Progress of the push under way."""

    group: int
    """Position of the group under way; the groups before it are done."""
    keys: int
    """Number of keys of this group that are done."""
    rows: int
    """Number of rows in the journal."""


def halting() -> NDArray[np.uint64]:
    """Return ``Book.halt`` as the failpoints of this process want it."""
    _halt[:] = 0
    for name, step in [*STEPS.items(), (ANY_STEP, 255)]:
        if (point := active(name)) is not None and not point.spent:
            _halt[:] = step, point.number
    return _halt


def stopped(step: int) -> None:
    """Run the failpoint of the step that a kernel has returned; 0: there is none."""
    if step:
        point = active(_NAMES[step]) or active(ANY_STEP)
        assert point is not None, "a kernel stopped where nobody had asked for it"
        point.stopped()


class Journal:
    """The journal of all groups: one push is under way at a time.

    ``progress``: uint64 [1], in memory that outlives the process as the arenas do. ``pushed``: numbers of the rows of the group's keys so
    far.
    """

    def __init__(self, arena: Arena, pushed: Arena, progress: NDArray[np.uint64]) -> None:
        self._words = JournalWords(arena.bytes.view(np.uint64), arena.bytes.view(np.uint32), progress)
        self._bytes = arena.size
        self.pushed: NDArray[np.uint32] = pushed.bytes.view(np.uint32)

    @property
    def progress(self) -> Progress:
        word = int(self._words.progress[0])
        return Progress(word >> int(GROUP_SHIFT), (word >> int(DONE_SHIFT)) & 0xFFFFFFFF, word & 0xFFFF)

    def begin(self, group: int) -> None:
        """Begin with this group; the groups before it are done."""
        self._words.progress[0] = group << int(GROUP_SHIFT)

    def arguments(self, group: int, row_words: int) -> tuple[JournalWords, np.uint64, np.uint64]:
        """Return what ``table_kernels.update`` takes of the journal. Raises JobError for rows that are too long for it."""
        if journal_bytes(row_words) > self._bytes:
            raise JobError(f"rows of {row_words} words are too long for the journal of {self._bytes} bytes")
        limit = max(1, min(CHUNK, _CHUNK_BYTES // (4 * row_words)))
        return self._words, np.uint64(group) << GROUP_SHIFT, np.uint64(limit)

    def undo(self, group: int, store: Store, used: int) -> None:
        """Put back what a chunk of this group had half done when its process was killed. Raises JobError for a journal that can't be."""
        progress = self.progress
        n = progress.rows if progress.group == group else 0
        if n:
            self._check(n, used)
        # also without any, so that the kernel is compiled before there is need of it
        journal_kernels.undo(store, self._words, np.uint64(n))
        if n:
            failpoint("ps.attach.undone")
            self._words.progress[0] = (group << int(GROUP_SHIFT)) | (progress.keys << int(DONE_SHIFT))

    def _check(self, n: int, used: int) -> None:
        if n > CHUNK:
            raise JobError(f"the journal is damaged: {n} rows in a chunk of {CHUNK}")
        rows = self._words.rows[:n] & ~NEW
        if rows.max() >= used:
            raise JobError(f"the journal is damaged: row {rows.max()} of {used}")
