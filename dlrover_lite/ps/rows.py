"""Rows as they are stored, and as they travel between parameter servers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.rows import RowData

__all__ = ["META_WORDS", "NUMBERS", "RowData", "Store", "as_input", "empty_rows", "flat_inputs", "no_rows", "with_room"]

META_WORDS = 4
"""uint32 words of a row's metadata, by the numbers below."""
TABLE, COUNT, CHANGED, LOGGED = (np.uint64(word) for word in range(META_WORDS))
"""Position of the row's table + 1, or 0 if the row is free (as untouched memory is: so an arena alone tells which rows are live); count of
updates; the group's clock at the last change; the round in which it was last logged."""

USED, FREE, LOG_LENGTH, CLOCK, LOG_ROUND, TOUCHED = (np.uint64(number) for number in range(6))
"""Of a group's numbers (uint64): row numbers in use, free ones included; free row numbers; rows in the log; its clock, which each update
advances; rounds of logging so far; row numbers that have memory. Only FREE and LOG_LENGTH mean nothing to the process that follows."""
NUMBERS = 8
"""Words they take."""


class Store(NamedTuple):
    """A group's arenas and what its tables' rows are made from, as kernels take it. Arrays are flat."""

    ids: NDArray[np.uint64]
    meta: NDArray[np.uint32]
    values: NDArray[np.float32]
    state: NDArray[np.float32]
    dim: np.uint64
    parts: np.uint64
    """State floats per value."""
    salts: NDArray[np.uint64]
    init_salts: NDArray[np.uint64]
    scales: NDArray[np.float32]


U16, U32, U64, I64, F32, BOOL = (
    np.dtype(kind) for kind in (np.uint16, np.uint32, np.uint64, np.int64, np.float32, np.bool_)
)


def as_input(array: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """For a kernel to read: contiguous, aligned and read-only whatever it was, since kernels are compiled for each combination of these.

    Copies only what isn't contiguous, aligned and of this type.
    """
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and array.dtype == kind):
        array = np.require(array, kind, ("C", "A"))
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def empty_rows(n: int, dim: int, state_dim: int) -> RowData:
    """To be filled."""
    return RowData(
        np.empty(n, np.uint64),
        np.empty(n, np.uint16),
        np.empty(n, np.uint32),
        np.empty(n, np.uint32),
        np.empty((n, dim), np.float32),
        np.empty((n, state_dim), np.float32),
    )


def flat_inputs(data: RowData) -> tuple[NDArray[Any], ...]:
    """Its arrays for a kernel to read, flat."""
    return (
        as_input(data.ids, U64),
        as_input(data.tables, U16),
        as_input(data.counts, U32),
        as_input(data.ages, U32),
        as_input(data.values, F32).reshape(-1),
        as_input(data.state, F32).reshape(-1),
    )


def no_rows() -> NDArray[np.uint64]:
    """No row numbers."""
    return np.empty(0, np.uint64)


def with_room(rows: NDArray[np.uint64], length: int, more: int) -> NDArray[np.uint64]:
    """``rows``, of which ``length`` are used, with room for more behind: itself, or a copy that is larger by half at least."""
    if length + more <= len(rows):
        return rows
    larger = np.empty(max(length + more, length + length // 2), np.uint64)
    larger[:length] = rows[:length]
    return larger
