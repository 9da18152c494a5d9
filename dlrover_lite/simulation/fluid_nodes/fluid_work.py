"""What nodes of a job that trains as a fluid hold, in the terms of ``nodes.work``."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

from dlrover_lite.backends.sim.physics.memory import MemoryCosts
from dlrover_lite.backends.sim.physics.queues import Costs

__all__ = ["FluidWork"]


@dataclass(frozen=True)
class FluidWork:
    """Rows by the job's tables. CPU seconds are those of rates, and none of single minibatches."""

    costs: Costs
    memory: MemoryCosts

    @property
    def worker_bytes(self) -> int:
        return int(self.memory.worker(self.costs.depth))

    @property
    def server_bytes(self) -> int:
        return self.memory.server_bytes

    @cached_property
    def dim(self) -> int:
        """Values of an embedding: of all tables' on average, as many as make rows as large as theirs are."""
        tables = self.memory.tables
        rows = [table.rows(self._all_samples) for table in tables]
        return max(
            1, round(sum(table.dim * count for table, count in zip(tables, rows, strict=True)) / max(1.0, sum(rows)))
        )

    def minibatches(self, cores: float) -> int:
        return 1

    def worker_cpu_seconds(self, minibatches: int, chance: random.Random) -> float:
        return minibatches * self.costs.worker

    def server_cpu_seconds(self, minibatches: int, share: float) -> float:
        return minibatches * self.costs.ps * share

    def rows(self, minibatches: int) -> int:
        return int(self.memory.rows(minibatches * self.costs.batch_size))

    def row_bytes(self, rows: int) -> int:
        """Return the bytes of memory that rows take: of all tables' on average, as all have them alike."""
        return int(rows * self._bytes_of_row)

    @property
    def _all_samples(self) -> float:
        return self.memory.epoch_samples if self.memory.epoch_samples < float("inf") else 1e9

    @cached_property
    def _bytes_of_row(self) -> float:
        return self.memory.row_bytes(self._all_samples) / max(1.0, self.memory.rows(self._all_samples))
