"""The worker of ``bench/size.py``: the product's own, with data from memory, and it notes when each minibatch was read.

A file says how many rows each table is to have. While there are fewer, minibatches hold ids that haven't been there before; from then
on, ids drawn over all rows there are. Each minibatch has other ids; labels and dense features are those of a few, in turns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _train_worker
import numpy as np
from _size_ids import TABLES, draw_of
from _train_worker import BATCH_SIZE, TIMES, Timed
from numpy.typing import NDArray

import dlrover_lite.worker.main as product
from dlrover_lite.data.base import Batch, Dataset, Schema
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.recipe.id_kinds import FileIds

__all__ = ["main", "write_wish"]

WISH = "rows.json"
_FEW = 16


def write_wish(directory: Path, rows: int, kind: str) -> None:
    """Have the tables grow to so many rows each (a multiple of the batch size); the kind of the ids that are drawn over them."""
    part = directory / f"{WISH}.part"
    part.write_text(json.dumps({"rows": rows, "kind": kind}))
    part.replace(directory / WISH)


class Growing:
    """A dataset whose ids are those of tables that grow as the file says."""

    schema: Schema = _train_worker.InMemory.schema
    remote = False

    def __init__(self, samples: int, wish: Path) -> None:
        self.samples = samples
        self._wish = wish
        self._text = ""
        self._rows = self._filled = 0
        self._kind = ""
        random = np.random.default_rng(0)
        self._dense = random.normal(size=(_FEW, BATCH_SIZE, len(self.schema.dense))).astype(np.float32)
        self._labels = (random.random((_FEW, BATCH_SIZE)) < 0.25).astype(np.float32)

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        k = int(numbers[0]) // BATCH_SIZE
        self._look()
        if self._filled < self._rows:
            fresh = np.arange(self._filled, self._filled + BATCH_SIZE, dtype=np.uint64)
            ids = np.tile(fresh, (TABLES, 1))
            self._filled += BATCH_SIZE
            self._draw = draw_of(self._kind, self._filled) if self._filled >= self._rows else None
        else:
            assert self._draw is not None
            ids = self._draw(np.random.default_rng(k), BATCH_SIZE)
        return Batch(self._labels[k % _FEW], self._dense[k % _FEW], ids, [])

    def _look(self) -> None:
        text = self._wish.read_text()
        if text != self._text:
            self._text, wish = text, json.loads(text)
            self._rows, self._kind = wish["rows"], wish["kind"]

    def expect(self, ranges: Sequence[range]) -> None:
        pass

    def look_at_ids(self) -> list[FileIds]:
        return []

    def close(self) -> None:
        pass


def main(spec: NodeSpec, job_directory: Path) -> int:
    opened: list[Timed] = []

    def opener(data: Any, *, directory: Path, part: Any) -> Dataset | None:
        if part != "train":
            return None
        opened.append(Timed(Growing(data.samples, directory / WISH)))
        return opened[-1]

    product.open_data = opener  # type: ignore[assignment,attr-defined]
    try:
        return product.main(spec, job_directory)
    finally:
        times = [at for timed in opened for at in timed.times]
        (job_directory / TIMES.format(node=spec.id)).write_text(json.dumps(times))
