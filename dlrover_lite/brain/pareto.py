"""The exact Pareto front of (cost, throughput) over a lattice: the plans that none cheaper or as cheap is as fast as.

All points are looked at. Costs are whole numbers, so each point falls into a bucket of its cost, which keeps the fastest; one sweep over
the buckets then gives the front. Sorting half a million points instead takes thirty times as long.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.brain.lattice import MILLI, Candidate, FloatArray, IntArray, Lattice, MemoryNeed, to_milli
from dlrover_lite.kernels import kernel

__all__ = ["Band", "Parts", "Points", "SeparableModel", "ThroughputModel", "exact_front", "fastest", "points_of"]

_BLOCK = 12_000
"""Values of an array that are computed at once: larger arrays leave the cache, and are given back to the system and got anew each time."""

Parts = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
"""(w, p, worker cores, PS cores) of points."""


class ThroughputModel(Protocol):
    """Predicts throughput. Arguments are arrays that can be spread over each other (numpy broadcasting)."""

    def predict(
        self, w: FloatArray, p: FloatArray, worker_cores: FloatArray, ps_cores: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(expected, lower, upper) in samples/s; the band holds 80%."""
        ...


@runtime_checkable
class SeparableModel(ThroughputModel, Protocol):
    """One whose ranking of plans is a sum of two sides: half a million points then cost one addition each."""

    def slowness(
        self, w: FloatArray, p: FloatArray, worker_cores: FloatArray, ps_cores: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Two terms: the smaller their sum, the faster. The first doesn't depend on ``ps_cores``, the second neither on ``w`` nor on
        ``worker_cores``; so they spread over fewer axes than the arguments do."""
        ...


class Band(NamedTuple):
    """Samples/s; ``lower`` to ``upper`` holds 80%."""

    expected: float
    lower: float
    upper: float


class Points(NamedTuple):
    """Plans with their predictions, by rising cost (of the same cost: the faster first)."""

    workers: IntArray
    servers: IntArray
    worker_cores: FloatArray
    ps_cores: FloatArray
    milli: IntArray
    """Cost in thousandths of a core."""
    throughput: FloatArray
    lower: FloatArray
    upper: FloatArray
    on_front: NDArray[np.bool_]
    """Faster than every cheaper one of these."""

    def candidate(self, at: int) -> Candidate:
        return Candidate(
            int(self.workers[at]), int(self.servers[at]), float(self.worker_cores[at]), float(self.ps_cores[at])
        )

    def band(self, at: int) -> Band:
        return Band(float(self.throughput[at]), float(self.lower[at]), float(self.upper[at]))

    def find(self, candidate: Candidate) -> int:
        """Its position. Raises ValueError if it isn't there."""
        same = (
            (self.workers == candidate.workers)
            & (self.servers == candidate.servers)
            & (self.worker_cores == candidate.worker_cores)
            & (self.ps_cores == candidate.ps_cores)
        )
        if not len(found := same.nonzero()[0]):
            raise ValueError(f"{candidate.describe()} is none of these plans")
        return int(found[0])

    def memory(self, need: MemoryNeed) -> IntArray:
        """Bytes of each."""
        return self.workers * need.worker + self.servers * (need.ps + -(-need.tables // self.servers))


@kernel
def _fastest_by_sides(first, second, fits, worker_units, ps_units, from_p, most, best, where):  # type: ignore[no-untyped-def]
    """For numbers of PS at ``from_p`` and after: ``first`` (P, N), where ``fits`` (P, N), and ``second`` (P, S). Lowers ``best``, the
    smallest sum of each cost, and keeps in ``where`` the flat index that has it."""
    servers, sides = first.shape
    sizes = second.shape[1]
    for p in range(servers):
        lowest = np.inf
        for n in range(sides):
            one = first[p, n]
            if not (one < lowest and fits[p, n]):
                continue  # a cheaper worker side is as fast beside every PS
            lowest = one
            for s in range(sizes):
                cost = worker_units[n] + ps_units[p, s]
                if cost > most:
                    break
                total = one + second[p, s]
                if total < best[cost]:
                    best[cost] = total
                    where[cost] = ((from_p + p) * sides + n) * sizes + s


@kernel
def _fastest_by_points(rates, fits, worker_units, ps_units, from_p, most, best, where):  # type: ignore[no-untyped-def]
    """As above, of throughputs (P, N, S); ``best`` holds them negated."""
    servers, sides, sizes = rates.shape
    for p in range(servers):
        for n in range(sides):
            if not fits[p, n]:
                continue
            for s in range(sizes):
                cost = worker_units[n] + ps_units[p, s]
                if cost > most:
                    break
                if -rates[p, n, s] < best[cost]:
                    best[cost] = -rates[p, n, s]
                    where[cost] = ((from_p + p) * sides + n) * sizes + s


def fastest(lattice: Lattice, model: ThroughputModel, *, most_cores: float, fits: NDArray[np.bool_]) -> IntArray:
    """The front of all points of at most ``most_cores`` that are ``Lattice.fitting``, as indices that ``Lattice.parts`` takes.

    Of points with the same cost and throughput, the one with fewer PS is taken, then the one with the cheaper workers.
    """
    most = min(lattice.most_units, to_milli(most_cores) // lattice.unit_milli)
    if most < 0:
        return np.empty(0, np.int64)
    best = np.full(most + 1, np.inf)
    where = np.zeros(most + 1, np.int64)
    slowness = getattr(model, "slowness", None)  # of a SeparableModel; asking isinstance takes 0.1 ms
    servers, sides, sizes = lattice.shape
    w, every_p, worker_cores, ps_cores = lattice.grid
    rows = max(1, _BLOCK // (sides if slowness else sides * sizes))
    for start in range(0, servers, rows):
        part = slice(start, start + rows)
        grid = (w, p := every_p[part], worker_cores, ps_cores)
        rest = (fits[part], lattice.worker_units, lattice.ps_units[part], start, most, best, where)
        if slowness is not None:
            one, two = slowness(*grid)
            first = np.broadcast_to(one, (len(p), sides, 1))[:, :, 0]
            second = np.broadcast_to(two, (len(p), 1, sizes))[:, 0, :]
            _fastest_by_sides(np.ascontiguousarray(first), np.ascontiguousarray(second), *rest)
        else:
            rates = np.broadcast_to(model.predict(*grid)[0], (len(p), sides, sizes))
            _fastest_by_points(np.ascontiguousarray(rates), *rest)
    ahead = np.empty(most + 1, np.bool_)
    ahead[0] = best[0] < np.inf
    ahead[1:] = best[1:] < np.minimum.accumulate(best)[:-1]
    return where[ahead]


def points_of(model: ThroughputModel, parts: Parts) -> Points:
    """Any points (at least one), predicted and put in order."""
    w, p, worker_cores, ps_cores = parts
    predicted = [np.broadcast_to(x, w.shape) for x in model.predict(*parts)]
    workers, servers = w.astype(np.int64), p.astype(np.int64)
    worker_milli, ps_milli = ((x * MILLI + 0.5).astype(np.int64) for x in (worker_cores, ps_cores))
    milli = workers * worker_milli + servers * ps_milli
    order = np.lexsort((-predicted[0], milli))
    expected, lower, upper = (x[order] for x in predicted)
    on_front = np.ones(len(order), np.bool_)
    on_front[1:] = expected[1:] > np.maximum.accumulate(expected)[:-1]
    plans = (workers[order], servers[order], worker_cores[order], ps_cores[order])
    return Points(*plans, milli[order], expected, lower, upper, on_front)


def exact_front(
    lattice: Lattice,
    model: ThroughputModel,
    *,
    most_cores: float,
    need: MemoryNeed | None = None,
    most_bytes: int | None = None,
) -> Points | None:
    """The points of ``fastest`` with at most ``most_bytes``, with their predictions; None if there are none."""
    flat = fastest(lattice, model, most_cores=most_cores, fits=lattice.fitting(need or MemoryNeed(), most_bytes))
    return points_of(model, lattice.parts(flat)) if len(flat) else None
