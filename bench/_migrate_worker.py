"""The worker of ``bench/migrate.py``: the product's own. Its first minibatches touch each row of the tables once, so that they have the
size wanted; those that follow have Zipf ids. It notes when each minibatch was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import _train_worker
import numpy as np
from _train_worker import BATCH_SIZE, FEATURES
from numpy.typing import NDArray

from dlrover_lite.data.base import Batch
from dlrover_lite.protocol.nodes import NodeSpec

FILL = "fill.txt"
"""Holds the number of minibatches that fill the tables."""


class FillFirst(_train_worker.InMemory):
    """Minibatch k of the first ones holds ids k·B, k·B + 1, …, in every field."""

    fill = 0

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        k = int(numbers[0]) // BATCH_SIZE
        usual = super().read(numbers)
        if k >= self.fill:
            return usual
        ids = np.arange(k * BATCH_SIZE, (k + 1) * BATCH_SIZE, dtype=np.uint64)
        return Batch(usual.labels, usual.dense, np.tile(ids, (FEATURES, 1)), [])


def main(spec: NodeSpec, job_directory: Path) -> int:
    from dlrover_lite.jobs.store import Job

    def in_memory(samples: int, batches: list[Batch]) -> Any:
        dataset = FillFirst(samples, batches)
        dataset.fill = int((Path(Job(job_directory).recipe.directory) / FILL).read_text())
        return dataset

    _train_worker.InMemory = in_memory  # type: ignore[assignment,misc]
    return _train_worker.main(spec, job_directory)
