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

    @cached_property
    def _bytes_of_row(self) -> float:
        seen = self.memory.epoch_samples if self.memory.epoch_samples < float("inf") else 1e9
        return self.memory.row_bytes(seen) / max(1.0, self.memory.rows(seen))
