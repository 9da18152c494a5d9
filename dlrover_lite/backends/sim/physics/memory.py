"""What memory simulated nodes hold: rows of the ids that were seen by now, and out of memory when that passes a limit.

Ids are drawn at random, the one of rank k with a probability in proportion to k^-exponent (Zipf), as generated samples have them. How many
different ones have come up after n draws is then a sum over ids, and nothing is fitted: sum of 1 - (1 - p)^n. Ids of near ranks are taken
together, since a table has millions. Not simulated: what a snapshot holds beside the rows until it is written, and evicted rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.units import MIB

__all__ = ["MemoryCosts", "Table", "different_ids"]

Floats = NDArray[np.float64]

_SINGLE_RANKS = 256
"""First ranks that are counted each for itself; the others in bands, of which each is this much wider than the one before."""
_BAND_RATIO = 1.04
_ROW_HEAD_BYTES = 19.4
"""Bytes of a row beside values and optimizer state, its part of the index included (docs/figures.md, "On paper": 155.4 bytes for 136)."""
_SEARCH_STEPS, _FOREVER_SAMPLES = 50, 1e18
"""Halvings of an interval of samples, by its ratio; and more samples than any job trains on."""


@dataclass(frozen=True)
class Table:
    """Embedding tables that are alike."""

    ids: float
    """Number of ids that there are in each of them."""
    exponent: float = 1.2
    """Zipf exponent of their frequencies: 1.2 is that of generated samples; 0: all are as frequent."""
    dim: int = 16
    count: int = 1
    """Number of tables."""
    ids_per_sample: float = 1.0

    def rows(self, samples: float) -> float:
        """Return the mean number of rows of all these tables together after so many samples."""
        return self.count * different_ids(self.ids, self.exponent, samples * self.ids_per_sample)


@dataclass(frozen=True)
class MemoryCosts:
    """What a job's nodes hold."""

    tables: tuple[Table, ...]
    state_parts: int = 1
    """Floats of optimizer state for each value: 0 SGD, 1 Adagrad, 2 Adam and FTRL."""
    epoch_samples: float = math.inf
    """Samples of an epoch: the next one has the same ids."""
    server_bytes: int = 40 * MIB
    """Bytes of a server without rows: measured of a Wide&Deep's, what it shares with its template aside."""
    worker_bytes: int = 60 * MIB
    """Bytes of a worker beside its minibatches: 45 to 70 MiB were measured of a Wide&Deep's."""
    minibatch_bytes: int = 4 * MIB
    """Bytes of a minibatch in a worker: rows, gradients, what the module computes."""

    def rows(self, samples: float) -> float:
        """Return the mean number of rows of all servers after so many samples."""
        return sum(table.rows(min(samples, self.epoch_samples)) for table in self.tables)

    def row_bytes(self, samples: float) -> float:
        """Return the bytes of all rows after so many samples."""
        seen = min(samples, self.epoch_samples)
        return sum(table.rows(seen) * self._bytes_of_a_row(table) for table in self.tables)

    def server(self, samples: float, share: float) -> float:
        """Return the bytes of a server that has this share of all rows."""
        return self.server_bytes + share * self.row_bytes(samples)

    def worker(self, depth: int) -> float:
        """Return the bytes of a worker with so many minibatches under way, and one that is read."""
        return self.worker_bytes + (depth + 1.0) * self.minibatch_bytes

    def samples_within(self, limit: float, share: float) -> float:
        """Return after how many samples a server with this share of the rows has filled its limit; infinite if it never does, 0 if it has
        no room for its process alone."""
        if self.server(0.0, share) > limit:
            return 0.0
        least, most = 1.0, min(self.epoch_samples, _FOREVER_SAMPLES)
        if self.server(most, share) <= limit:
            return math.inf
        for _ in range(_SEARCH_STEPS):
            middle = math.sqrt(least * most)
            if self.server(middle, share) <= limit:
                least = middle
            else:
                most = middle
        return least

    def _bytes_of_a_row(self, table: Table) -> float:
        return _ROW_HEAD_BYTES + 4 * table.dim * (1 + self.state_parts)


def different_ids(ids: float, exponent: float, draws: float) -> float:
    """Return the mean number of different ids among so many that are drawn."""
    counts, logs = _bands(ids, exponent)
    return float(counts @ -np.expm1(draws * logs))


@cache
def _bands(ids: float, exponent: float) -> tuple[Floats, Floats]:
    """Return bands of ids that are about as frequent: how many there are in each, and the logarithm of the probability that a draw is not
    a given one of them."""
    single = min(_SINGLE_RANKS, int(ids))
    steps = max(0, math.ceil(math.log(ids / single) / math.log(_BAND_RATIO)))
    edges = single * (ids / single) ** (np.arange(steps + 1) / max(1, steps)) + 0.5
    ranks = np.arange(1, single + 1, dtype=np.float64)
    counts = np.concatenate([np.ones(single), np.diff(edges)])
    weights = np.concatenate([ranks**-exponent, _integral(edges, exponent)])
    each = np.minimum(weights / weights.sum() / counts, 1 - 1e-12)  # of one id
    return counts, np.log1p(-each)


def _integral(edges: Floats, exponent: float) -> Floats:
    """Integrate x^-exponent between these edges."""
    if abs(exponent - 1.0) < 1e-9:
        return np.diff(np.log(edges))
    return np.diff(edges ** (1.0 - exponent)) / (1.0 - exponent)
