"""The exact Pareto front of (cost, throughput) over a lattice: the plans that none cheaper or as cheap is as fast as.

All points are looked at. Costs are whole numbers, so each point falls into a bucket of its cost, which keeps the fastest; one sweep over
the buckets then gives the front. Sorting half a million points instead takes thirty times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.brain.planning.plan_grid import MILLI, Candidate, FloatArray, IntArray, Lattice, MemoryNeed, to_milli

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
"""Number of values of an array that are computed at once: larger arrays leave the cache, and are given back to the system and got anew each
time."""

_MANY = 200_000
"""Number of points of a lattice from which on the search is compiled: that takes two seconds once on a machine, and saves a millisecond
each time. No machine alone has so many."""
_UNEVENNESS = 1e-6
"""Part by which a plan counts as slower whose nodes share their cores, and have them e times as they use them: less than anything that is
measured, so that it decides between plans that are as fast."""
_NONE = np.iinfo(np.int64).max

Parts = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
"""(w, p, worker cores, PS cores) of points."""


class ThroughputModel(Protocol):
    """Predicts throughput. Arguments are arrays that can be spread over each other (numpy broadcasting)."""

    def predict(
        self, w: FloatArray, p: FloatArray, worker_cores: FloatArray, ps_cores: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Predict (expected, lower, upper) in samples/s; the band holds 80%."""
        ...


class SharedCores(NamedTuple):
    """What nodes that share the cores which they have together take of these."""

    worker_share: FloatArray
    """[P]: CPU seconds of a minibatch's worker over those of all PS."""
    seconds: Callable[[int, FloatArray, FloatArray], FloatArray]
    """Computes seconds per minibatch on so many cores, for so many workers, with the number of PS at this position."""


class Sides(NamedTuple):
    """How slow plans are, as a sum: of w workers of size a and p PS of size s it is

        of_worker[p, a] * w ** -power + fixed[p] + of_ps[p, s]

    The smaller, the faster."""

    of_worker: FloatArray
    fixed: FloatArray
    of_ps: FloatArray
    power: float
    shared: SharedCores | None = None
    """Another term, of both sides together; None: there is none."""


@runtime_checkable
class SeparableModel(ThroughputModel, Protocol):
    """A model whose ranking of plans is a sum of two sides: half a million points then cost a few thousand computations."""

    def sides(self, servers: FloatArray, worker_sizes: FloatArray, ps_sizes: FloatArray) -> Sides:
        """Compute the sides for these numbers of PS [P] and sizes [A] and [S], in cores."""
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
    """The plan is faster than every cheaper one of these."""

    def candidate(self, at: int) -> Candidate:
        return Candidate(
            int(self.workers[at]), int(self.servers[at]), float(self.worker_cores[at]), float(self.ps_cores[at])
        )

    def band(self, at: int) -> Band:
        return Band(float(self.throughput[at]), float(self.lower[at]), float(self.upper[at]))

    def in_order(self, order: IntArray) -> Points:
        """Return the points in this order, which is by rising cost, of the same cost the faster first."""
        rate = self.throughput[order]
        return Points(
            self.workers[order],
            self.servers[order],
            self.worker_cores[order],
            self.ps_cores[order],
            self.milli[order],
            rate,
            self.lower[order],
            self.upper[order],
            np.concatenate([[True], rate[1:] > np.maximum.accumulate(rate)[:-1]]),
        )

    def are(self, candidate: Candidate) -> NDArray[np.bool_]:
        """Say which of these plans are ``candidate``."""
        return np.asarray(
            (self.workers == candidate.workers)
            & (self.servers == candidate.servers)
            & (self.worker_cores == candidate.worker_cores)
            & (self.ps_cores == candidate.ps_cores)
        )

    def find(self, candidate: Candidate) -> int:
        """Return the candidate's position. Raises ValueError if it isn't there."""
        if not len(found := self.are(candidate).nonzero()[0]):
            raise ValueError(f"{candidate.describe()} is none of these plans")
        return int(found[0])

    def memory(self, need: MemoryNeed) -> IntArray:
        """Compute the bytes of memory of each plan."""
        return self.workers * need.worker + self.servers * need.per_ps(self.servers)


class _Fastest:
    """The fastest point of each cost: ``slowness`` the less, the faster; ``flat`` its index, of equally fast ones the first."""

    def __init__(self, most: int) -> None:
        """``most``: the highest cost, in units of the lattice."""
        self.most = most
        self.slowness = np.full(most + 1, np.inf)
        self.flat = np.full(most + 1, _NONE)

    def look(self, cost: IntArray, slowness: FloatArray, flat: IntArray) -> None:
        """Take in points, [n] each; those that cost too much are left out."""
        within = np.flatnonzero((cost <= self.most) & (slowness < self.slowness.take(cost, mode="clip")))
        cost, slowness, flat = cost.take(within), slowness.take(within), flat.take(within)
        np.minimum.at(self.slowness, cost, slowness)
        self.flat[cost] = _NONE
        best = np.flatnonzero(slowness == self.slowness.take(cost))
        np.minimum.at(self.flat, cost.take(best), flat.take(best))

    def front(self) -> IntArray:
        """Return the points that nothing cheaper is as fast as."""
        return self.flat[_ahead(self.slowness)]


def _ahead(slowness: FloatArray) -> NDArray[np.bool_]:
    """Find, along the last axis, which are faster than all before."""
    found = np.empty(slowness.shape, np.bool_)
    found[..., 0] = slowness[..., 0] < np.inf
    np.less(slowness[..., 1:], np.minimum.accumulate(slowness, axis=-1)[..., :-1], out=found[..., 1:])
    return found


def fastest(lattice: Lattice, model: ThroughputModel, *, most_cores: float, fitting: IntArray) -> IntArray:
    """Find the front of all points of at most ``most_cores`` that are ``Lattice.fitting``, as indices that ``Lattice.parts`` takes.

    Of points with the same cost and throughput, the one with fewer PS is taken, then the one with the cheaper workers.
    """
    most = min(lattice.most_units, to_milli(most_cores) // lattice.unit_milli)
    if most < 0:
        return np.empty(0, np.int64)
    found = _Fastest(most)
    if (find_sides := getattr(model, "sides", None)) is not None:  # asking isinstance takes 0.1 ms
        _look_at_sides(
            lattice,
            find_sides(lattice.servers.astype(np.float64), lattice.worker_sizes, lattice.ps_cores),
            fitting,
            found,
        )
    else:
        _look_at_all(lattice, model, fitting, found)
    return found.front()


def _look_at_sides(lattice: Lattice, sides: Sides, fitting: IntArray, found: _Fastest) -> None:
    """Look at a separable model's points. What is slower than something cheaper of the same side is so beside every other side, and isn't
    looked at."""
    _, many, sizes = lattice.shape
    if sides.shared is not None:
        _look_at_shared(lattice, sides, sides.shared, fitting, found)
        return
    first = lattice.worker_counts[0]
    powers = np.zeros(int(lattice.worker_counts[-1] - first) + 1)
    powers[lattice.worker_counts - first] = lattice.worker_counts ** -float(sides.power)
    shrink = powers[lattice.workers - first]
    if len(lattice) >= _MANY:
        from dlrover_lite.brain.planning.pareto_kernel import fastest_by_sides

        fastest_by_sides(
            sides.of_worker, sides.fixed, sides.of_ps, shrink, lattice.workers, lattice.size_of_side,
            np.broadcast_to(fitting, (len(lattice.servers), len(lattice.worker_sizes), sizes)),
            lattice.worker_units, lattice.ps_units, found.slowness, found.flat,
        )  # fmt: skip
        return
    of_workers = sides.of_worker[:, lattice.size_of_side] * shrink + sides.fixed[:, None]
    useful = _ahead(sides.of_ps)
    for at in range(fitting.shape[2]):  # one for all sizes of a PS, or one for each
        room = fitting[:, :, at] if fitting.shape[1] == 1 else fitting[:, lattice.size_of_side, at]
        p, n = _ahead(np.where(lattice.workers > room, np.inf, of_workers)).nonzero()
        here = useful if fitting.shape[2] == 1 else useful & (np.arange(sizes) == at)
        pair, s = here[p].nonzero()
        slowness = of_workers[p, n][pair] + sides.of_ps[p[pair], s]
        cost = lattice.worker_units[n[pair]] + lattice.ps_units[p[pair], s]
        found.look(cost, slowness, (p * many + n)[pair] * sizes + s)


def _look_at_shared(lattice: Lattice, sides: Sides, shared: SharedCores, fitting: IntArray, found: _Fastest) -> None:
    """Look at the points of a model whose nodes share their cores: all of them, as a larger node helps others, too. Of those that are as
    fast and have as many cores in all, the one counts whose nodes have them the most as they use them."""
    _, many, sizes = lattice.shape
    shrink = lattice.workers ** -float(sides.power)
    worker_cores = (lattice.worker_units * lattice.unit_milli / MILLI)[:, None]
    for p in range(len(lattice.servers)):
        room = fitting[p] if fitting.shape[1] == 1 else fitting[p][lattice.size_of_side]
        cost = lattice.worker_units[:, None] + lattice.ps_units[p]
        n, s = ((lattice.workers[:, None] <= room) & (cost <= found.most)).nonzero()
        ps_cores = lattice.ps_units[p, s] * lattice.unit_milli / MILLI
        cores = worker_cores[n, 0] + ps_cores
        slowness = (sides.of_worker[p, lattice.size_of_side] * shrink)[n] + sides.fixed[p] + sides.of_ps[p, s]
        slowness += shared.seconds(p, cores, lattice.workers[n].astype(np.float64)) ** sides.power
        uneven = worker_cores[n, 0] / ps_cores / max(shared.worker_share[p], 1e-3)
        slowness *= 1 + _UNEVENNESS * np.abs(np.log(uneven))
        found.look(cost[n, s], slowness, (p * many + n) * sizes + s)


def _look_at_all(lattice: Lattice, model: ThroughputModel, fitting: IntArray, found: _Fastest) -> None:
    servers, many, sizes = lattice.shape
    w, every_p, worker_cores, ps_cores = lattice.grid
    rows = max(1, _BLOCK // (many * sizes))
    for start in range(0, servers, rows):
        part = slice(start, start + rows)
        shape = (len(every_p[part]), many, sizes)
        rates = np.broadcast_to(model.predict(w, every_p[part], worker_cores, ps_cores)[0], shape)
        cost = lattice.worker_units[:, None] + lattice.ps_units[part, None, :]
        room = fitting[part] if fitting.shape[1] == 1 else fitting[part][:, lattice.size_of_side]
        fits = np.broadcast_to(lattice.workers[:, None] <= room, shape).ravel()
        first = start * many * sizes
        flat = np.arange(first, first + rates.size)
        found.look(cost.ravel()[fits], -rates.ravel()[fits], flat[fits])


def points_of(model: ThroughputModel, parts: Parts) -> Points:
    """Predict any points (at least one), and put them in order."""
    w, p, worker_cores, ps_cores = parts
    rate, lower, upper = (x if x.shape == w.shape else np.broadcast_to(x, w.shape) for x in model.predict(*parts))
    workers, servers = w.astype(np.int64), p.astype(np.int64)
    worker_milli, ps_milli = ((x * MILLI + 0.5).astype(np.int64) for x in (worker_cores, ps_cores))
    milli = workers * worker_milli + servers * ps_milli
    on_front = np.ones(len(milli), np.bool_)  # it is found once they are in order
    points = Points(workers, servers, worker_cores, ps_cores, milli, rate, lower, upper, on_front)
    return points.in_order(np.lexsort((-rate, milli)))


def exact_front(
    lattice: Lattice,
    model: ThroughputModel,
    *,
    most_cores: float,
    need: MemoryNeed | None = None,
    most_bytes: int | None = None,
) -> Points | None:
    """Return the points of ``fastest`` with at most ``most_bytes``, with their predictions; None if there are none."""
    flat = fastest(lattice, model, most_cores=most_cores, fitting=lattice.fitting(need or MemoryNeed(), most_bytes))
    return points_of(model, lattice.parts(flat)) if len(flat) else None
