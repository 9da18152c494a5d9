"""What the nodes of a simulated job compute, and what it costs them: the one thing that another physics puts in place of this."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from dlrover_lite.core.units import MIB

__all__ = ["SteadyWork", "Work"]


class Work(Protocol):
    """CPU seconds and bytes of a job's nodes, on a machine of speed 1."""

    @property
    def worker_bytes(self) -> int:
        """Bytes of memory of a worker."""

    @property
    def server_bytes(self) -> int:
        """Bytes of memory of a parameter server beside its rows."""

    @property
    def dim(self) -> int:
        """Values of an embedding."""

    def minibatches(self, cores: float) -> int:
        """Return how many minibatches a worker with so many cores computes before it pushes their gradients: 1 is exact."""

    def worker_cpu_seconds(self, minibatches: int, chance: random.Random) -> float:
        """Return the CPU seconds that minibatches take of a worker."""

    def server_cpu_seconds(self, minibatches: int, share: float) -> float:
        """Return the CPU seconds that their gradients take of a server with this share of the slots."""

    def rows(self, minibatches: int) -> int:
        """Return how many rows all servers have after so many minibatches."""

    def row_bytes(self, rows: int) -> int:
        """Return the bytes of memory that rows take."""


@dataclass(frozen=True)
class SteadyWork:
    """Minibatches that cost the same, a little more or less."""

    worker_seconds: float = 0.2
    """CPU seconds of a minibatch on a worker."""
    server_seconds: float = 0.04
    """CPU seconds of a minibatch on all parameter servers together."""
    push_seconds: float = 0.0
    """Seconds for which a worker computes before it pushes; 0: it pushes each minibatch."""
    variation: float = 0.1
    """Standard deviation of the logarithm of a worker's CPU seconds."""
    most_rows: float = 1e6
    """Number of different rows in the data."""
    old_share: float = 0.9997
    """Share of the rows not seen so far that a minibatch leaves so."""
    bytes_of_row: int = 64
    dim: int = 16
    worker_bytes: int = 60 * MIB
    server_bytes: int = 60 * MIB

    def minibatches(self, cores: float) -> int:
        return max(1, int(self.push_seconds * cores / self.worker_seconds))

    def worker_cpu_seconds(self, minibatches: int, chance: random.Random) -> float:
        return minibatches * self.worker_seconds * math.exp(self.variation * chance.gauss(0.0, 1.0))

    def server_cpu_seconds(self, minibatches: int, share: float) -> float:
        return minibatches * self.server_seconds * share

    def rows(self, minibatches: int) -> int:
        return int(self.most_rows * (1 - self.old_share**minibatches))

    def row_bytes(self, rows: int) -> int:
        return self.bytes_of_row * rows
