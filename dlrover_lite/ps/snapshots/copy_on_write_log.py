"""The spill of a snapshot: rows as they were before they changed for the first time since, for the persister to take them from there.

One file of memory: a page that says how far both sides are, then an area for each group. An entry is the row's number
(``journal_kernels.NEW`` beside it: it was free) and its record, in words of 4 bytes.

An area is a ring of segments. Entries are numbered from 0; those of ``SEGMENT_ROWS`` numbers lie in one segment, and a table, a ring
itself, says in which. A segment whose entries the persister has taken is used again before another one is touched, so the memory in use is
that of the longest queue there was. The parameter server writes all of it but ``PASSED`` and ``TAKEN``, which are the persister's. Nothing
of it outlives the two.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.layout import GroupShape
from dlrover_lite.core.bounds import Blob, Count
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.records import RecordShape
from dlrover_lite.ps.memory.arena import pages
from dlrover_lite.ps.memory.memory_fence import barrier

__all__ = [
    "ANSWERED",
    "COUNT",
    "ENTRY_RECORD",
    "EPOCH",
    "FRESH",
    "OVERFLOW",
    "PASSED",
    "RECLAIMED",
    "SEGMENTS",
    "SEGMENT_ROWS",
    "STAMPED",
    "TAKEN",
    "USED",
    "Area",
    "CopyOnWriteLog",
    "GroupSnapshot",
    "SpillMemory",
    "no_spill",
]

USED, EPOCH, COUNT, STAMPED, OVERFLOW, SEGMENT_ROWS, SEGMENTS, FRESH, RECLAIMED = (np.uint64(word) for word in range(9))
"""Words (uint64) of a group: row number below which rows are in the snapshot (0: nothing is spilled any more), the group's epoch until
then, number of entries so far, number of those whose rows say by their epoch that they have changed, whether there wasn't room for one;
entries of a segment, segments there is room for, those that were ever used, those that were given back by now."""
PASSED, TAKEN = np.uint64(16), np.uint64(17)
"""Words (uint64) of a group: rows below the first are the persister's, as they were; entries below the second have been taken. In a cache
line of their own: another process writes them."""
ANSWERED = 0
"""Word of all groups: requests of training so far, by which the persister sees that there is any."""

_HEADER_WORDS, _GROUP_WORDS = 16, 24
ENTRY_RECORD = 2
"""Position of an entry's record in it, in uint32 words."""
SEGMENT_BYTES = 1 << 20
"""Maximum bytes of a segment, unless one entry has more."""
_TABLE_UNIT = 16
"""Number of words that the table of segments takes a multiple of."""
FREED_AT_ONCE_BYTES = 2 << 20
"""Bytes of memory in use that are freed at once: half a millisecond."""
TOUCHED_AT_ONCE_BYTES = 256 << 10
"""Bytes of memory that nobody has used yet, touched at once: up to a millisecond, where a virtual machine has to ask its host for it."""
_MADV_POPULATE_WRITE = 23
"""Advice of Linux 5.14 and later to madvise; Python's mmap doesn't name it yet."""


class GroupSnapshot(msgspec.Struct, frozen=True):
    """A group of tables as it is at the beginning of a snapshot."""

    shape: RecordShape
    used: Count
    """Number of row numbers in use."""
    epoch: Count
    """Epoch of the snapshot: rows of later epochs have changed since."""
    salts: Blob
    """Salts of the tables: uint64."""
    capacity: Count = 0
    """Maximum number of entries that may wait in the spill."""
    since: Count = 0
    """Epoch after which changed rows are wanted; 0: all rows are."""
    rows: Count = 0
    """Number of live rows in the slots owned."""

    @property
    def stored(self) -> GroupShape:
        """Shape of the group, as a part of a checkpoint says it."""
        salts = np.frombuffer(self.salts, np.uint64).tolist()
        return GroupShape(self.shape.dim, self.shape.state, counted=self.shape.counted, salts=salts)

    @property
    def row_bytes(self) -> int:
        return self.shape.bytes

    @property
    def entry_words(self) -> int:
        return ENTRY_RECORD + self.shape.words

    @property
    def entry_bytes(self) -> int:
        return 4 * self.entry_words

    @property
    def segment_rows(self) -> int:
        """Number of entries of a segment."""
        return max(1, min(self.capacity, SEGMENT_BYTES // self.entry_bytes))

    @property
    def segments(self) -> int:
        """Number of segments that there is room for. Where each row finds room, there are enough for all, taken or not."""
        full = self.capacity // self.segment_rows
        return full + 1 if self.capacity >= self.used else max(1, full)

    @property
    def table_words(self) -> int:
        """Number of uint32 words of the table of segments."""
        return -(-self.segments // _TABLE_UNIT) * _TABLE_UNIT

    @property
    def segment_bytes(self) -> int:
        return self.segment_rows * self.entry_bytes


class Area(NamedTuple):
    """A group's part of the spill, as kernels take it."""

    words: NDArray[np.uint64]
    """uint64 [24]: the words of the group."""
    entries: NDArray[np.uint32]
    """uint32, flat: the table of segments, then the segments."""


def no_spill() -> Area:
    """Return an area for a group of which no snapshot is taken."""
    return Area(np.zeros(_GROUP_WORDS, np.uint64), np.zeros(1, np.uint32))


class SpillMemory:
    """The file of a spill that is to come: its first bytes get their memory before anything waits for it. To be closed, or given to a
    ``CopyOnWriteLog``."""

    def __init__(self, size: int) -> None:
        """Make the file. Raises JobError when there can be none."""
        self.size = pages(max(1, size))
        self.fd = _make(self.size)
        self._map: mmap.mmap | None = None
        self._touched = 0

    def touch_some(self) -> bool:
        """Touch some of the memory, little enough for a moment between two requests; True when all is there."""
        if self._touched < self.size:
            try:
                self._map = self._map or mmap.mmap(self.fd, self.size)
                count = min(TOUCHED_AT_ONCE_BYTES, self.size - self._touched)
                self._map.madvise(_MADV_POPULATE_WRITE, self._touched, count)
                self._touched += count
            except (OSError, ValueError):  # an older kernel: it will be touched when it is written to
                self._touched = self.size
        return self._touched == self.size

    def take(self) -> int:
        """Return the file, which belongs to the caller from now on."""
        fd, self.fd, self._map = self.fd, -1, None
        return fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.take())


class CopyOnWriteLog:
    """The spill of one snapshot."""

    def __init__(
        self, groups: list[GroupSnapshot], fd: int | None = None, *, prepared: SpillMemory | None = None
    ) -> None:
        """Map the file ``fd`` that another process has made, and close it in the end; without ``fd`` make one, of what was ``prepared`` if
        given. Raises JobError when there can be none."""
        header_bytes = pages(8 * (_HEADER_WORDS + _GROUP_WORDS * len(groups)))
        sizes = [pages(4 * group.table_words + group.segments * group.segment_bytes) for group in groups]
        is_new = fd is None
        self.fd = _make(header_bytes + sum(sizes), prepared) if fd is None else fd
        self._prepared_bytes = prepared.size if prepared is not None else 0
        try:
            memory = mmap.mmap(self.fd, header_bytes + sum(sizes))
        except (OSError, ValueError) as error:
            os.close(self.fd)
            raise JobError(f"there is no memory for rows that change during a snapshot: {error}") from error
        self._memory = memory
        self._in_use: list[int] | None = None
        """Bytes of each group's area, from its beginning, that may have memory; None as long as more may come."""
        self._groups = groups
        self.header: NDArray[np.uint64] = np.frombuffer(memory, np.uint64, _HEADER_WORDS)
        self.areas: list[Area] = []
        self._starts: list[int] = []
        """Where each area begins, in bytes."""
        position = header_bytes
        for g, (group, size) in enumerate(zip(groups, sizes, strict=True)):
            words = np.frombuffer(memory, np.uint64, _GROUP_WORDS, 8 * (_HEADER_WORDS + _GROUP_WORDS * g))
            self.areas.append(Area(words, np.frombuffer(memory, np.uint32, size // 4, position)))
            self._starts.append(position)
            position += size
            if is_new:
                words[EPOCH], words[USED] = group.epoch, group.used
                words[SEGMENT_ROWS], words[SEGMENTS] = group.segment_rows, group.segments

    @property
    def overflown(self) -> bool:
        """Whether a row has changed without being in the spill."""
        return any(bool(area.words[OVERFLOW]) for area in self.areas)

    @property
    def limited_bytes(self) -> int:
        """Bytes of memory that entries take, or have taken, in groups in which not all rows may have one."""
        found = zip(self._bytes(), self._groups, strict=True)
        return sum(size for size, group in found if group.capacity < group.used)

    def _bytes(self) -> list[int]:
        pairs = zip(self.areas, self._groups, strict=True)
        return [
            min(int(area.words[COUNT]), int(area.words[FRESH]) * group.segment_rows) * group.entry_bytes
            for area, group in pairs
        ]

    @property
    def waiting_bytes(self) -> int:
        """Bytes of entries that were not taken yet, in groups in which not all rows may have one."""
        return sum(
            (int(area.words[COUNT]) - int(area.words[TAKEN])) * group.entry_bytes
            for area, group in zip(self.areas, self._groups, strict=True)
            if group.capacity < group.used
        )

    def count(self, group: int) -> int:
        """Return the number of entries by now: those at least of all rows that have been seen to have changed."""
        barrier()
        return int(self.areas[group].words[COUNT])

    def waiting(self, group: int, most: int) -> NDArray[np.uint32]:
        """Return the next entries, [n, words]: none, if no more wait whose rows say that they have changed. To be copied, and to be
        believed only if nothing is ``overflown`` after that; then ``take`` them."""
        words = self.areas[group].words
        first, stop = int(words[TAKEN]), int(words[STAMPED])
        barrier()
        return self._entries(group, first, min(stop, first + most))

    def waiting_rows(self, group: int) -> NDArray[np.int64]:
        """Return the row numbers of all entries that weren't taken yet, whether or not these rows say that they have changed. To be
        believed only if nothing is ``overflown`` after that."""
        words = self.areas[group].words
        first, stop = int(words[TAKEN]), int(words[COUNT])
        barrier()
        found = [np.empty(0, np.uint64)]
        while first < stop:
            of_segment = self._entries(group, first, stop)
            found.append(np.ascontiguousarray(of_segment[:, :ENTRY_RECORD]).view(np.uint64).reshape(-1))
            first += len(of_segment)
        return (np.concatenate(found) & np.uint64((1 << 63) - 1)).astype(np.int64)

    def _entries(self, g: int, first: int, stop: int) -> NDArray[np.uint32]:
        """Return the entries from number ``first`` on, below ``stop``, that lie in one segment: [n, words]."""
        group, entries = self._groups[g], self.areas[g].entries
        segment, at = divmod(first, group.segment_rows)
        count = max(0, min(stop - first, group.segment_rows - at))
        place = int(entries[segment % group.segments]) if count else 0
        start = group.table_words + (place * group.segment_rows + at) * group.entry_words
        found: NDArray[np.uint32] = entries[start : start + count * group.entry_words].reshape(count, group.entry_words)
        return found

    def take(self, group: int, count: int) -> None:
        """Note that ``count`` of the waiting entries have been copied: the server may use their room."""
        barrier()
        self.areas[group].words[TAKEN] += np.uint64(count)

    def taken(self, group: int) -> int:
        """Return the number of entries taken by now."""
        return int(self.areas[group].words[TAKEN])

    def stop(self) -> None:
        """Stop spilling. Who reads the spill must not believe it to be whole from now on."""
        for area in self.areas:
            area.words[OVERFLOW] = 1
            area.words[USED] = 0

    def free_some(self) -> bool:
        """Give memory back that entries have taken, little enough for a moment between two requests; True when there is no more. To be
        called after ``stop``, since it frees the other process's memory too."""
        if self._in_use is None:
            pairs = zip(self._groups, self.areas, strict=True)
            sizes = [4 * group.table_words + int(area.words[FRESH]) * group.segment_bytes for group, area in pairs]
            self._in_use = [pages(size) for size in sizes]
            if self._in_use:
                most = self.areas[0].entries.nbytes
                self._in_use[0] = max(self._in_use[0], min(self._prepared_bytes - self._starts[0], most))
        for g, (start, size) in enumerate(zip(self._starts, self._in_use, strict=True)):
            if size:
                freed = min(size, FREED_AT_ONCE_BYTES)
                self._memory.madvise(mmap.MADV_REMOVE, start + size - freed, freed)
                self._in_use[g] = size - freed
                return False
        return True

    def close(self) -> None:
        """Close the file. The memory goes with the last one who has it, and as soon as nobody holds an array of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.areas = []
        del self._memory
        self.header = np.zeros(_HEADER_WORDS, np.uint64)


def _make(size: int, prepared: SpillMemory | None = None) -> int:
    if sys.platform != "linux":
        raise JobError("checkpoints can be taken on Linux only", hint="Write checkpoint: off.")
    fd = -1
    try:
        fd = os.memfd_create("spill", os.MFD_CLOEXEC) if prepared is None else prepared.take()
        os.ftruncate(fd, max(size, os.fstat(fd).st_size))
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise JobError(f"there is no memory for rows that change during a snapshot: {error}") from error
    return fd
