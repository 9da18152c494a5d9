"""Which jobs may train now, each with at least its smallest plan; the others queue, and age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dlrover_lite.brain.job_view import JobView, Policy
from dlrover_lite.brain.lattice import to_milli
from dlrover_lite.units import Resources

__all__ = ["Admission", "Need", "admit"]


class Need(NamedTuple):
    """What a job takes at the least."""

    milli: int
    """Thousandths of a core."""
    memory: int


class Admission(NamedTuple):
    admitted: tuple[str, ...]
    """In the order they were let in."""
    queued: tuple[str, ...]
    """First in the queue first."""
    preempted: Mapping[str, str]
    """Job: the one that takes its place; "" if it gives way to nobody, as there is less than there was."""


def aged_priority(view: JobView, policy: Policy) -> float:
    return view.priority * (1 + view.waited_seconds / policy.ageing_seconds)


def admit(views: Sequence[JobView], needs: Mapping[str, Need], capacity: Resources, policy: Policy) -> Admission:
    """Of the jobs that ``needs`` names.

    Jobs that run stay, the most important first, as long as there is room. Then those that wait, by aged priority; one that doesn't fit may
    preempt jobs of ``preempt_ratio`` times less priority (age doesn't count there: it must not stop those that run). One that has to
    wait lets those behind it pass, until it has waited for ``reserve_after_seconds``.
    """
    room = _Room(to_milli(capacity.cores), capacity.memory, needs)
    known = [view for view in views if view.job in needs]
    running = sorted((v for v in known if v.now is not None), key=lambda v: (-v.priority, -v.ran_seconds, v.job))
    waiting = sorted(
        (v for v in known if v.now is None), key=lambda v: (-aged_priority(v, policy), -v.waited_seconds, v.job)
    )
    inside: dict[str, JobView] = {}
    preempted: dict[str, str] = {}
    for view in running:
        if room.take(view.job):
            inside[view.job] = view
        else:
            preempted[view.job] = ""
    queued: list[str] = []
    for at, view in enumerate(waiting):
        if not room.take(view.job):
            victims = _victims(view, inside, room, policy)
            for victim in victims:
                room.give_back(victim)
                preempted[victim] = view.job
                del inside[victim]
            if not victims:
                queued.append(view.job)
                if view.waited_seconds >= policy.reserve_after_seconds:
                    queued += [other.job for other in waiting[at + 1 :]]
                    break
                continue
            room.take(view.job)
        inside[view.job] = view
    return Admission(tuple(inside), tuple(queued), preempted)


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

    def give_back(self, job: str) -> None:
        self.milli += self.needs[job].milli
        self.memory += self.needs[job].memory

    def lacks(self, job: str, without: Sequence[str]) -> bool:
        """Whether there isn't enough for ``job`` even without these others."""
        need = self.needs[job]
        return need.milli > self.milli + sum(
            self.needs[other].milli for other in without
        ) or need.memory > self.memory + sum(self.needs[other].memory for other in without)


def _victims(view: JobView, inside: Mapping[str, JobView], room: _Room, policy: Policy) -> list[str]:
    """Who gives way to ``view``: the least important, of these the one that has run the shortest, and nobody whose place isn't needed."""
    weaker = [other for other in inside.values() if other.priority * policy.preempt_ratio <= view.priority]
    weaker.sort(key=lambda other: (other.priority, other.ran_seconds, other.job))
    chosen: list[str] = []
    for other in weaker:
        if not room.lacks(view.job, chosen):
            break
        chosen.append(other.job)
    if room.lacks(view.job, chosen):
        return []
    for job in list(reversed(chosen)):
        rest = [other for other in chosen if other != job]
        if not room.lacks(view.job, rest):
            chosen = rest
    return chosen
