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

__all__ = [
    "Band",
    "Parts",
    "Points",
    "SeparableModel",
    "Sides",
    "ThroughputModel",
    "exact_front",
    "fastest",
    "points_of",
]

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


class Sides(NamedTuple):
    """How slow plans are, as a sum: of w workers of size a and p PS of size s it is

        of_worker[p, a] * w ** -power + fixed[p] + of_ps[p, s]

    The smaller, the faster."""

    of_worker: FloatArray
    fixed: FloatArray
    of_ps: FloatArray
    power: float


@runtime_checkable
class SeparableModel(ThroughputModel, Protocol):
    """One whose ranking of plans is a sum of two sides: half a million points then cost a few thousand computations."""

    def sides(self, servers: FloatArray, worker_sizes: FloatArray, ps_sizes: FloatArray) -> Sides:
        """For these numbers of PS [P] and sizes [A] and [S], in cores."""
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

    def are(self, candidate: Candidate) -> NDArray[np.bool_]:
        """Which of these it is."""
        return np.asarray(
            (self.workers == candidate.workers)
            & (self.servers == candidate.servers)
            & (self.worker_cores == candidate.worker_cores)
            & (self.ps_cores == candidate.ps_cores)
        )

    def find(self, candidate: Candidate) -> int:
        """Its position. Raises ValueError if it isn't there."""
        if not len(found := self.are(candidate).nonzero()[0]):
            raise ValueError(f"{candidate.describe()} is none of these plans")
        return int(found[0])

    def memory(self, need: MemoryNeed) -> IntArray:
        """Bytes of each."""
        return self.workers * need.worker + self.servers * (need.ps + -(-need.tables // self.servers))


@kernel
def _fastest_by_sides(  # type: ignore[no-untyped-def]
    of_worker, fixed, of_ps, shrink, workers, size_of_side, fitting, worker_units, ps_units, most, best, where
):
    """``Sides`` with ``shrink`` [N] what the number of workers makes of ``of_worker``. Lowers ``best``, the smallest sum of each cost, and
    keeps in ``where`` the flat index that has it.

    What is slower than something cheaper of the same side is so beside every other side, and isn't looked at.
    """
    sides, sizes = len(workers), of_ps.shape[1]
    useful = np.empty(sizes, np.int64)
    for p in range(len(fixed)):
        count, lowest = 0, np.inf
        for s in range(sizes):
            if of_ps[p, s] < lowest:
                lowest = of_ps[p, s]
                useful[count] = s
                count += 1
        lowest = np.inf
        for n in range(sides):
            one = of_worker[p, size_of_side[n]] * shrink[n] + fixed[p]
            if not (one < lowest and workers[n] <= fitting[p]):
                continue
            lowest = one
            for at in range(count):
                s = useful[at]
                cost = worker_units[n] + ps_units[p, s]
                if cost > most:
                    break
                total = one + of_ps[p, s]
                if total < best[cost]:
                    best[cost] = total
                    where[cost] = (p * sides + n) * sizes + s


@kernel
def _fastest_by_points(rates, workers, fitting, worker_units, ps_units, from_p, most, best, where):  # type: ignore[no-untyped-def]
    """As above, of throughputs (P, N, S) of the numbers of PS at ``from_p`` and after; ``best`` holds them negated."""
    servers, sides, sizes = rates.shape
    for p in range(servers):
        for n in range(sides):
            if workers[n] > fitting[p]:
                continue
            for s in range(sizes):
                cost = worker_units[n] + ps_units[p, s]
                if cost > most:
                    break
                if -rates[p, n, s] < best[cost]:
                    best[cost] = -rates[p, n, s]
                    where[cost] = ((from_p + p) * sides + n) * sizes + s


def fastest(lattice: Lattice, model: ThroughputModel, *, most_cores: float, fitting: IntArray) -> IntArray:
    """The front of all points of at most ``most_cores`` that are ``Lattice.fitting``, as indices that ``Lattice.parts`` takes.

    Of points with the same cost and throughput, the one with fewer PS is taken, then the one with the cheaper workers.
    """
    most = min(lattice.most_units, to_milli(most_cores) // lattice.unit_milli)
    if most < 0:
        return np.empty(0, np.int64)
    best = np.full(most + 1, np.inf)
    where = np.zeros(most + 1, np.int64)
    if (find_sides := getattr(model, "sides", None)) is not None:  # asking isinstance takes 0.1 ms
        sides: Sides = find_sides(lattice.servers.astype(np.float64), lattice.worker_sizes, lattice.ps_cores)
        bounds = lattice.bounds
        counts = np.arange(bounds.min_workers, bounds.max_workers + 1) ** -float(sides.power)
        _fastest_by_sides(
            sides.of_worker, sides.fixed, sides.of_ps, counts[lattice.workers - bounds.min_workers], lattice.workers,
            lattice.size_of_side, fitting, lattice.worker_units, lattice.ps_units, most, best, where,
        )  # fmt: skip
    else:
        _look_at_all(lattice, model, fitting, most, best, where)
    ahead = np.empty(most + 1, np.bool_)
    ahead[0] = best[0] < np.inf
    ahead[1:] = best[1:] < np.minimum.accumulate(best)[:-1]
    return where[ahead]


def _look_at_all(
    lattice: Lattice, model: ThroughputModel, fitting: IntArray, most: int, best: FloatArray, where: IntArray
) -> None:
    servers, sides, sizes = lattice.shape
    w, every_p, worker_cores, ps_cores = lattice.grid
    rows = max(1, _BLOCK // (sides * sizes))
    for start in range(0, servers, rows):
        part = slice(start, start + rows)
        p = every_p[part]
        rates = np.broadcast_to(model.predict(w, p, worker_cores, ps_cores)[0], (len(p), sides, sizes))
        _fastest_by_points(
            np.ascontiguousarray(rates), lattice.workers, fitting[part], lattice.worker_units, lattice.ps_units[part],
            start, most, best, where,
        )  # fmt: skip


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
    flat = fastest(lattice, model, most_cores=most_cores, fitting=lattice.fitting(need or MemoryNeed(), most_bytes))
    return points_of(model, lattice.parts(flat)) if len(flat) else None
