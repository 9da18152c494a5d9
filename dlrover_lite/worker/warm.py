"""Compiles (or loads from the cache) the kernels of training once, in the template, so that the nodes forked from it needn't each."""

from __future__ import annotations

import numpy as np

from dlrover_lite.data.base import Schema
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.ps.engine import Engine
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.wire.messages import Configure, DenseSpec
from dlrover_lite.worker.embedding import EmbeddingLayout

__all__ = ["compile_kernels"]


def compile_kernels() -> None:
    """One minibatch of two samples through a parameter server's engine and a worker's embedding layout, without a wire between them."""
    schema = Schema((), ("a", "b"))
    layout = EmbeddingLayout([EmbeddingField("a", 1), EmbeddingField("b", 1)], schema)
    ids = np.zeros((2, 2), np.uint64)
    layout.keys(ids, np.arange(4096, dtype=np.uint16) % 2, 2)
    groups = layout.keys(ids, np.zeros(4096, np.uint16), 1)
    engine = Engine()
    dense = np.frombuffer(bytes(4), np.float32)  # read-only, as what arrives from the wire
    engine.configure(Configure(0, layout.tables, DenseSpec(1, 1), Optimizer(), Optimizer()), dense)
    keys, counts = np.frombuffer(groups[0].keys.tobytes(), np.uint64), groups[0].counts[0].tolist()
    rows = np.frombuffer(engine.pull_rows(0, keys, counts).tobytes(), np.float32).reshape(-1, 1)
    embedded = layout.embed(groups, [rows], 2)
    gradient = layout.collect(groups, embedded)[0]
    pushed = np.frombuffer(gradient.tobytes(), np.float32).reshape(-1, 1)
    engine.push(0, 0, 1.0, dense, [(keys, counts, pushed)])
