"""The paper's search for the front of (cost, throughput): NSGA-II, a genetic algorithm. ``pareto`` finds the same front exactly.

Deb, Pratap, Agarwal and Meyarivan: A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II (2002), with constraints by its section
VI: what may be had beats what may not, and of the latter the lesser violation wins. A plan is three whole numbers, its position on each
axis of the lattice; crossover (SBX) and mutation (polynomial) are rounded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.brain.planning.pareto import ThroughputModel
from dlrover_lite.brain.planning.plan_grid import FloatArray, IntArray, Lattice

__all__ = ["nsga2_front"]

_CROSSOVER, _CROSSOVER_INDEX = 0.9, 15.0
"""Chance that parents are crossed, and how near to them their children are: the larger, the nearer. As NSGA-II is usually run."""
_MUTATION_INDEX = 20.0
"""The same of mutations. An axis mutates with a chance of a third."""


class _Population(NamedTuple):
    genes: IntArray
    """[n, 3]: positions on the lattice's axes."""
    cores: FloatArray
    rate: FloatArray
    """Samples/s."""
    violation: FloatArray
    """How far the plan is from one that may be had; 0: it may."""

    def at(self, positions: NDArray[np.int64]) -> _Population:
        return _Population(
            self.genes[positions], self.cores[positions], self.rate[positions], self.violation[positions]
        )


class _Plans(NamedTuple):
    """The plans that are searched."""

    lattice: Lattice
    model: ThroughputModel
    most_cores: float
    room: IntArray
    """[PS, worker sizes, PS sizes]: the most workers there may be."""

    def of(self, genes: IntArray) -> _Population:
        lattice = self.lattice
        p, n, s = genes.T
        cores = (lattice.worker_units[n] + lattice.ps_units[p, s]) * lattice.unit_milli / 1000
        rate = self.model.predict(*lattice.parts(np.ravel_multi_index((p, n, s), lattice.shape)))[0]
        beyond = lattice.workers[n] - self.room[p, lattice.size_of_side[n], s]
        violation = np.maximum(cores - self.most_cores, 0.0) / self.most_cores + np.maximum(beyond, 0)
        return _Population(genes, cores, np.broadcast_to(rate, cores.shape), violation)


def nsga2_front(
    lattice: Lattice,
    model: ThroughputModel,
    *,
    most_cores: float,
    fitting: IntArray,
    population: int = 100,
    generations: int = 100,
    seed: int = 0,
) -> IntArray:
    """Search for the front as ``pareto.fastest`` does: indices of points of at most ``most_cores`` that none of those found beats; often
    not on the front, and often without its ends. The same seed finds the same. A lattice no larger than a population is looked at
    whole."""
    room = np.broadcast_to(fitting, (len(lattice.servers), len(lattice.worker_sizes), len(lattice.ps_cores)))
    plans = _Plans(lattice, model, max(most_cores, 1e-9), room)
    if len(lattice) <= population:
        whole = np.array(np.unravel_index(np.arange(len(lattice)), lattice.shape), np.int64).T
        return _flat(plans, plans.of(whole))
    rng = np.random.default_rng(seed)
    last = np.array(lattice.shape) - 1
    people = plans.of(rng.integers(0, last + 1, (population, 3)))
    rank, spread = _ranked(people, population)
    for _ in range(generations):
        children = _children(people.genes[_winners(rank, spread, rng)], last, rng)
        genes = np.unique(np.concatenate([people.genes, children]), axis=0)
        people = plans.of(genes)
        rank, spread = _ranked(people, population)
        survivors = np.lexsort((-spread, rank))[:population]
        people, rank, spread = people.at(survivors), rank[survivors], spread[survivors]
    return _flat(plans, people)


def _flat(plans: _Plans, people: _Population) -> IntArray:
    """Return the indices of those that may be had and that no other of them beats."""
    there = people.at(np.flatnonzero(people.violation == 0))
    if not len(there.cores):
        return np.empty(0, np.int64)
    p, n, s = there.genes[_beaten(there).sum(axis=0) == 0].T
    flat: IntArray = np.unique(np.ravel_multi_index((p, n, s), plans.lattice.shape))
    return flat


def _beaten(people: _Population) -> NDArray[np.bool_]:
    """Say who beats whom, [n, n]: the row's beats the column's."""
    cores, rate, violation = people.cores, people.rate, people.violation
    no_worse = (cores[:, None] <= cores) & (rate[:, None] >= rate)
    better = (cores[:, None] < cores) | (rate[:, None] > rate)
    as_allowed = violation[:, None] == violation
    found: NDArray[np.bool_] = (violation[:, None] < violation) | (as_allowed & no_worse & better)
    return found


def _ranked(people: _Population, enough: int) -> tuple[IntArray, FloatArray]:
    """Return the front that each belongs to, 0 the best, and its crowding distance there: the larger, the more it adds. Once ``enough``
    have their place, all others come after them."""
    beaten, count = _beaten(people), len(people.cores)
    rank, spread = np.full(count, count), np.zeros(count)
    by, ranked, front = beaten.sum(axis=0), 0, 0
    while ranked < min(enough, count):
        here = np.flatnonzero((by == 0) & (rank == count))
        rank[here], spread[here] = front, _crowding(people.at(here))
        by -= beaten[here].sum(axis=0)
        ranked, front = ranked + len(here), front + 1
    return rank, spread


def _crowding(front: _Population) -> FloatArray:
    found = np.zeros(len(front.cores))
    for values in (front.cores, front.rate):
        order = np.argsort(values, kind="stable")
        extent = float(values[order[-1]] - values[order[0]])
        found[order[[0, -1]]] = np.inf
        if extent > 0:
            found[order[1:-1]] += (values[order[2:]] - values[order[:-2]]) / extent
    return found


def _winners(rank: IntArray, spread: FloatArray, rng: np.random.Generator) -> IntArray:
    """Choose as many parents as there are, an even number, each the better of two at random."""
    one, other = rng.integers(0, len(rank), (2, len(rank) + len(rank) % 2))
    first = (rank[one] < rank[other]) | ((rank[one] == rank[other]) & (spread[one] >= spread[other]))
    return np.asarray(np.where(first, one, other))


def _children(parents: IntArray, last: IntArray, rng: np.random.Generator) -> IntArray:
    """Cross the parents two by two, and let some mutate. ``last``: the last position on each axis."""
    one, other = parents[::2].astype(np.float64), parents[1::2].astype(np.float64)
    chance = rng.random(one.shape)
    near = np.where(chance <= 0.5, 2 * chance, 1 / (2 * (1 - chance))) ** (1 / (_CROSSOVER_INDEX + 1))
    crossed = (rng.random((len(one), 1)) < _CROSSOVER) & (rng.random(one.shape) < 0.5)
    near = np.where(crossed, near, 1.0)
    made = np.concatenate([(1 + near) * one + (1 - near) * other, (1 - near) * one + (1 + near) * other]) / 2
    chance = rng.random(made.shape)
    root = 1 / (_MUTATION_INDEX + 1)
    step = np.where(chance < 0.5, (2 * chance) ** root - 1, 1 - (2 * (1 - chance)) ** root)
    mutates = rng.random(made.shape) < 1 / made.shape[1]
    made += np.where(mutates, step * last, 0.0)
    return np.asarray(np.clip(np.rint(made), 0, last), np.int64)
