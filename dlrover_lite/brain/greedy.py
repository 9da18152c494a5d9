"""Weighted greedy over the admitted jobs: who gets how much of the capacity.

Every job starts at its smallest plan. Then the steps of all jobs' upper hulls of (cost, value) are taken, the most value per core
first, as long as there is room; a job whose next step doesn't fit goes no further. What is left over goes to plans between the corners.
Raising a job's priority never gets it a slower plan: its steps come earlier, and nobody else's do.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dlrover_lite.brain.lattice import to_milli
from dlrover_lite.brain.options import Options
from dlrover_lite.units import Resources

__all__ = ["Walk", "cheapest_as_good", "soonest"]


class Walk:
    """One walk over the jobs' ``options``. ``pinned``: job -> the position that it keeps.

    The pinned and the smallest plans together must fit into the capacity (``admission``); ``chosen`` then does too.
    """

    def __init__(
        self, options: Sequence[Options], capacity: Resources, hulls: Mapping[str, list[int]], pinned: Mapping[str, int]
    ) -> None:
        self.options = {one.view.job: one for one in options}
        self.chosen = {job: pinned.get(job, one.minimum) for job, one in self.options.items()}
        self.free_milli = to_milli(capacity.cores) - sum(self.milli(job) for job in self.chosen)
        self.free_memory = capacity.memory - sum(self.memory(job) for job in self.chosen)
        movable = [job for job in self.options if job not in pinned]
        self._climb({job: hulls[job] for job in movable})

    def milli(self, job: str) -> int:
        return int(self.options[job].points.milli[self.chosen[job]])

    def memory(self, job: str) -> int:
        return int(self.options[job].memory[self.chosen[job]])

    def _climb(self, hulls: Mapping[str, list[int]]) -> None:
        stairs = {job: _stairs(self.options[job], corners) for job, corners in hulls.items() if len(corners) > 1}
        level = dict.fromkeys(stairs, 0)
        heap = [steps.rank(0, job) for job, steps in stairs.items()]
        heapq.heapify(heap)
        stuck: list[str] = []
        while heap:
            job = heap[0][-1]
            steps, at = stairs[job], level[job]
            if steps.milli[at] > self.free_milli or steps.memory[at] > self.free_memory:
                heapq.heappop(heap)
                stuck.append(job)
                continue
            self.free_milli -= steps.milli[at]
            self.free_memory -= steps.memory[at]
            self.chosen[job] = steps.to[at]
            level[job] = at + 1
            if at + 1 < len(steps.to):
                heapq.heapreplace(heap, steps.rank(at + 1, job))
            else:
                heapq.heappop(heap)
        for job, steps in stairs.items():
            reserved = int(self.options[job].memory[hulls[job][0]]) + sum(steps.memory[: level[job]])
            self.free_memory += reserved - self.memory(job)
        for job in stuck:
            self._fill(job, stairs[job].to[level[job]])

    def _fill(self, job: str, corner: int) -> None:
        """The most valuable plan that fits into what is left, cheaper than the ``corner`` that didn't."""
        one, here = self.options[job], self.chosen[job]
        milli, memory, value = one.points.milli, one.memory, one.value
        fits = (milli <= milli[here] + self.free_milli) & (memory <= memory[here] + self.free_memory)
        fits &= (milli <= milli[corner]) & (value > value[here])
        if not fits.any():
            return
        best = int(np.where(fits, value, -np.inf).argmax())
        self.move(job, best)

    def has_room(self, job: str, at: int) -> bool:
        """Whether the job could have that plan instead of its own."""
        one = self.options[job]
        milli = int(one.points.milli[at]) - self.milli(job)
        return milli <= self.free_milli and int(one.memory[at]) - self.memory(job) <= self.free_memory

    def move(self, job: str, at: int) -> None:
        """Give it that plan instead."""
        one = self.options[job]
        self.free_milli -= int(one.points.milli[at]) - self.milli(job)
        self.free_memory -= int(one.memory[at]) - self.memory(job)
        self.chosen[job] = at


class _Stairs(NamedTuple):
    """The steps from each corner of a job's hull to the next, a list for each property."""

    to: list[int]
    milli: list[int]
    memory: list[int]
    """More than any corner before. (A plan with more cores may need less memory; what one before needed stays set aside, or the order of
    steps would matter.)"""
    value: list[float]
    now: int | None

    def rank(self, at: int, job: str) -> tuple[float, float, bool, str]:
        """What comes first is smallest: value per core; of the same, the larger value, then fewer moves, then the job's id."""
        value = self.value[at]
        return -value / self.milli[at], -value, self.to[at] != self.now, job


def _stairs(one: Options, corners: list[int]) -> _Stairs:
    memory = np.maximum.accumulate(one.memory[corners])
    return _Stairs(
        corners[1:],
        np.diff(one.points.milli[corners]).tolist(),
        np.diff(memory).tolist(),
        np.diff(one.value[corners]).tolist(),
        one.now,
    )


def soonest(options: Options, capacity: Resources) -> int:
    """Of a job that is alone: the plan it ends soonest with, whatever it costs."""
    fits = (options.points.milli <= to_milli(capacity.cores)) & (options.memory <= capacity.memory)
    return int(np.where(fits, options.gain, -np.inf).argmax())


def cheapest_as_good(options: Options, at: int, tie_share: float) -> int:
    """The cheapest plan that is no more than ``tie_share`` of the remaining time slower than ``at``, and needs no more memory; of equal
    ones that which needs no change."""
    seconds = options.stay_seconds - options.gain
    good = (seconds <= seconds[at] * (1 + tie_share)) & (options.memory <= options.memory[at])
    good &= options.points.milli <= options.points.milli[at]
    order = np.lexsort((np.arange(len(good)) != (-1 if options.now is None else options.now), options.points.milli))
    return int(order[good[order].argmax()])
