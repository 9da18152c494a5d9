"""Which jobs may train now, each with at least its smallest plan; the others queue, and age."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dlrover_lite.brain.planning.job_view import JobView, Policy
from dlrover_lite.brain.planning.plan_grid import to_milli
from dlrover_lite.core.units import Resources

__all__ = ["Admission", "Need", "admit"]


class Need(NamedTuple):
    """What a job takes at the least."""

    milli: int
    """Cost in thousandths of a core."""
    memory: int


class Admission(NamedTuple):
    admitted: tuple[str, ...]
    """Jobs that may train, in the order they were let in."""
    queued: tuple[str, ...]
    """Jobs that wait, the first in the queue first."""
    preempted: Mapping[str, str]
    """Job -> the one that takes its place; "" if it gives way to nobody, as there is less than there was."""


def aged_priority(view: JobView, policy: Policy) -> float:
    return view.priority * (1 + view.waited_seconds / policy.ageing_seconds)


def place_in_queue(view: JobView, policy: Policy) -> tuple[float, float, str]:
    """Return what jobs that wait are sorted by: no two of them are alike."""
    return -aged_priority(view, policy), -view.waited_seconds, view.job


def admit(
    views: Sequence[JobView],
    needs: Mapping[str, Need],
    capacity: Resources,
    policy: Policy,
    *,
    reluctant: Mapping[str, Need] | None = None,
    later: Mapping[str, Need] | None = None,
) -> Admission:
    """Decide which of the jobs that ``needs`` names may train now.

    Jobs that run stay, the most important first, as long as there is room. Then those that wait, by aged priority; one that doesn't fit may
    preempt jobs of ``preempt_ratio`` times less priority (age doesn't count there: it must not stop those that run). One that has to wait
    lets those behind it pass, until it has waited for ``reserve_after_seconds``.

    One that runs and can't give way (``JobView.stays``) stays whatever there is, and nobody who runs has to give way because of that. So
    does one that can't be changed just now (``JobView.fixed``), but for a job of higher priority: it may do with less later.

    ``reluctant``: what those could do with that are better left as they are. It is all they need where one that runs would have to give way
    for want of room otherwise. ``later``: what those need in a few seconds whose plan is being changed just now (``JobView.busy``): nobody
    gives way for one that has room then.
    """
    found = _admit(views, needs, capacity, policy, later or {})
    if reluctant and "" in found.preempted.values():
        return _admit(views, {**needs, **reluctant}, capacity, policy, later or {})
    return found


def _admit(
    views: Sequence[JobView],
    needs: Mapping[str, Need],
    capacity: Resources,
    policy: Policy,
    later: Mapping[str, Need],
) -> Admission:
    room = _Room(to_milli(capacity.cores), capacity.memory, needs)
    known = [view for view in views if view.job in needs]
    running = sorted((v for v in known if v.now is not None), key=lambda v: (-v.priority, -v.ran_seconds, v.job))
    waiting = sorted((v for v in known if v.now is None), key=lambda v: place_in_queue(v, policy))
    inside: dict[str, JobView] = {}
    preempted: dict[str, str] = {}
    firm = [view for view in running if view.stays or view.fixed]
    for view in running:
        if view.stays or view.fixed or room.take(view.job):
            inside[view.job] = view
        else:
            preempted[view.job] = ""
    for view in firm:
        room.fill(view.job)
    outside: set[str] = set()
    soon_milli = sum(needs[job].milli - need.milli for job, need in later.items() if job in inside)
    soon_memory = sum(needs[job].memory - need.memory for job, need in later.items() if job in inside)
    weakest = _Weakest([view for view in inside.values() if not view.stays], room, policy)
    for at, view in enumerate(waiting):
        if not room.take(view.job):
            need = needs[view.job]
            if need.milli <= room.milli + soon_milli and need.memory <= room.memory + soon_memory:
                outside.add(view.job)
                continue
            victims = weakest.that_give_way_to(view)
            if not victims:
                outside.add(view.job)
                if view.waited_seconds >= policy.reserve_after_seconds:
                    outside.update(other.job for other in waiting[at + 1 :])
                    break
                continue
            for victim in victims:
                weakest.remove(inside[victim])
                if inside.pop(victim).now is None:
                    outside.add(victim)  # it was let in just now
                else:
                    preempted[victim] = view.job
            room.take(view.job)
        inside[view.job] = view
        weakest.add(view)
    return Admission(tuple(inside), tuple(view.job for view in waiting if view.job in outside), preempted)


class _Room:
    def __init__(self, milli: int, memory: int, needs: Mapping[str, Need]) -> None:
        self.milli, self.memory, self.needs = milli, memory, needs

    def take(self, job: str) -> bool:
        need = self.needs[job]
        if need.milli > self.milli or need.memory > self.memory:
            return False
        self.milli -= need.milli
        self.memory -= need.memory
        return True

    def fill(self, job: str) -> None:
        """Take what a job needs, whether or not there is room: then there is less than none."""
        self.milli -= self.needs[job].milli
        self.memory -= self.needs[job].memory

    def give_back(self, job: str) -> None:
        self.milli += self.needs[job].milli
        self.memory += self.needs[job].memory


class _Weakest:
    """Jobs that may have to give way, the least important first, of these the one that has run the shortest."""

    def __init__(self, inside: Sequence[JobView], room: _Room, policy: Policy) -> None:
        self._room, self._ratio = room, policy.preempt_ratio
        self._order = sorted(map(_weakness, inside))
        self._hopeless: list[tuple[float, Need]] = []
        """Priorities and needs for which all that give way aren't enough: nor for less priority and more need, until some have given
        way. (Who is let in takes from the room what he adds to that.)"""

    def add(self, view: JobView) -> None:
        bisect.insort(self._order, _weakness(view))

    def remove(self, view: JobView) -> None:
        del self._order[bisect.bisect_left(self._order, _weakness(view))]
        self._room.give_back(view.job)
        self._hopeless.clear()

    def that_give_way_to(self, view: JobView) -> list[str]:
        """Choose the jobs that give way to ``view``: nobody whose place isn't needed; empty when all of them together aren't enough."""
        needs, need = self._room.needs, self._room.needs[view.job]
        for priority, hopeless in self._hopeless:
            if view.priority <= priority and need.milli >= hopeless.milli and need.memory >= hopeless.memory:
                return []
        chosen = []
        milli, memory = need.milli - self._room.milli, need.memory - self._room.memory  # that there is too little of
        for priority, _, job in self._order:
            if priority * self._ratio > view.priority or (milli <= 0 and memory <= 0):
                break
            chosen.append(job)
            milli -= needs[job].milli
            memory -= needs[job].memory
        if milli > 0 or memory > 0:
            self._hopeless.append((view.priority, need))
            return []
        kept = []
        for job in reversed(chosen):
            if milli + needs[job].milli <= 0 and memory + needs[job].memory <= 0:
                milli += needs[job].milli  # it is enough without this one
                memory += needs[job].memory
            else:
                kept.append(job)
        return kept[::-1]


def _weakness(view: JobView) -> tuple[float, float, str]:
    return view.priority, view.ran_seconds, view.job
