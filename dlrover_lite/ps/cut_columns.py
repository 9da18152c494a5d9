"""A group's arrays of rows in a parameter server's memory, as another process reads them while they change."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.raw_rows import RawRows
from dlrover_lite.errors import JobError
from dlrover_lite.ps.barrier import barrier
from dlrover_lite.ps.rows import CHANGED, META_WORDS
from dlrover_lite.ps.spill import GroupCut

if TYPE_CHECKING:
    from dlrover_lite.ps.cut_kernels import Source

__all__ = ["Columns", "GroupFiles"]

_KEPT_BYTES = 8 << 20
"""After so much that was read it is unmapped: it would count as this process's memory too."""


class GroupFiles(NamedTuple):
    """Descriptors of a group's arenas. ``state``: anything, of a group that has none."""

    ids: int
    meta: int
    values: int
    state: int


class _Column:
    """One array of a group's rows, in a file of memory. Neighbours are read as from a file, which takes neither page faults nor memory that
    would count as this process's too; single rows where they are mapped."""

    def __init__(self, fd: int, rows: int, kind: type[np.generic], width: int) -> None:
        """``width``: numbers of a row."""
        self._fd = fd
        self._kind, self._rows, self._width = kind, rows, width
        self.row_bytes = np.dtype(kind).itemsize * width
        self._map: mmap.mmap | None = None
        self._room = np.empty((0, width), kind)

    @property
    def mapped(self) -> NDArray[Any]:
        """[n, width]"""
        size = self._rows * self.row_bytes
        if self._map is None and size:
            self._map = mmap.mmap(self._fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        found = np.frombuffer(self._map if self._map is not None else b"", self._kind)
        return found.reshape(self._rows, self._width)

    def read(self, start: int, found: NDArray[Any]) -> None:
        """As many rows as find room in ``found``, contiguous, from this one on."""
        if not found.size:
            return
        left, at = found.reshape(-1).data.cast("B"), start * self.row_bytes
        while left:
            done = os.preadv(self._fd, [left], at)
            if not done:
                raise JobError("the memory of the parameter server is smaller than its rows")
            left, at = left[done:], at + done

    def room(self, count: int) -> NDArray[Any]:
        """For so many rows, until the next call."""
        if len(self._room) < count:
            self._room = np.empty((count, *self._room.shape[1:]), self._room.dtype)
        return self._room[:count]

    def unmap(self, rows: slice) -> None:
        """They are mapped again where they are read again."""
        first = rows.start * self.row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        size = rows.stop * self.row_bytes - first
        if size > 0 and self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED, first, size)


class Columns:
    """The rows in the snapshot."""

    def __init__(self, cut: GroupCut, files: GroupFiles) -> None:
        self._ids = _Column(files.ids, cut.used, np.uint64, 1)
        self._meta = _Column(files.meta, cut.used, np.uint32, META_WORDS)
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
        """For kernels."""
        from dlrover_lite.ps.cut_kernels import Source

        ids, meta, values, state = (column.mapped.reshape(-1) for column in (self._ids, self._meta, *self._wide))
        return Source(ids, meta, values, state, salts)

    def copy_range(self, start: int, into: RawRows) -> None:
        """Rows from this one on, as many as find room. Metadata comes last."""
        columns = (self._ids, *self._wide, self._meta)
        targets: tuple[NDArray[Any], ...] = (into.ids, into.values, into.state, into.meta)
        for column, target in zip(columns, targets, strict=True):
            _read(column, start, target)

    def copy(self, rows: NDArray[np.int64]) -> RawRows:
        """Some rows, rising."""
        if len(rows):
            self.has_read(int(rows[0]), int(rows[-1]) + 1, len(rows))
        ids, values, state, meta = (_take(column, rows) for column in (self._ids, *self._wide, self._meta))
        return RawRows(ids.reshape(-1), meta, values, state)

    def read_meta(self, rows: slice) -> NDArray[np.uint32]:
        """[n, 4], until the next call."""
        found = self._meta.room(rows.stop - rows.start)
        _read(self._meta, rows.start, found)
        return found

    def read_ids(self, rows: slice) -> NDArray[np.uint64]:
        """[n], until the next call."""
        found = self._ids.room(rows.stop - rows.start)
        _read(self._ids, rows.start, found)
        return found.reshape(-1)

    def changed(self, rows: slice | NDArray[np.int64]) -> NDArray[np.uint32]:
        """As it is now that whatever was read of these rows has been."""
        barrier()
        if isinstance(rows, slice):
            found = self._meta_again.room(rows.stop - rows.start)
            _read(self._meta_again, rows.start, found)
        else:
            found = _take(self._meta_again, rows)
        changed: NDArray[np.uint32] = found[:, CHANGED]
        return changed

    def has_read(self, start: int, stop: int, count: int) -> None:
        """So many rows in this range, where they are mapped."""
        self._mapped = slice(min(self._mapped.start, start), max(self._mapped.stop, stop))
        self._mapped_bytes += count * self._row_bytes

    def unmap(self) -> None:
        """Now and then."""
        if self._mapped_bytes >= _KEPT_BYTES:
            for column in (self._ids, self._meta, self._meta_again, *self._wide):
                column.unmap(self._mapped)
            self._mapped, self._mapped_bytes = slice(self._mapped.stop, 0), 0


def _read(column: _Column, start: int, found: NDArray[Any]) -> None:
    column.read(start, found)


def _take(column: _Column, rows: NDArray[np.int64]) -> NDArray[Any]:
    """[n, width]"""
    taken: NDArray[Any] = column.mapped[rows]
    return taken
