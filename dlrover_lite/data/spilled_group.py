"""A row group of a Parquet file that is too large to be held decoded: its rows go to a file without a name, piece by piece, and are read
back from there in whatever order samples are shuffled in. Memory holds one piece and what the decoder needs for one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.units import format_bytes
from dlrover_lite.data.base import Schema
from dlrover_lite.data.files import is_disk_full, scratch_directory, unnamed_file
from dlrover_lite.data.text import Columns, new_columns

__all__ = ["PIECE_ROWS", "SpilledGroup"]

PIECE_ROWS = 32_768
"""Number of rows in a piece: as many as in the blocks of samples that are shuffled (``data.order``), so that a block lies in two pieces at
most."""


class SpilledGroup:
    """``parts`` are the rows of a group in order, decoded, in parts of any size; they are asked for as far as rows are wanted."""

    def __init__(self, name: str, rows: int, schema: Schema, parts: Iterator[Columns]) -> None:
        self._name, self._rows, self._schema = name, rows, schema
        self._parts: Iterator[Columns] | None = parts
        self._rest = new_columns(schema, 0)
        self._piece_bytes = sum(array.nbytes for array in new_columns(schema, min(rows, PIECE_ROWS)))
        self._directory = scratch_directory()
        self._file = unnamed_file(self._directory)
        self._written = 0

    @property
    def bytes(self) -> int:
        """Return the bytes on the disk that all of the group takes."""
        return self._piece_bytes * -(-self._rows // PIECE_ROWS)

    def piece(self, number: int) -> Columns:
        """Return rows [number * PIECE_ROWS, …) of the group. Raises DataError, also when there are fewer rows than there should be."""
        while self._written <= number:
            self._write(self._next())
        columns = new_columns(self._schema, self._size(number))
        offset = number * self._piece_bytes
        for array in columns:
            offset += self._read(_bytes_of(array), offset)
        return columns

    def _read(self, view: memoryview, offset: int) -> int:
        """Return how much it has read: all of it."""
        done = 0
        while done < len(view):
            got = os.preadv(self._file.fileno(), [view[done:]], offset + done)
            if not got:
                raise DataError(f"rows of {self._name} can't be read back from {self._directory}")
            done += got
        return done

    @property
    def finished(self) -> bool:
        """Return whether all rows are decoded."""
        return self._parts is None

    def finish(self) -> None:
        """Decode what is left, so that the decoder's memory is free."""
        while self._parts is not None:
            self._write(self._next())

    def close(self) -> None:
        self._parts = None
        self._file.close()

    def _size(self, number: int) -> int:
        return min(PIECE_ROWS, self._rows - number * PIECE_ROWS)

    def _next(self) -> Columns:
        """Return the piece that follows those written."""
        assert self._parts is not None
        wanted = self._size(self._written)
        found, count = [self._rest], len(self._rest.labels)
        while count < wanted and (part := next(self._parts, None)) is not None:
            found.append(part)
            count += len(part.labels)
        if count < wanted:
            raise DataError(f"{self._name} was changed while it was being read", hint="Start the job again.")
        columns = _joined(found)
        if self._size(self._written + 1) <= 0 and (count > wanted or next(self._parts, None) is not None):
            raise DataError(f"{self._name} was changed while it was being read", hint="Start the job again.")
        self._rest = _cut(columns, wanted, count)
        return _cut(columns, 0, wanted)

    def _write(self, piece: Columns) -> None:
        offset = self._written * self._piece_bytes
        try:
            for array in piece:
                data = _bytes_of(array)
                while data:
                    written = os.pwrite(self._file.fileno(), data, offset)
                    data, offset = data[written:], offset + written
        except OSError as error:
            why = "the disk is full" if is_disk_full(error) else error.strerror
            raise DataError(
                f"{self._name} is too large to be held in memory, and its rows can't be kept in {self._directory}: {why}",
                hint=f"Make {format_bytes(self.bytes)} of room there, or write the file with row_group_size={PIECE_ROWS}.",
            ) from error
        if hasattr(os, "posix_fadvise"):  # the disk begins with it now, and its pages count against no limit for long
            os.posix_fadvise(self._file.fileno(), 0, offset, os.POSIX_FADV_DONTNEED)
        self._written += 1
        if self._written * PIECE_ROWS >= self._rows:
            self._parts = None
            self._rest = new_columns(self._schema, 0)


def _joined(parts: list[Columns]) -> Columns:
    return Columns(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.dense for part in parts]),
        np.concatenate([part.ids for part in parts], axis=1),
        np.concatenate([part.codes for part in parts]),
    )


def _cut(columns: Columns, start: int, stop: int) -> Columns:
    """Return a copy of these rows."""
    return Columns(
        columns.labels[start:stop].copy(),
        columns.dense[start:stop].copy(),
        columns.ids[:, start:stop].copy(),
        columns.codes[start:stop].copy(),
    )


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """Return the memory of a contiguous array."""
    return memoryview(array.reshape(-1).view(np.uint8).data)
