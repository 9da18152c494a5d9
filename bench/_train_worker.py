"""The worker of ``bench/train.py``: the product's own, but its data comes from memory, and it notes when each minibatch was read."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dlrover_lite.worker.main as product
from dlrover_lite.data.base import CRITEO_SCHEMA, Batch, Dataset, Schema
from dlrover_lite.data.open import open_data
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.recipe.id_kinds import FileIds

FEATURES, IDS, BATCH_SIZE = 26, 1_000_000, 1024
BATCHES = 64
TIMES = "reads.{node}.json"


class InMemory:
    """Cycles over batches made beforehand: reading data costs nothing."""

    schema: Schema = CRITEO_SCHEMA
    remote = False

    def __init__(self, samples: int, batches: list[Batch]) -> None:
        self.samples = samples
        self._batches = batches

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        return self._batches[int(numbers[0]) // BATCH_SIZE % len(self._batches)]

    def expect(self, ranges: Sequence[range]) -> None:
        pass

    def look_at_ids(self) -> list[FileIds]:
        return []

    def close(self) -> None:
        pass


class Timed:
    """A dataset that notes when it is read."""

    def __init__(self, dataset: Dataset) -> None:
        self.schema, self.samples, self.close = dataset.schema, dataset.samples, dataset.close
        self.look_at_ids, self.expect, self.remote = dataset.look_at_ids, dataset.expect, dataset.remote
        self.times: list[float] = []
        self._dataset = dataset

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        self.times.append(time.monotonic())
        return self._dataset.read(numbers)


def make_batches(path: Path) -> None:
    """Random minibatches with Zipf ids, made once for all workers and rounds."""
    from reference import wide_deep_batches

    batches = wide_deep_batches(BATCHES, batch_size=BATCH_SIZE, features=FEATURES, ids=IDS)
    np.savez(
        path,
        labels=np.stack([batch.labels.numpy() for batch in batches]),
        dense=np.stack([batch.dense.numpy() for batch in batches]),
        ids=np.stack([np.ascontiguousarray(batch.indices.numpy().T) for batch in batches]).astype(np.uint64),
    )


def load_batches(path: Path) -> list[Batch]:
    with np.load(path) as arrays:
        parts = [arrays[name] for name in ("labels", "dense", "ids")]
    return [Batch(labels, dense, ids, []) for labels, dense, ids in zip(*parts, strict=True)]


def main(spec: NodeSpec, job_directory: Path) -> int:
    opened: list[Timed] = []

    def opener(data: Any, *, directory: Path, part: Any) -> Dataset | None:
        found = open_data(data, directory=directory, part=part)
        if found is None:
            return None
        memory = directory / "batches.npz"
        timed = Timed(InMemory(found.samples, load_batches(memory)) if memory.exists() else found)
        opened.append(timed)
        return timed

    product.open_data = opener  # type: ignore[assignment,attr-defined]
    try:
        return product.main(spec, job_directory)
    finally:
        times = [at for timed in opened for at in timed.times]
        (job_directory / TIMES.format(node=spec.id)).write_text(json.dumps(times))
