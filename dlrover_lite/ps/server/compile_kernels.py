"""Compiles (or loads from the cache) the kernels of parameter servers once, in the template: nodes forked from it needn't each."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.failpoints import armed
from dlrover_lite.protocol.messages import MoveOrder
from dlrover_lite.protocol.ps_messages import Configure, CopyNext, DenseSpec, TableSpec
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, to_bitmap
from dlrover_lite.ps.memory.state_memory import PrivateMemory
from dlrover_lite.ps.migration.cleanup import Cleanup
from dlrover_lite.ps.migration.migration import Incoming, Outgoing
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.tables.compile_kernels import compile_kernels as compile_table_kernels
from dlrover_lite.ps.tables.row_arrays import INDEXED
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.layout import BLOCK

__all__ = ["compile_kernels"]


@armed("")  # this is no training: nobody is to die here
def compile_kernels() -> None:
    """Have an engine answer what a worker asks for one minibatch of two keys, without a wire between them; then another engine takes up
    what this one has left, with its index and without, and all rows move to a third."""
    compile_table_kernels()
    memory = PrivateMemory() if sys.platform == "linux" else None
    engine = Engine(owned=ALL_SLOTS, memory=memory)
    number = _received(np.zeros(1, np.uint64))
    block = _received(np.zeros((1, BLOCK), np.float32))
    tables = [TableSpec("a", 1, 0.0), TableSpec("b", 1, 0.0)]
    engine.configure(Configure(0, tables, DenseSpec(1, 0), Optimizer(), Optimizer()), ALL_SLOTS, [(number, block)])
    keys, counts = _received(np.zeros(2, np.uint64)), [1, 1]
    engine.pull([(keys, counts), (number, [1])])
    pushed = _received(np.zeros((2, 1), np.float32))
    engine.push(0, 0, 1.0, ALL_SLOTS, [(keys, counts, pushed), (number, [1], block)])
    if memory is not None:
        with memory.hand_over() as left:
            engine = Engine(owned=ALL_SLOTS, memory=left)
            for g in range(len(engine.groups)):
                engine.state.numbers(g)[INDEXED] = 0  # the next one makes an index from rows
            with left.hand_over() as left_again:
                engine = Engine(owned=ALL_SLOTS, memory=left_again)
    engine.own(ALL_SLOTS)
    _move(engine, Engine())


def _move(source: Engine, target: Engine) -> None:
    outgoing = Outgoing(source, MoveOrder(0, "", "", "", to_bitmap(ALL_SLOTS)), 0)
    incoming = Incoming(target, 0, outgoing.began())
    number, ready = 0, None
    while ready is None:
        found = outgoing.next(CopyNext(0, number, -1, *incoming.convergence.asked), tidy=True)
        assert found is not None
        _, ready = incoming.take(found[0], [memoryview(bytes(frame)) for frame in found[1]])
        number += 1
    outgoing.end()
    source.own(0)
    tidying = Cleanup(source)
    tidying.remove(ALL_SLOTS)
    while not tidying.done:
        tidying.step(1 << 10)


def _received(array: NDArray[Any]) -> NDArray[Any]:
    """Make a read-only copy, as what arrives from the wire is read-only."""
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
