"""Rows as they are stored, and as they travel between parameter servers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["META_WORDS", "NUMBERS", "RowData", "Store", "as_input"]

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


class RowData(NamedTuple):
    """Copies of n rows of a group, in the order of its wire frames. ``ages``: pushes since the last change."""

    ids: NDArray[np.uint64]
    """[n]"""
    tables: NDArray[np.uint16]
    """[n]: positions of their tables within the group."""
    counts: NDArray[np.uint32]
    """[n]: of updates."""
    ages: NDArray[np.uint32]
    """[n]"""
    values: NDArray[np.float32]
    """[n, dim]"""
    state: NDArray[np.float32]
    """[n, dim x parts]: of the optimizer."""


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


def as_input(array: NDArray[Any], kind: Any) -> NDArray[Any]:
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
