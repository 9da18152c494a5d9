"""Ids of minibatches over all rows of tables of any size, drawn in a fraction of the time of a step: uniform, or Zipf."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["KINDS", "TABLES", "Zipf", "draw_of"]

TABLES = 26
EXPONENT = 1.2
_HEAD = 4096
"""Most frequent ranks that are drawn by their exact chances."""
_GOLDEN = 0.6180339887

Ids = NDArray[np.uint64]
Draw = Callable[[np.random.Generator, int], Ids]
"""The ids [tables, count] of a minibatch."""


class Zipf:
    """Ranks drawn in proportion to rank ** -1.2, and scattered over the rows, in each table elsewhere.

    The ranks behind the first ones are drawn by the integral of the density, half a rank to both sides: a look-up in the sums of all
    chances would miss the cache for every id.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        head = min(rows, _HEAD)
        self._sums = np.cumsum(np.arange(1, head + 1, dtype=np.float64) ** -EXPONENT)
        self._power = 1 - EXPONENT
        self._first = (head + 0.5) ** self._power
        self._total = self._sums[-1] + ((rows + 0.5) ** self._power - self._first) / self._power
        self._step = max(1, int(_GOLDEN * rows))
        while math.gcd(self._step, rows) != 1:
            self._step += 1

    def ranks(self, random: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.int64]:
        """Draw ranks; the most frequent one is 0."""
        at = random.random(shape) * self._total
        found: NDArray[np.int64] = np.searchsorted(self._sums, at, side="right")
        behind = found >= len(self._sums)
        beyond = at[behind] - self._sums[-1]
        ranks = (self._first + self._power * beyond) ** (1 / self._power)
        found[behind] = np.clip(np.rint(ranks).astype(np.int64) - 1, len(self._sums), self.rows - 1)
        return found

    def scattered(self, ranks: NDArray[np.int64]) -> Ids:
        """Give each rank [tables, count] a row of its own."""
        shifts = np.arange(len(ranks), dtype=np.int64)[:, None] * (self.rows // TABLES)
        return ((ranks * self._step + shifts) % self.rows).astype(np.uint64)

    def __call__(self, random: np.random.Generator, count: int) -> Ids:
        return self.scattered(self.ranks(random, (TABLES, count)))


def _uniform(rows: int) -> Draw:
    def draw(random: np.random.Generator, count: int) -> Ids:
        return random.integers(0, rows, (TABLES, count), dtype=np.uint64)

    return draw


KINDS: dict[str, Callable[[int], Draw]] = {"uniform": _uniform, "zipf": Zipf}


def draw_of(kind: str, rows: int) -> Draw:
    """How ids of this kind are drawn from tables of ``rows`` rows each."""
    return KINDS[kind](rows)
