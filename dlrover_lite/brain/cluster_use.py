"""What all jobs together have and use, by host, kept as they change: who decides for a thousand jobs doesn't add them all up for each.

Cores are counted in whole millionths, so that sums are exact, whoever came or changed first.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from dlrover_lite.brain.background_load import UsedCores
from dlrover_lite.brain.capacity import Capacity
from dlrover_lite.brain.job_tracker import RegisteredJob, used_of
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.demands import Demand
from dlrover_lite.protocol.hosts import Host, SharedRoom, largest_of, total_of

__all__ = ["ClusterUse"]

_PARTS = 1_000_000
"""Parts of a core that are counted: whole ones, so that a sum doesn't depend on the order."""
_REMEMBERED_SECONDS = 120.0
"""Seconds after which a job that has ended is forgotten: no interval that is told later began before it ended."""


class _Use(NamedTuple):
    """What one job has and uses, by host; "" where the host of a node isn't known. Cores in millionths."""

    held_cores: dict[str, int]
    held_memory: dict[str, int]
    used: dict[str, int]
    """Cores that its nodes used when they were measured with its plan; empty: they weren't yet."""
    unsure: dict[str, int]
    """Cores that they may have used beyond that: all that they had since they were measured last. Empty: they were, with its plan."""
    least: int
    demand: Demand


class _Past(NamedTuple):
    """What a job may have used that runs no longer."""

    until: float
    """Seconds since the epoch."""
    used: dict[str, int]


class ClusterUse:
    def __init__(self) -> None:
        self._of: dict[str, _Use] = {}
        self._held_cores, self._held_memory = Counter[str](), Counter[str]()
        self._used, self._unsure = Counter[str](), Counter[str]()
        self._past: dict[str, _Past] = {}
        """Jobs that have ended of late, or given way."""
        self._least = 0
        self._told: Counter[tuple[Host, ...]] = Counter()
        """Hosts as masters tell them, and how many of them do."""
        self._shared: Counter[tuple[Host, ...]] = Counter()
        """The same of hosts that jobs share, where what a job may have there depends on what others have."""
        self._there: tuple[tuple[Host, ...], Resources] | None = None
        """The hosts that are told of, and what they have together; None: others are told of since that was found."""
        self._left: tuple[Capacity, Capacity] | None = None
        """What ``left_of`` has found last, and of what; None: jobs have something else since."""
        self._own_cores = self._own_memory = 0
        """What jobs may have of which nobody knows more than that: together all of it."""
        self._room: dict[str, tuple[SharedRoom, Resources]] = {}
        """What masters tell of what others leave, and what there is by that for all of them; what was told last comes last. It is worked
        out when it is told, and stays: what jobs take and give back later changes nothing of it."""

    def put(self, known: RegisteredJob) -> None:
        """Take in a job as it is now, in place of what was known of it."""
        before = self._of.get(known.job)
        one = _use_of(known, before)
        if known.plan is None and known.waits_since is not None:
            one = self._let_go(one, known.job, known.waits_since)
        if before is not None and _is_told_alike(before.demand, one.demand) and before[:2] == one[:2]:
            self._count_used(before, -1)  # as nearly always: it has what it had, and used more or less of it
            self._count_used(one, 1)
            self._least += one.least - before.least
            self._of[known.job] = one
            return
        room = self._room.get(known.job)
        self._take_out(known.job)
        shared = one.demand.shared
        if shared is None or room is None or room[0] != shared:
            self._room.pop(known.job, None)
            if shared is not None and shared.left is not None:
                self._room[known.job] = shared, self._there_is(shared, shared.left)
        self._of[known.job] = one
        self._left = None
        self._held_cores.update(one.held_cores)
        self._held_memory.update(one.held_memory)
        self._count_used(one, 1)
        self._least += one.least
        self._count_hosts(one.demand, 1)

    def remove(self, job: str, *, at: float) -> None:
        """Forget a job, if it is known, that ended at this time (seconds since the epoch)."""
        if (one := self._of.get(job)) is not None:
            self._let_go(one, job, at)
        self._take_out(job)
        self._room.pop(job, None)

    def _let_go(self, one: _Use, job: str, at: float) -> _Use:
        """Remember what a job may have used that runs no longer since ``at``. Return what it uses now."""
        if used := _most_of(one):
            kept = {name: past for name, past in self._past.items() if past.until > at - _REMEMBERED_SECONDS}
            self._past = kept | {job: _Past(at, used)}
        return one._replace(used={}, unsure={})

    def _count_used(self, one: _Use, count: int) -> None:
        for counted, its in ((self._used, one.used), (self._unsure, one.unsure)):
            for host, cores in its.items():
                counted[host] += count * cores

    def _take_out(self, job: str) -> None:
        one = self._of.pop(job, None)
        if one is None:
            return
        self._left = None
        self._held_cores.subtract(one.held_cores)
        self._held_memory.subtract(one.held_memory)
        self._count_used(one, -1)
        self._least -= one.least
        self._count_hosts(one.demand, -1)

    def _count_hosts(self, demand: Demand, count: int) -> None:
        """Count the hosts that a job tells of, or with -1 no longer."""
        shared = demand.shared
        told, hosts = (self._told, demand.hosts) if shared is None else (self._shared, shared.hosts)
        told[hosts] += count
        if not told[hosts]:
            del told[hosts]
        self._there = None
        if shared is not None and not hosts:
            own = total_of(demand.hosts)
            self._own_cores += count * round(own.cores * _PARTS)
            self._own_memory += count * own.memory

    def _there_is(self, shared: SharedRoom, left: Resources) -> Resources:
        """Return what there is for all jobs by what the master of one, which isn't counted now, tells: what it may have, and what the
        others have."""
        held = Resources(self._held_cores.total() / _PARTS, self._held_memory.total())
        there = Resources(left.cores + held.cores, left.memory + held.memory)
        return there if shared.most is None else there.within(shared.most)

    def used(self, host: str, *, without: str, since: float) -> UsedCores:
        """Return the cores that the nodes of all jobs but one used on a host at any time since ``since`` (seconds since the epoch); a node
        of which the host isn't known may be there."""
        own, names = self._of.get(without), {host, ""}
        used, unsure = (
            sum(counted[name] - its.get(name, 0) for name in names)
            for counted, its in ((self._used, own.used if own else {}), (self._unsure, own.unsure if own else {}))
        )
        past = [one.used for job, one in self._past.items() if one.until > since and job != without]
        unsure += sum(its.get(name, 0) for its in past for name in names)
        return UsedCores(used / _PARTS, (used + unsure) / _PARTS)

    def least_cores(self, *, without: str) -> float:
        """Return the cores that all jobs but one keep at the least."""
        return (self._least - (self._of[without].least if without in self._of else 0)) / _PARTS

    def left_of(self, capacity: Capacity) -> Capacity:
        """Return what no job has."""
        if self._left is None or self._left[0] != capacity:
            hosts = tuple(
                Host(host.name, self._less(host.resources, None if len(capacity.hosts) == 1 else host.name))
                for host in capacity.hosts
            )
            self._left = capacity, Capacity(self._less(capacity.total, None), hosts)
        return self._left[1]

    def _less(self, resources: Resources, host: str | None) -> Resources:
        """Return what is left beside what is held on a host; None: on all of them."""
        cores, memory = (held.total() if host is None else held[host] for held in (self._held_cores, self._held_memory))
        return Resources(max(0.0, resources.cores - cores / _PARTS), max(0, resources.memory - memory))

    def hosts(self, also: Demand | None = None) -> tuple[Host, ...]:
        """Return the hosts that there are. Masters tell of a host what their job may use there, or all jobs: the most that any of them
        tells counts."""
        return self._hosts_with(also)[0]

    def _hosts_with(self, also: Demand | None) -> tuple[tuple[Host, ...], Resources]:
        """Return the hosts, and what they have together."""
        if also is not None:
            found = self._found_hosts(also)
            return found, total_of(found)
        if self._there is None:
            found = self._found_hosts(None)
            self._there = found, total_of(found)
        return self._there

    def _found_hosts(self, also: Demand | None) -> tuple[Host, ...]:
        more = () if also is None else also.hosts if also.shared is None else also.shared.hosts
        told = [host for hosts in [*self._told, *self._shared, more] for host in hosts]
        names = sorted({host.name for host in told} - {""}) or [""]
        if len(names) == 1:
            return (Host(names[0], largest_of(told)),)
        named: dict[str, list[Host]] = {name: [] for name in names}
        for host in told:
            if host.name:
                named[host.name].append(host)
        return tuple(Host(name, largest_of(its)) for name, its in named.items())

    def capacity(self, liked: Resources, also: Demand | None = None) -> Capacity:
        """Return what there is for all jobs together: as the person likes (0: no preference), or what the hosts have, as far as they share
        it. ``also``: what a job asks for that comes."""
        hosts, there = self._hosts_with(also)
        if (room := self._shared_room(also)) is not None:
            there = there.within(room) if there.cores else room
        total = Resources(liked.cores or there.cores, liked.memory or there.memory)
        return Capacity(total, hosts if len(hosts) > 1 else (Host(hosts[0].name, total),))

    def _shared_room(self, also: Demand | None) -> Resources | None:
        """Return what there is for all jobs that share it, by who has told it last; None: hosts say it."""
        told = None if also is None else also.shared
        if told is not None and told.left is not None:
            return self._there_is(told, told.left)
        if self._room:
            return next(reversed(self._room.values()))[1]
        own = Resources(self._own_cores / _PARTS, self._own_memory)
        if also is not None and told is not None and not told.hosts:
            more = total_of(also.hosts)
            own = Resources(own.cores + more.cores, own.memory + more.memory)
        return own if own.cores else None


def _is_told_alike(before: Demand, now: Demand) -> bool:
    """Say whether what is told of hosts is as before."""
    return now is before or (now.hosts == before.hosts and now.shared == before.shared)


def _use_of(known: RegisteredJob, before: _Use | None) -> _Use:
    """``before``: what was known of the job, if anything was."""
    held_cores, held_memory, used = dict[str, int](), dict[str, int](), dict[str, int]()
    for host, resources in known.held():
        held_cores[host] = held_cores.get(host, 0) + round(resources.cores * _PARTS)
        held_memory[host] = held_memory.get(host, 0) + resources.memory
    if known.profiles:
        for host, cores in used_of(known.profiles[-1]):
            used[host] = used.get(host, 0) + round(cores * _PARTS)
    unsure = dict[str, int]()
    if not known.present:
        each = (held_cores, used, {} if before is None else _most_of(before))
        unsure, used = {host: max(its.get(host, 0) for its in each) for host in set().union(*each)}, {}
    return _Use(held_cores, held_memory, used, unsure, round(known.least_cores * _PARTS), known.demand)


def _most_of(one: _Use) -> dict[str, int]:
    """Return the most that a job may have used on each host."""
    return {host: one.used.get(host, 0) + one.unsure.get(host, 0) for host in {**one.used, **one.unsure}}
