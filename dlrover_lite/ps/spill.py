"""The spill of a snapshot: rows as they were before they changed for the first time since, for the persister to find them in.

One file of memory: a page that says how far both sides are, then an area of entries for each group. An entry is the row's number
(``journal_kernels.NEW`` beside it: it was free), its metadata, values and state, in words of 4 bytes. The parameter server writes all of
it but ``PASSED``, which is the persister's. Nothing of it outlives the two.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.bounds import Blob, Count
from dlrover_lite.errors import JobError
from dlrover_lite.ps.barrier import barrier
from dlrover_lite.ps.rows import META_WORDS

__all__ = [
    "ANSWERED",
    "CAPACITY",
    "CLOCK",
    "COUNT",
    "OVERFLOW",
    "PASSED",
    "USED",
    "Area",
    "GroupCut",
    "Spill",
    "no_spill",
]

USED, CLOCK, COUNT, CAPACITY, OVERFLOW = (np.uint64(word) for word in range(5))
"""Words (uint64) of a group: rows below are in the snapshot (0: nothing is spilled any more), the group's clock at its beginning, entries
there are, entries there is room for, whether there wasn't room for one."""
PASSED = np.uint64(8)
"""Rows below are the persister's, as they were. In a cache line of its own: another process writes it."""
ANSWERED = 0
"""Word of all groups: requests of training so far, by which the persister sees that there is any."""

_HEADER_WORDS, _GROUP_WORDS = 16, 16
ENTRY_HEAD_WORDS = 2 + META_WORDS
"""uint32 words of an entry before its values."""


class GroupCut(msgspec.Struct, frozen=True):
    """What a snapshot is of a group of tables, at its beginning."""

    dim: Count
    state: Count
    """Floats of a row's optimizer state."""
    used: Count
    """Row numbers in use."""
    clock: Count
    salts: Blob
    """Of the tables: uint64."""
    capacity: Count
    """Entries in the spill."""
    since: Count | None = None
    """Rows changed after this clock are wanted; None: all."""

    @property
    def row_bytes(self) -> int:
        return 8 + 4 * (META_WORDS + self.dim + self.state)

    @property
    def entry_words(self) -> int:
        return ENTRY_HEAD_WORDS + self.dim + self.state

    @property
    def entry_bytes(self) -> int:
        return 4 * self.entry_words


class Area(NamedTuple):
    """A group's part of the spill, as kernels take it."""

    words: NDArray[np.uint64]
    """[16]"""
    entries: NDArray[np.uint32]
    """Flat."""


def no_spill() -> Area:
    """For a group of which no snapshot is taken."""
    return Area(np.zeros(_GROUP_WORDS, np.uint64), np.zeros(1, np.uint32))


class Spill:
    """Of one snapshot."""

    def __init__(self, groups: list[GroupCut], fd: int | None = None) -> None:
        """``fd``: the file that another process has made; it is closed. Raises JobError when there can be none."""
        header_bytes = _pages(8 * (_HEADER_WORDS + _GROUP_WORDS * len(groups)))
        sizes = [_pages(max(4, group.capacity * group.entry_bytes)) for group in groups]
        is_new = fd is None
        self.fd = _make(header_bytes + sum(sizes)) if fd is None else fd
        try:
            memory = mmap.mmap(self.fd, header_bytes + sum(sizes))
        except (OSError, ValueError) as error:
            os.close(self.fd)
            raise JobError(f"there is no memory for rows that change during a snapshot: {error}") from error
        self._groups = groups
        self.header: NDArray[np.uint64] = np.frombuffer(memory, np.uint64, _HEADER_WORDS)
        self.areas: list[Area] = []
        position = header_bytes
        for g, (group, size) in enumerate(zip(groups, sizes, strict=True)):
            words = np.frombuffer(memory, np.uint64, _GROUP_WORDS, 8 * (_HEADER_WORDS + _GROUP_WORDS * g))
            self.areas.append(Area(words, np.frombuffer(memory, np.uint32, size // 4, position)))
            position += size
            if is_new:
                words[CLOCK], words[CAPACITY], words[USED] = group.clock, group.capacity, group.used

    @property
    def overflown(self) -> bool:
        """A row has changed without being here."""
        return any(bool(area.words[OVERFLOW]) for area in self.areas)

    @property
    def bytes(self) -> int:
        """That entries take."""
        return sum(self._bytes())

    @property
    def limited_bytes(self) -> int:
        """That entries take in groups in which not all rows may have one."""
        found = zip(self._bytes(), self._groups, strict=True)
        return sum(size for size, group in found if group.capacity < group.used)

    def _bytes(self) -> list[int]:
        pairs = zip(self.areas, self._groups, strict=True)
        return [int(area.words[COUNT]) * group.entry_bytes for area, group in pairs]

    def entries(self, group: int) -> NDArray[np.uint32]:
        """Those that are there now: [n, words]."""
        words = self._groups[group].entry_words
        count = int(self.areas[group].words[COUNT])
        barrier()
        found: NDArray[np.uint32] = self.areas[group].entries[: count * words].reshape(count, words)
        return found

    def stop(self) -> None:
        """Nothing is spilled any more; who reads it must not believe it to be whole."""
        for area in self.areas:
            area.words[OVERFLOW] = 1
            area.words[USED] = 0

    def close(self) -> None:
        """The memory goes with the last one who has it, and as soon as nobody holds an array of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.areas = []
        self.header = np.zeros(_HEADER_WORDS, np.uint64)


def _make(size: int) -> int:
    if sys.platform != "linux":
        raise JobError("checkpoints can be taken on Linux only", hint="Write checkpoint: off.")
    try:
        fd = os.memfd_create("spill", os.MFD_CLOEXEC)
    except OSError as error:
        raise JobError(f"there is no memory for rows that change during a snapshot: {error}") from error
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        os.close(fd)
        raise JobError(f"there is no memory for rows that change during a snapshot: {error}") from error
    return fd


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
