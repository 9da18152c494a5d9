"""Weighted greedy over the admitted jobs: who gets how much of the capacity.

Every job starts at its smallest plan, or at its floor (``change_policy``); one that may be told to wait starts from nothing, and its first
step is to begin. Then the steps of all jobs' upper hulls of (cost, value) are taken, the most value per core first, as long as there is
room; a job whose next step doesn't fit goes no further. What is left over goes to plans between the corners. Who waits follows from the
same steps as what the others get: if it were decided beforehand, a job could lose cores by a higher priority, since another one waits, or
doesn't, for that. Raising a job's priority never gets it a slower plan here: its steps come earlier, and nobody else's do.
(``decision`` says how far that holds for a whole round.)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.brain.planning.plan_grid import FloatArray, IntArray, to_milli
from dlrover_lite.brain.planning.plan_values import Options, hull
from dlrover_lite.core.units import Resources

__all__ = [
    "Stairs",
    "Walk",
    "cheapest_as_good",
    "fewest_nodes",
    "soonest",
    "stairs_from_nothing",
    "stairs_of",
]


class Walk:
    """One walk over the jobs' ``options`` up their ``stairs``. ``pinned``: job -> the position that it keeps; ``floors``: job -> the
    position that it starts from, if that isn't its smallest plan; ``from_nothing``: jobs that start from nothing, and aren't among the
    ``chosen`` before they begin.

    What all have at least must fit into the capacity (``admission``) together; ``chosen`` then does too.
    """

    def __init__(
        self,
        options: Sequence[Options],
        capacity: Resources,
        stairs: Mapping[str, Stairs],
        pinned: Mapping[str, int],
        floors: Mapping[str, int] | None = None,
        from_nothing: Collection[str] = (),
    ) -> None:
        self.options = {one.view.job: one for one in options}
        least = {**(floors or {}), **pinned}
        self.chosen = {job: least.get(job, one.minimum) for job, one in self.options.items() if job not in from_nothing}
        self.free_milli = to_milli(capacity.cores) - sum(self.milli(job) for job in self.chosen)
        self.free_memory = capacity.memory - sum(self.memory(job) for job in self.chosen)
        self._climb({job: stairs[job] for job in self.options if job not in pinned and len(stairs[job].to)})

    def milli(self, job: str) -> int:
        return int(self.options[job].points.milli[self.chosen[job]]) if job in self.chosen else 0

    def memory(self, job: str) -> int:
        return int(self.options[job].memory[self.chosen[job]]) if job in self.chosen else 0

    def _climb(self, stairs: Mapping[str, Stairs]) -> None:
        jobs = sorted(stairs)  # of equal steps, the first of these comes first
        if not jobs:
            return
        steps = [stairs[job] for job in jobs]
        levels, stuck = _climbed(steps, self.free_milli, self.free_memory)
        aside = {
            job: self.memory(job) + int(one.memory[:level].sum())
            for job, one, level in zip(jobs, steps, levels, strict=True)
        }
        unused = self.free_memory + sum(map(self.memory, jobs)) - sum(aside.values())
        for job, one, level in zip(jobs, steps, levels, strict=True):
            if level:
                self.move(job, int(one.to[level - 1]))
        for at in stuck:
            job = jobs[at]
            if job not in self.chosen:
                continue
            self._fill(job, int(steps[at].to[levels[at]]), aside[job] + unused)
            unused -= max(0, self.memory(job) - aside[job])

    def _fill(self, job: str, corner: int, most_memory: int) -> None:
        """Give a job the most valuable plan that fits into what is left, cheaper than the ``corner`` that didn't; of memory, what others
        gave back on their way is left aside, or it would matter who comes first."""
        one, here = self.options[job], self.chosen[job]
        milli, memory, value = one.points.milli, one.memory, one.value
        fits = (milli <= milli[here] + self.free_milli) & (memory <= most_memory)
        fits &= (milli <= milli[corner]) & (value > value[here])
        if not fits.any():
            return
        best = int(np.where(fits, value, -np.inf).argmax())
        self.move(job, best)

    def has_room(self, job: str, at: int) -> bool:
        """Say whether the job could have that plan instead of its own."""
        one = self.options[job]
        milli = int(one.points.milli[at]) - self.milli(job)
        return milli <= self.free_milli and int(one.memory[at]) - self.memory(job) <= self.free_memory

    def move(self, job: str, at: int) -> None:
        """Give the job that plan instead."""
        one = self.options[job]
        self.free_milli -= int(one.points.milli[at]) - self.milli(job)
        self.free_memory -= int(one.memory[at]) - self.memory(job)
        self.chosen[job] = at


class Stairs(NamedTuple):
    """The steps from each corner of a job's hull to the next, [n] each."""

    to: IntArray
    """Positions in the job's options."""
    milli: IntArray
    """Thousandths of a core, less than none where the first step leads to a better plan with fewer."""
    memory: IntArray
    """Memory that the corner takes beyond any corner before. (A plan with more cores may need less memory; what one before needed stays set
    aside until all are done, or the order of steps would matter.)"""
    value: FloatArray
    moves: NDArray[np.bool_]
    """The step doesn't lead to the present plan."""


def stairs_of(one: Options, start: int | None = None) -> Stairs:
    """Make the stairs of a job from ``start`` on, or from its smallest plan. If another plan is better with no more cores, the first step
    leads to that: nothing is lost by it but the memory that it needs more."""
    start = one.minimum if start is None else start
    cheap = one.points.milli <= one.points.milli[start]
    best = int(np.where(cheap, one.value, -np.inf).argmax())
    if one.value[best] <= one.value[start]:
        return _stairs(one, hull(one, start))
    return _stairs(one, np.concatenate([[start], hull(one, best)]))


def _stairs(one: Options, corners: IntArray) -> Stairs:
    milli, value, memory = one.points.milli[corners], one.value[corners], np.maximum.accumulate(one.memory[corners])
    to = corners[1:]
    now = -1 if one.now is None else one.now
    return Stairs(to, milli[1:] - milli[:-1], memory[1:] - memory[:-1], value[1:] - value[:-1], to != now)


def stairs_from_nothing(one: Options, worth: float) -> Stairs:
    """Make the stairs of a job that may get nothing at all, ``worth``: of its smallest plan. What its first steps are worth per core is
    what they are together, where the next is worth more than the first."""
    at = one.minimum
    stairs = _stairs(one, hull(one, at))
    milli = np.concatenate([[one.points.milli[at]], stairs.milli])
    value = np.concatenate([[worth], stairs.value])
    slopes = np.cumsum(value) / np.cumsum(milli)
    together = int(slopes.argmax()) + 1
    value[:together] = slopes[together - 1] * milli[:together]
    memory = np.concatenate([[one.memory[at]], stairs.memory])
    return Stairs(np.concatenate([[at], stairs.to]), milli, memory, value, np.ones(len(milli), np.bool_))


def _climbed(steps: Sequence[Stairs], free_milli: int, free_memory: int) -> tuple[list[int], list[int]]:
    """Compute how many of its steps each job takes; and list the jobs whose next step doesn't fit, in that order.

    What comes first has the most value per core; of the same, the larger value, then no move, then the lower job.
    """
    milli, memory, value, moves = (
        np.concatenate([getattr(one, name) for one in steps]) for name in ("milli", "memory", "value", "moves")
    )
    jobs = np.repeat(np.arange(len(steps)), [len(one.to) for one in steps])
    worth = np.divide(value, milli, out=np.full(len(milli), np.inf), where=milli > 0)  # what takes no cores comes first
    order = _by_worth(jobs, worth, value, moves)
    levels, waits, stuck = [0] * len(steps), [False] * len(steps), []
    for job, cores, size in zip(jobs[order].tolist(), milli[order].tolist(), memory[order].tolist(), strict=True):
        if waits[job]:
            continue
        if cores > free_milli or size > free_memory:
            waits[job] = True
            stuck.append(job)
            continue
        free_milli -= cores
        free_memory -= size
        levels[job] += 1
    return levels, stuck


def _by_worth(jobs: IntArray, worth: FloatArray, value: FloatArray, moves: NDArray[np.bool_]) -> IntArray:
    """Order the steps by ``worth`` per core, the most first; those of a job follow each other in their own order."""
    order = np.argsort(-worth)  # without ties, which are rare, five times as fast as by all keys
    sorted_worth = worth[order]
    if (sorted_worth[1:] == sorted_worth[:-1]).any():
        order = np.lexsort((jobs, moves, -value, -worth))
    if ((worth[1:] >= worth[:-1]) & (jobs[1:] == jobs[:-1])).any():  # by rounding alone
        order[np.argsort(jobs[order], kind="stable")] = np.arange(len(order))
    return order


def soonest(options: Options, capacity: Resources) -> int:
    """Find the plan that a job which is alone ends soonest with, whatever it costs."""
    fits = (options.points.milli <= to_milli(capacity.cores)) & (options.memory <= capacity.memory)
    return int(np.where(fits, options.gain, -np.inf).argmax())


def cheapest_as_good(options: Options, at: int, tie_share: float, *, most_loss: float = math.inf) -> int:
    """Find the cheapest plan that is no more than ``tie_share`` of the remaining time slower than ``at``, and needs no more memory; of
    equal ones that which needs no change. At the lower end of its band it may lose ``most_loss`` of the remaining time."""
    seconds = options.stay_seconds - options.gain
    good = (seconds <= seconds[at] * (1 + tie_share)) & (options.memory <= options.memory[at])
    good &= options.points.milli <= options.points.milli[at]
    if most_loss < math.inf:
        good &= options.least_gain >= -most_loss * options.stay_seconds
    order = np.lexsort((np.arange(len(good)) != (-1 if options.now is None else options.now), options.points.milli))
    return int(order[good[order].argmax()])


def fewest_nodes(options: Options, at: int, most_share: float) -> int:
    """Find the plan with the fewest nodes of those with as many cores as ``at`` that take no more than ``most_share`` of the remaining time
    longer, nor more memory. More cores still never make a job slower: it may take no longer than what would be chosen so with fewer."""
    milli, nodes = options.points.milli, options.points.workers + options.points.servers
    seconds = options.stay_seconds - options.gain
    # what takes longer than any of these may doesn't matter, with fewer cores either
    near = np.flatnonzero((milli <= milli[at]) & (seconds <= seconds[at] * (1 + most_share)))
    chosen, limit = at, math.inf
    for cores in np.unique(milli[near]):
        level = near[milli[near] == cores]
        best = at if cores == milli[at] else int(level[seconds[level].argmin()])
        limit = min(limit, float(seconds[best]) * (1 + most_share))
        good = level[(seconds[level] <= limit) & (options.memory[level] <= options.memory[best])]
        chosen = int(good[np.lexsort((seconds[good], nodes[good]))[0]]) if len(good) else best
        limit = min(limit, float(seconds[chosen]))
    return chosen
