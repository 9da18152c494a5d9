"""Rows as they are stored, and as they travel between parameter servers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.rows import RowData

__all__ = ["META_WORDS", "RowData", "Store", "as_input"]

META_WORDS = 4
"""uint32 words of a row's metadata, by the numbers below."""
TABLE, COUNT, CHANGED, LOGGED = (np.uint64(word) for word in range(META_WORDS))
"""Position of the row's table + 1, or 0 if the row is free (as untouched memory is: so an arena alone tells which rows are live); count of
updates; the group's clock at the last change; the round in which it was last logged."""


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
