"""Compiles (or loads from the cache) every kernel of tables, and of snapshots of them."""

from __future__ import annotations

import numpy as np

from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.ps.snapshots import snapshot_kernels
from dlrover_lite.ps.tables.table import RowData, TableGroup
from dlrover_lite.recipe.schema import Optimizer

__all__ = ["compile_kernels"]

_RESERVE_BYTES = 1 << 18
_MANY = 1 << 12
"""Number of rows that are written all at once."""


def compile_kernels() -> None:
    """Call each operation once on a row: kernels are the same for all dims and optimizers."""
    every = np.ones(SLOTS, np.bool_)
    key, one = np.zeros(1, np.uint64), np.ones(1, np.int64)
    group = TableGroup([TableSpec("", 1, 0.0)], Optimizer(), seed=0, reserve_bytes=_RESERVE_BYTES)
    value = np.zeros((1, 1), np.float32)
    group.insert(key, one, value)
    group.track(every)
    group.update(key, one, value)
    group.untrack()
    group.gather(key, one)
    group.reserve(SLOTS)  # more than the index has room for: it grows
    data = group.scan(0, 1, state=True)[0]
    group.write(data)
    more = RowData._make(np.repeat(column, _MANY, axis=0) for column in data)
    group.write(more._replace(ids=np.arange(1, 1 + _MANY, dtype=np.uint64)))
    bounds = np.array([0, 0, 1 + _MANY], np.uint64)
    found = np.empty(1 + _MANY, np.uint32)
    group.sort_out(
        np.ones(SLOTS, np.uint16), 0, scan_limit=1 + _MANY, rows=found, ends=bounds[:2].copy(), limits=bounds[1:]
    )
    group.among(every, found.astype(np.uint64))
    group.drop(every, 0, scan_limit=1 + _MANY)
    group.compact(1)
    snapshot_kernels.compile_kernels()
