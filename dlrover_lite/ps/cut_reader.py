"""The rows of a snapshot, read by another process while they change: from the arenas, or from the spill if they were faster.

Needs nothing but numpy, and is a generator of steps: who drives it may sleep, or stop, between any two. Of each piece of a group:

1. Everything about the rows is copied.
2. ``CHANGED`` is read again. The parameter server sets it before it changes anything else of a row, so rows that are still not newer than
   the snapshot were copied as they were at its beginning; the others are *late*.
3. ``PASSED`` is published: the server needn't spill these rows any more.

When all of the group is passed, the late ones are taken from the spill, where each is exactly once: the server puts it there before it sets
``CHANGED``. An increment looks at metadata first, and copies the rest of those rows only that have changed since the cut that it builds on.
What is wanted of a late row is told by its metadata in the spill.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.buckets import Buckets
from dlrover_lite.errors import JobError
from dlrover_lite.ps.barrier import barrier
from dlrover_lite.ps.rows import CHANGED, COUNT, META_WORDS, TABLE
from dlrover_lite.ps.spill import ENTRY_HEAD_WORDS, PASSED, GroupCut, Spill
from dlrover_lite.rows import RowData
from dlrover_lite.slots import SlotSet

if TYPE_CHECKING:
    from dlrover_lite.ps.cut_kernels import Source

__all__ = ["CutReader", "GroupFiles", "Overflown", "Part", "numpy_slots"]

PIECE_BYTES = 2 << 20
"""Rows copied in one step, at least one."""
SCAN_ROWS = 1 << 16
"""Rows whose metadata an increment looks at in one step."""
_SCANNED = 8
"""So many rows are looked at in the time, and with the memory, that one is copied with."""
_KEPT_BYTES = 8 << 20
"""After so much that was read it is unmapped: it would count as this process's memory too."""
_NEWER = np.uint32(1 << 30)
"""A snapshot takes fewer pushes than this; clocks wrap around, and a row's may be that much older than the snapshot's."""
_SLOT_SHIFT = np.uint64(52)


class Overflown(JobError):
    """The spill had no room for a row."""

    def __init__(self) -> None:
        super().__init__(
            "more rows changed while the snapshot was written than may be kept meanwhile",
            hint="It is tried again. A faster destination helps, and so does more memory for parameter servers.",
        )


class Part(Protocol):
    """What takes the rows: ``checkpoint.part_writer.PartWriter``."""

    def buckets(self, group: int, rows: int = 0) -> Buckets: ...

    def flush_full(self) -> None: ...

    def add(
        self, group: int, rows: RowData, slots: NDArray[np.uint16], which: NDArray[np.intp] | None = None
    ) -> None: ...


class GroupFiles(NamedTuple):
    """Descriptors of a group's arenas. ``state``: anything, of a group that has none."""

    ids: int
    meta: int
    values: int
    state: int


class _Rows(NamedTuple):
    """Copies, some of which may be of rows that changed meanwhile. They are there until the next ones."""

    ids: NDArray[np.uint64]
    meta: NDArray[np.uint32]
    """[n, 4]"""
    values: NDArray[np.float32]
    state: NDArray[np.float32]


class _Column:
    """One array of a group's rows, in a file of memory. Neighbours are read as from a file, which takes neither page faults nor memory that
    would count as this process's too; single rows where they are mapped."""

    def __init__(self, fd: int, rows: int, kind: type[np.generic], width: int) -> None:
        """``width``: numbers of a row."""
        self._fd = fd
        self.row_bytes = np.dtype(kind).itemsize * width
        size = rows * self.row_bytes
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) if size else None
        found = np.frombuffer(self._map if self._map is not None else b"", kind)
        self.mapped = found.reshape(rows, width)
        """[n, width]"""
        self._room = np.empty((0, width), kind)

    def read(self, rows: slice) -> NDArray[Any]:
        """[n, width], until the next call."""
        count = rows.stop - rows.start
        if len(self._room) < count:
            self._room = np.empty((count, *self._room.shape[1:]), self._room.dtype)
        found = self._room[:count]
        if not found.size:
            return found
        left, at = found.reshape(-1).data.cast("B"), rows.start * self.row_bytes
        while left:
            done = os.preadv(self._fd, [left], at)
            if not done:
                raise JobError("the memory of the parameter server is smaller than its rows")
            left, at = left[done:], at + done
        return found

    def unmap(self, rows: slice) -> None:
        """They are mapped again where they are read again."""
        first = rows.start * self.row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        size = rows.stop * self.row_bytes - first
        if size > 0:
            assert self._map is not None
            self._map.madvise(mmap.MADV_DONTNEED, first, size)


class _Group:
    """The rows in the snapshot."""

    def __init__(self, cut: GroupCut, files: GroupFiles) -> None:
        self.ids = _Column(files.ids, cut.used, np.uint64, 1)
        self.meta = _Column(files.meta, cut.used, np.uint32, META_WORDS)
        self._wide = (
            _Column(files.values, cut.used, np.float32, cut.dim),
            _Column(files.state, cut.used, np.float32, cut.state),
        )
        self._meta_again = _Column(files.meta, cut.used, np.uint32, META_WORDS)
        self._mapped = slice(cut.used, 0)
        """Rows that may be."""
        self._mapped_bytes = 0
        self._row_bytes = cut.row_bytes

    def source(self, salts: NDArray[np.uint64]) -> Source:
        from dlrover_lite.ps.cut_kernels import Source

        ids, meta, values, state = (column.mapped.reshape(-1) for column in (self.ids, self.meta, *self._wide))
        return Source(ids, meta, values, state, salts)

    def copy(self, rows: slice | NDArray[np.int64]) -> _Rows:
        if not isinstance(rows, slice) and len(rows):
            self.has_read(int(rows[0]), int(rows[-1]) + 1, len(rows))
        ids, meta, values, state = (_copy(column, rows) for column in (self.ids, self.meta, *self._wide))
        return _Rows(ids.reshape(-1), meta, values, state)

    def changed(self, rows: slice | NDArray[np.int64]) -> NDArray[np.uint32]:
        """As it is now that whatever was read of these rows has been."""
        barrier()
        changed: NDArray[np.uint32] = _copy(self._meta_again, rows)[:, CHANGED]
        return changed

    def has_read(self, start: int, stop: int, count: int) -> None:
        """So many rows in this range, where they are mapped."""
        self._mapped = slice(min(self._mapped.start, start), max(self._mapped.stop, stop))
        self._mapped_bytes += count * self._row_bytes

    def unmap(self) -> None:
        """Now and then."""
        if self._mapped_bytes >= _KEPT_BYTES:
            for column in (self.ids, self.meta, self._meta_again, *self._wide):
                column.unmap(self._mapped)
            self._mapped, self._mapped_bytes = slice(self._mapped.stop, 0), 0


def _copy(column: _Column, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
    """[n, width]"""
    return column.read(rows) if isinstance(rows, slice) else column.mapped[rows]


class CutReader:
    """``owned``: slots whose rows are wanted; ``whole``: those of them in which an increment has all rows. ``kernels``: whether numba is to
    be used, which should be there then."""

    def __init__(
        self,
        groups: Sequence[GroupCut],
        files: Sequence[GroupFiles],
        spill: Spill,
        owned: SlotSet,
        whole: SlotSet,
        *,
        kernels: bool = False,
    ) -> None:
        self._kernels = kernels
        self._groups = list(groups)
        self._files = list(files)
        self._spill = spill
        self._owned, self._whole = owned, whole
        self._owns_all = bool(owned.all())
        self._salts = [np.frombuffer(group.salts, np.uint64) for group in groups]
        self.rows = 0
        """Taken so far."""

    def steps(self, part: Part) -> Iterator[str]:
        """Everything into ``part``, little by little: yields ``block`` or ``spill`` after each step. Raises Overflown, JobError, and what
        ``part`` raises."""
        for g, cut in enumerate(self._groups):
            if not cut.used:
                continue
            group = _Group(cut, self._files[g])
            late: list[NDArray[np.int64]] = []
            for passed in self._pieces(g, group, part, late):
                barrier()
                self._spill.areas[g].words[PASSED] = passed
                group.unmap()
                yield "block"
            for _ in self._late(g, group, part, np.concatenate([np.empty(0, np.int64), *late])):
                yield "spill"

    # --- pieces ---------------------------------------------------------------------------------------------------------

    def _pieces(self, g: int, group: _Group, part: Part, late: list[NDArray[np.int64]]) -> Iterator[int]:
        """Yields how far rows are passed."""
        if self._kernels:
            return self._by_kernels(g, group, part, late)
        if self._groups[g].since is None:
            return self._all(g, group, part, late)
        return self._changed(g, group, part, late)

    def _by_kernels(self, g: int, group: _Group, part: Part, late: list[NDArray[np.int64]]) -> Iterator[int]:
        from dlrover_lite.ps.cut_kernels import Copier

        cut = self._groups[g]
        most = max(1, PIECE_BYTES // cut.row_bytes)
        copier = Copier(
            group.source(self._salts[g]),
            part.buckets(g, cut.used if cut.since is None else 0),
            clock=cut.clock,
            since=cut.since,
            owned=self._owned,
            whole=self._whole,
            most_rows=most if cut.since is None else max(most, SCAN_ROWS),
            most_copies=most,
        )
        at = read = 0
        while at < cut.used:
            start = at
            at, is_odd = copier.copy(start, cut.used)
            barrier()
            newer, copied = copier.drop_late()
            if len(newer):
                late.append(newer)
            self.rows += copied
            if is_odd:
                late.append(self._odd(g, group, at))
                at += 1
            part.flush_full()
            count = max(copied, (at - start) // _SCANNED)
            group.has_read(start, at, count)
            read += count
            if read >= most or at == cut.used:
                read = 0
                yield at

    def _odd(self, g: int, group: _Group, row: int) -> NDArray[np.int64]:
        """A row of a table that there wasn't must be newer."""
        cut = self._groups[g]
        barrier()
        found = group.meta.mapped[row : row + 1].copy()
        if not _newer(found[:, CHANGED], cut).all():
            raise JobError(f"rows of dim {cut.dim} are damaged: one is of table {int(found[0, TABLE])}")
        return np.array([row], np.int64)

    def _all(self, g: int, group: _Group, part: Part, late: list[NDArray[np.int64]]) -> Iterator[int]:
        cut = self._groups[g]
        step = max(1, PIECE_BYTES // cut.row_bytes)
        for start in range(0, cut.used, step):
            rows = slice(start, min(cut.used, start + step))
            found = group.copy(rows)
            newer = _newer(group.changed(rows), cut)
            late.append(start + np.flatnonzero(newer))
            self._add(g, found, ~newer, part)
            yield rows.stop

    def _changed(self, g: int, group: _Group, part: Part, late: list[NDArray[np.int64]]) -> Iterator[int]:
        """As ``_all``, with a look at the metadata first."""
        cut = self._groups[g]
        step = max(1, PIECE_BYTES // cut.row_bytes)
        any_whole = bool(self._whole.any())
        for start in range(0, cut.used, SCAN_ROWS):
            scanned = slice(start, min(cut.used, start + SCAN_ROWS))
            meta = _copy(group.meta, scanned)
            newer = _newer(meta[:, CHANGED], cut)
            late.append(start + np.flatnonzero(newer))
            wanted = (meta[:, TABLE] != 0) & ~newer
            since = _since(meta[:, CHANGED], cut)
            if any_whole:
                # of rows that are free, or change right now, it may be any
                salts = self._salts[g][np.clip(meta[:, TABLE], 1, len(self._salts[g])) - np.uint32(1)]
                since |= self._whole[numpy_slots(_copy(group.ids, scanned).reshape(-1), salts)]
            candidates = start + np.flatnonzero(wanted & since)
            for first in range(0, len(candidates), step):
                rows = candidates[first : first + step]
                found = group.copy(rows)
                newer = _newer(group.changed(rows), cut)
                late.append(rows[newer])
                self._add(g, found, ~newer, part)
                if first + step < len(candidates):
                    yield int(rows[-1]) + 1
            yield scanned.stop

    def _late(self, g: int, group: _Group, part: Part, late: NDArray[np.int64]) -> Iterator[None]:
        """The rows that were faster, from the spill."""
        cut = self._groups[g]
        barrier()
        entries = self._spill.entries(g)
        barrier()
        if self._spill.overflown:
            raise Overflown
        numbers = entries[:, 0].astype(np.uint64) | entries[:, 1].astype(np.uint64) << np.uint64(32)
        was_free = numbers >> np.uint64(63) != 0
        rows = (numbers & np.uint64((1 << 63) - 1)).astype(np.int64)
        order = np.argsort(rows, kind="stable")
        sorted_rows = rows[order]
        late = np.sort(late)
        at = np.searchsorted(sorted_rows, late)
        there = at < len(rows)
        there[there] = sorted_rows[at[there]] == late[there]
        if not there.all() or (np.diff(sorted_rows) == 0).any() or (np.diff(late) == 0).any():
            missing = int((~there).sum())
            raise JobError(
                f"a snapshot isn't whole: of {len(late)} rows of dim {cut.dim} that changed, {missing} aren't in the spill "
                f"of {len(rows)} entries once",
                hint="This is a bug of dlrover-lite: please report it. The checkpoints before are not affected.",
            )
        chosen = order[at]
        chosen = chosen[~was_free[chosen]]
        step = max(1, PIECE_BYTES // cut.entry_bytes)
        for first in range(0, len(chosen), step):
            which = chosen[first : first + step]
            found = entries[which]
            meta = found[:, 2:ENTRY_HEAD_WORDS]
            floats = found[:, ENTRY_HEAD_WORDS:].view(np.float32)
            copied = _Rows(group.ids.mapped[rows[which], 0], meta, floats[:, : cut.dim], floats[:, cut.dim :])
            self._add(g, copied, np.ones(len(which), np.bool_), part)
            group.unmap()
            yield

    def _add(self, g: int, found: _Rows, right: NDArray[np.bool_], part: Part) -> None:
        """Those of the rows that are as they were, that live, and that are wanted."""
        cut, salts = self._groups[g], self._salts[g]
        tables, changed = found.meta[:, TABLE], found.meta[:, CHANGED]
        chosen = right & (tables != 0)
        if tables.max(initial=0) > len(salts):
            if (tables[chosen] > len(salts)).any():
                raise JobError(f"rows of dim {cut.dim} are damaged: one is of table {int(tables[chosen].max())}")
            tables = np.where(chosen, tables, np.uint32(1))
        tables = np.maximum(tables, np.uint32(1)) - np.uint32(1)
        slots = numpy_slots(found.ids, salts.take(tables))
        if not self._owns_all:
            chosen &= self._owned.take(slots)
        if cut.since is not None:
            chosen &= _since(changed, cut) | self._whole.take(slots)
        which = None if chosen.all() else np.flatnonzero(chosen)
        count = len(slots) if which is None else len(which)
        if count:
            ages = np.uint32(cut.clock) - changed
            rows = RowData(found.ids, tables.astype(np.uint16), found.meta[:, COUNT], ages, found.values, found.state)
            part.add(g, rows, slots, which)
            self.rows += count


def _newer(changed: NDArray[np.uint32], cut: GroupCut) -> NDArray[np.bool_]:
    """Than the snapshot."""
    return changed - np.uint32((cut.clock + 1) & 0xFFFFFFFF) < _NEWER


def _since(changed: NDArray[np.uint32], cut: GroupCut) -> NDArray[np.bool_]:
    """Changed after the cut that this one builds on: less long ago than that."""
    assert cut.since is not None
    return np.uint32(cut.clock) - changed < np.uint32((cut.clock - cut.since) & 0xFFFFFFFF)


def numpy_slots(ids: NDArray[np.uint64], salts: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """Slots of keys, each with the salt of its table: ``hashing.mix64`` without its kernels."""
    x = ids ^ salts
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    x ^= x >> np.uint64(33)
    return (x >> _SLOT_SHIFT).astype(np.uint16)
