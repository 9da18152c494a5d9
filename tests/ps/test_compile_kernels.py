"""What is compiled before nodes are forked is all that they need."""

from __future__ import annotations

import numpy as np

from dlrover_lite.core.rows import RowData
from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.ps.snapshots import snapshot_kernels
from dlrover_lite.ps.tables import bucket_index, move_kernels, slot_counters, table_kernels
from dlrover_lite.ps.tables.compile_kernels import compile_kernels
from dlrover_lite.ps.tables.table import TableGroup
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables import dedupe, optimizers
from tests.ps.models import read

MODULES = (bucket_index, snapshot_kernels, dedupe, move_kernels, optimizers, slot_counters, table_kernels)


def compiled() -> dict[str, int]:
    """Versions of each kernel, by name."""
    kernels = {
        f"{module.__name__}.{name}": value
        for module in MODULES
        for name, value in vars(module).items()
        if hasattr(value, "signatures")
    }
    assert len(kernels) > 10
    return {name: len(value.signatures) for name, value in kernels.items()}


def from_wire(array: np.ndarray, at: int = 0) -> np.ndarray:
    """Read-only, and where ``at`` isn't 0, not aligned."""
    return np.frombuffer(bytes(at) + array.tobytes(), array.dtype, offset=at).reshape(array.shape)


def test_no_kernel_is_compiled_after_the_warm_up() -> None:
    compile_kernels()
    before = compiled()
    every = np.ones(SLOTS, np.bool_)
    counts = np.array([2, 1], np.int64)
    ids, values = np.arange(3, dtype=np.uint64), np.ones((3, 5), np.float32)
    for use in ("sgd", "adagrad", "adam", "ftrl"):
        group = TableGroup(
            [TableSpec("a", 5, 0.1), TableSpec("b", 5, 0.1)], Optimizer(use=use), seed=1, reserve_bytes=1 << 20
        )  # type: ignore[arg-type]
        group.insert(from_wire(ids + np.uint64(10)), from_wire(counts), from_wire(values))
        for at in (0, 1):
            keys, grads = from_wire(ids, at), from_wire(values, at)
            group.set_owned(from_wire(every))
            group.update(keys, counts, grads)
            group.gather(keys, from_wire(counts))
            group.write(RowData(*(from_wire(array, at) for array in group.scan(0, 9, state=True)[0])))
            group.scan(0, 9)
        group.track(every)
        group.update(ids, counts, values[:, ::-1])
        read(group, group.take_log())
        group.untrack()
        group.drop(every, 0, scan_limit=4)
        group.reserve(9000)
        while not group.compact(1):
            pass
    assert compiled() == before
