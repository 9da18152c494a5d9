"""Compiles (or loads from the cache) the kernels of training once, in the template, so that the nodes forked from it needn't each."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.failpoints import armed
from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.data.base import Schema
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.protocol.messages import MoveOrder
from dlrover_lite.protocol.ps_messages import Configure, CopyNext, DenseSpec
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, to_bitmap
from dlrover_lite.ps.memory.state_memory import PrivateMemory
from dlrover_lite.ps.migration.cleanup import Cleanup
from dlrover_lite.ps.migration.migration import Incoming, Outgoing
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.tables.compile_kernels import compile_kernels as compile_table_kernels
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.layout import BLOCK
from dlrover_lite.worker.parameters.embedding import EmbeddingLayout

__all__ = ["compile_kernels"]


@armed("")  # this is no training: nobody is to die here
def compile_kernels() -> None:
    """Send one minibatch of two samples through a parameter server's engine and a worker's embedding layout, without a wire between them;
    then another engine takes up what this one has left, and all rows move to a third."""
    compile_table_kernels()
    schema = Schema((), ("a", "b"))
    layout = EmbeddingLayout([EmbeddingField("a", 1), EmbeddingField("b", 1)], schema)
    ids = np.zeros((2, 2), np.uint64)
    layout.keys(ids, np.arange(SLOTS, dtype=np.uint16) % 2, 2)
    groups = layout.keys(ids, np.zeros(SLOTS, np.uint16), 1)
    memory = PrivateMemory() if sys.platform == "linux" else None
    engine = Engine(owned=ALL_SLOTS, memory=memory)
    number = _received(np.zeros(1, np.uint64))
    block = _received(np.zeros((1, BLOCK), np.float32))
    configuration = Configure(0, layout.tables, DenseSpec(1, 0), Optimizer(), Optimizer())
    engine.configure(configuration, ALL_SLOTS, [(number, block)])
    keys, counts = _received(groups[0].keys), groups[0].counts[0].tolist()
    rows = _received(engine.pull([(keys, counts), (number, [1])])[0])
    embedded = layout.embed(groups, [rows], 2)
    pushed = _received(layout.collect(groups, embedded)[0])
    engine.push(0, 0, 1.0, ALL_SLOTS, [(keys, counts, pushed), (number, [1], block)])
    if memory is not None:
        with memory.hand_over() as left:
            engine = Engine(owned=ALL_SLOTS, memory=left)
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
