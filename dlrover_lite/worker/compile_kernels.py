"""Compiles (or loads from the cache) the kernels of workers once, in the template: nodes forked from it needn't each."""

from __future__ import annotations

import numpy as np

from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.data.base import Schema
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.worker.parameters.embedding import EmbeddingLayout

__all__ = ["compile_kernels"]


def compile_kernels() -> None:
    """Send a minibatch of two samples through an embedding layout, with rows as they arrive from the wire: read-only."""
    layout = EmbeddingLayout([EmbeddingField("a", 1), EmbeddingField("b", 1)], Schema((), ("a", "b")))
    ids = np.zeros((2, 2), np.uint64)
    layout.keys(ids, np.arange(SLOTS, dtype=np.uint16) % 2, 2)
    groups = layout.keys(ids, np.zeros(SLOTS, np.uint16), 1)
    rows = np.frombuffer(bytes(4 * len(groups[0].keys)), np.float32).reshape(-1, 1)
    layout.collect(groups, layout.embed(groups, [rows], 2))
