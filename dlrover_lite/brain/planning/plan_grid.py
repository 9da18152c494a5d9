"""The plans that can be chosen from: every number of workers and parameter servers with every size, within bounds.

A lattice depends on the bounds alone, never on the job, so jobs with the same bounds share one (``lattice_of``). Cost is what a plan is
given: cores, counted in whole thousandths, so that equal costs are equal and sums are exact. Memory follows from the forecast
(``MemoryNeed``): a constraint, not an axis.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.plans import Plan, RolePlan

__all__ = [
    "MILLI",
    "Bounds",
    "Candidate",
    "Lattice",
    "MemoryBand",
    "MemoryNeed",
    "even_sizes",
    "lattice_of",
    "to_milli",
]

MILLI = 1000
"""Units of cost in a core: cost is counted in thousandths of a core."""

_STEP_PART = 32
"""Part of a count by which the next one that is looked at is higher: no model tells closer ones apart."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Servers = TypeVar("Servers", int, IntArray, FloatArray)


def to_milli(cores: float) -> int:
    return round(cores * MILLI)


class Candidate(msgspec.Struct, frozen=True, order=True):
    """A plan without its memory, which follows from the forecast."""

    workers: int
    servers: int
    worker_cores: float
    ps_cores: float
    """Cores of each PS."""

    @property
    def milli(self) -> int:
        """Cost in thousandths of a core."""
        return self.workers * to_milli(self.worker_cores) + self.servers * to_milli(self.ps_cores)

    @property
    def cores(self) -> float:
        return self.milli / MILLI

    def describe(self) -> str:
        return f"{self.workers} worker x {self.worker_cores:g}, {self.servers} ps x {self.ps_cores:g} cores"

    def parts(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return the plan as a model takes it: (w, p, worker cores, PS cores), each of shape (1,)."""
        values = (self.workers, self.servers, self.worker_cores, self.ps_cores)
        w, p, worker_cores, ps_cores = (np.array([value], dtype=np.float64) for value in values)
        return w, p, worker_cores, ps_cores


class MemoryBand(msgspec.Struct, frozen=True):
    """Bytes that a node is predicted to need at its peak; ``lower`` to ``upper`` holds 80%."""

    expected: int
    lower: int
    upper: int
    limit: int
    """Limit in bytes that the node gets."""


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's nodes need until the decision is looked at again, in bytes, as forecast; all 0 where nothing is known."""

    worker: int = 0
    """Bytes of each worker."""
    ps: int = 0
    """Bytes of each PS, whatever it holds: process, frames, what a move brings."""
    tables: int = 0
    """Bytes of rows, index and journal of all PS together."""
    tables_band: tuple[int, int, int] | None = None
    """80% band of ``tables``: the lower end, what is expected and the upper end; None: there is no forecast."""
    most_per_ps: int | None = None
    """Bytes of the largest PS there can be (its host's memory); None: no bound but the capacity."""
    fixed_ps: int | None = None
    """Bytes of each PS where the recipe fixes its memory, whatever it needs; None: it is left open."""

    def per_ps(self, servers: Servers) -> Servers:
        """Compute the memory of each of so many PS, of each number of them if there are several."""
        if self.fixed_ps is not None:
            return servers * 0 + self.fixed_ps
        return self.ps + -(-self.tables // servers)

    def of(self, candidate: Candidate) -> int:
        """Compute the bytes of all nodes together."""
        return candidate.workers * self.worker + candidate.servers * self.per_ps(candidate.servers)

    def fits(self, candidate: Candidate, most: int | None) -> bool:
        """Say whether such a plan fits. ``most``: bytes for all its nodes together; None: no bound."""
        alone = self.most_per_ps is None or self.per_ps(candidate.servers) <= self.most_per_ps
        return alone and (most is None or self.of(candidate) <= most)

    def band(self, candidate: Candidate) -> MemoryBand | None:
        """Return the memory of each PS of such a plan; None without a forecast."""
        if self.tables_band is None:
            return None
        lower, expected, upper = (self.ps + tables // candidate.servers for tables in self.tables_band)
        return MemoryBand(expected, lower, upper, self.per_ps(candidate.servers))

    def plan(self, candidate: Candidate) -> Plan:
        """Make a plan with the memory that it needs."""
        return Plan(
            ps=RolePlan(candidate.servers, Resources(candidate.ps_cores, self.per_ps(candidate.servers))),
            worker=RolePlan(candidate.workers, Resources(candidate.worker_cores, self.worker)),
        )


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Least and most counts of nodes, both included, and their sizes in cores. A role that the recipe fixes has one count and one size."""

    min_workers: int = 1
    max_workers: int = 64
    min_servers: int = 1
    max_servers: int = 32
    worker_sizes: tuple[float, ...]
    ps_sizes: tuple[float, ...]

    def problem(self) -> str:
        """Say why no plan is within; "" if some is."""
        for role, low, high, sizes in (
            ("workers", self.min_workers, self.max_workers, self.worker_sizes),
            ("parameter servers", self.min_servers, self.max_servers, self.ps_sizes),
        ):
            if not 1 <= low <= high:
                return f"from {low} to {high} {role} is no range of counts"
            if not sizes or min(map(to_milli, sizes)) < 1:
                return f"the sizes of {role} must be at least one, and each at least {1 / MILLI:g} cores"
        return ""

    def holds(self, candidate: Candidate) -> bool:
        """Say whether the plan's counts are within and its sizes between the smallest and the largest (a plan that runs may have
        others)."""
        return (
            self.min_workers <= candidate.workers <= self.max_workers
            and self.min_servers <= candidate.servers <= self.max_servers
            and min(self.worker_sizes) <= candidate.worker_cores <= max(self.worker_sizes)
            and min(self.ps_sizes) <= candidate.ps_cores <= max(self.ps_sizes)
        )


def even_sizes(most: float, count: int = 16) -> tuple[float, ...]:
    """List ``count`` sizes of a node in even steps up to ``most`` cores: sums of them have few distinct values."""
    sizes = sorted({max(1, to_milli(most * number / count)) for number in range(1, count + 1)})
    return tuple(size / MILLI for size in sizes)


def _counts(low: int, high: int) -> IntArray:
    """List counts of nodes from ``low`` to ``high``, both included: all up to 64, then in steps of a 32nd."""
    counts = [low]
    while counts[-1] < high:
        counts.append(min(high, counts[-1] + max(1, counts[-1] // _STEP_PART)))
    return np.array(counts, np.int64)


class Lattice:
    """Candidates within ``bounds``, as axes that arrays are spread over. Above 64 nodes counts go in steps of a 32nd.

    - axis 0: number of PS, (P, 1, 1)
    - axis 1: the workers' side, (1, N, 1): a number of workers and a size, ordered by cost, then by number
    - axis 2: size of a PS, (1, 1, S)

    Raises UsageError when the bounds hold nothing.
    """

    def __init__(self, bounds: Bounds) -> None:
        if problem := bounds.problem():
            raise UsageError(f"No plan is possible: {problem}", hint="Widen the recipe's resources.")
        self.bounds = bounds
        worker_sizes = sorted(set(map(to_milli, bounds.worker_sizes)))
        ps_sizes = sorted(set(map(to_milli, bounds.ps_sizes)))
        self.unit_milli = math.gcd(*worker_sizes, *ps_sizes)
        """Thousandths of a core that all costs are multiples of."""
        self.worker_counts: IntArray = _counts(bounds.min_workers, bounds.max_workers)
        side = np.array([(count, size) for count in self.worker_counts for size in worker_sizes], dtype=np.int64)
        cost = side[:, 0] * side[:, 1]
        side, cost = side[order := np.lexsort((side[:, 0], cost))], cost[order]
        self.workers: IntArray = side[:, 0]
        self.worker_cores: FloatArray = side[:, 1] / MILLI
        self.worker_sizes: FloatArray = np.array(worker_sizes) / MILLI
        self.size_of_side: IntArray = np.searchsorted(worker_sizes, side[:, 1])
        """Position in ``worker_sizes`` of each worker side's size."""
        self.worker_units: IntArray = cost // self.unit_milli
        """Cost of each worker side, ascending."""
        self.servers: IntArray = _counts(bounds.min_servers, bounds.max_servers)
        self.ps_cores: FloatArray = np.array(ps_sizes) / MILLI
        self.ps_units: IntArray = self.servers[:, None] * (np.array(ps_sizes) // self.unit_milli)
        """Cost of the PS side, (P, S)."""
        self.grid: tuple[FloatArray, FloatArray, FloatArray, FloatArray] = (
            self.workers[None, :, None].astype(np.float64),
            self.servers[:, None, None].astype(np.float64),
            self.worker_cores[None, :, None],
            self.ps_cores[None, None, :],
        )
        """(w, p, worker cores, PS cores), to be spread over each other."""
        self.shape = (len(self.servers), len(self.workers), len(self.ps_cores))
        self.most_units = int(self.worker_units[-1] + self.ps_units.max())

    def __len__(self) -> int:
        return math.prod(self.shape)

    def candidate(self, flat: int) -> Candidate:
        """Return the candidate at ``flat``, an index of the flattened (P, N, S)."""
        p, n, s = (int(index) for index in np.unravel_index(flat, self.shape))
        return Candidate(
            int(self.workers[n]), int(self.servers[p]), float(self.worker_cores[n]), float(self.ps_cores[s])
        )

    def parts(self, flat: NDArray[Any]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return (w, p, worker cores, PS cores) of the points at ``flat``."""
        p, n, s = np.unravel_index(flat, self.shape)
        return (
            self.workers[n].astype(np.float64),
            self.servers[p].astype(np.float64),
            self.worker_cores[n],
            self.ps_cores[s],
        )

    def fitting(self, need: MemoryNeed, most_bytes: int | None) -> IntArray:
        """Compute how many workers there may be beside each number of PS, so that all have their memory, (P, 1, 1); below ``min_workers``:
        none."""
        each = need.per_ps(self.servers)
        left = np.full(len(self.servers), self.bounds.max_workers)
        if most_bytes is not None:
            bytes_left = most_bytes - self.servers * each
            if need.worker:
                left = np.minimum(left, bytes_left // need.worker)
            left[bytes_left < 0] = 0
        if need.most_per_ps is not None:
            left[each > need.most_per_ps] = 0
        return left[:, None, None]

    def smallest(self, fitting: IntArray, most_cores: float) -> Candidate | None:
        """Find the cheapest candidate of those that are ``fitting`` (of equal ones, that with the fewest PS); None if there is none of so
        few cores."""
        units = np.where(
            fitting[:, 0, 0] >= self.bounds.min_workers, self.worker_units[0] + self.ps_units[:, 0], self.most_units + 1
        )
        p = int(units.argmin())
        if units[p] > self.most_units or units[p] * self.unit_milli > to_milli(most_cores):
            return None
        return self.candidate(int(np.ravel_multi_index((p, 0, 0), self.shape)))


@lru_cache(maxsize=256)
def lattice_of(bounds: Bounds) -> Lattice:
    """Return the lattice of these bounds, made once."""
    return Lattice(bounds)
