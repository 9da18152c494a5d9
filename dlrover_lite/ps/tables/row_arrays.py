"""A table group's rows as kernels take them, and arrays that are handed to kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.rows import RowData

__all__ = ["NUMBERS", "RowData", "Store", "as_input", "no_rows", "with_room"]

USED, FREE, LOG_LENGTH, EPOCH, TOUCHED, INDEXED = (np.uint64(number) for number in range(6))
"""Positions in a group's numbers (uint64) of: row numbers in use, free ones included; free row numbers; rows in the log; its epoch, which
each snapshot advances; row numbers that have memory; 1 if index and counts are those of the rows, 0 while they change. LOG_LENGTH means
nothing to the process that follows, nor does FREE unless INDEXED is 1."""
NUMBERS = 8
"""Number of words that a group's numbers take."""


class Store(NamedTuple):
    """A group's records and what its tables' rows are made from, as kernels take it."""

    records: NDArray[np.uint32]
    """uint32, flat: records one after another (see ``core.records``)."""
    floats: NDArray[np.float32]
    """The same memory as ``records``, as floats."""
    row_words: np.uint64
    values_at: np.uint64
    """Position in a record of the word that values begin with."""
    counted: np.uint64
    """1: records have a count of updates; 0: they have none."""
    dim: np.uint64
    salts: NDArray[np.uint64]
    init_salts: NDArray[np.uint64]
    scales: NDArray[np.float32]


U32, U64, I64, F32, BOOL = (np.dtype(kind) for kind in (np.uint32, np.uint64, np.int64, np.float32, np.bool_))


def as_input(array: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Make an array ready for a kernel to read: contiguous, aligned and read-only whatever it was, since kernels are compiled for each
    combination of these.

    Copies only what isn't contiguous, aligned and of this type.
    """
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and array.dtype == kind):
        array = np.require(array, kind, ("C", "A"))
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def no_rows() -> NDArray[np.uint64]:
    """Return an empty array of row numbers."""
    return np.empty(0, np.uint64)


def with_room(rows: NDArray[np.uint64], length: int, more: int) -> NDArray[np.uint64]:
    """Return ``rows``, of which ``length`` are used, with room for more behind: itself, or a copy that is larger by half at least."""
    if length + more <= len(rows):
        return rows
    larger = np.empty(max(length + more, length + length // 2), np.uint64)
    larger[:length] = rows[:length]
    return larger
