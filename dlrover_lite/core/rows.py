"""Rows of embedding tables (and blocks of dense parameters) outside of parameter servers, whose own are records (``records``)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowData"]


class RowData(NamedTuple):
    """Copies of n rows of a group."""

    ids: NDArray[np.uint64]
    """[n]: ids of the rows."""
    tables: NDArray[np.uint16]
    """[n]: positions of their tables within the group."""
    counts: NDArray[np.uint32]
    """[n]: numbers of updates; 0 where none are counted."""
    values: NDArray[np.float32]
    """[n, dim]: values of the rows."""
    state: NDArray[np.float32]
    """[n, dim x parts]: state of the optimizer."""
