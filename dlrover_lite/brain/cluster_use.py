"""What all jobs together have and use, by host, kept as they change: who decides for a thousand jobs doesn't add them all up for each.

Cores are counted in whole millionths, so that sums are exact, whoever came or changed first.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from dlrover_lite.brain.capacity import Capacity
from dlrover_lite.brain.job_tracker import RegisteredJob, used_of
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host, largest_of, total_of

__all__ = ["ClusterUse"]

_PARTS = 1_000_000
"""Parts of a core that are counted: whole ones, so that a sum doesn't depend on the order."""


class _Use(NamedTuple):
    """What one job has and uses, by host; "" where the host of a node isn't known. Cores in millionths."""

    held_cores: Counter[str]
    held_memory: Counter[str]
    used: Counter[str]
    least: int
    hosts: tuple[Host, ...]


class ClusterUse:
    def __init__(self) -> None:
        self._of: dict[str, _Use] = {}
        self._held_cores, self._held_memory, self._used = Counter[str](), Counter[str](), Counter[str]()
        self._least = 0
        self._told: Counter[tuple[Host, ...]] = Counter()
        """Hosts as masters tell them, and how many of them do."""

    def put(self, known: RegisteredJob) -> None:
        """Take in a job as it is now, in place of what was known of it."""
        self.remove(known.job)
        one = self._of[known.job] = _use_of(known)
        self._held_cores.update(one.held_cores)
        self._held_memory.update(one.held_memory)
        self._used.update(one.used)
        self._least += one.least
        self._told[one.hosts] += 1

    def remove(self, job: str) -> None:
        """Forget a job, if it is known."""
        one = self._of.pop(job, None)
        if one is None:
            return
        self._held_cores.subtract(one.held_cores)
        self._held_memory.subtract(one.held_memory)
        self._used.subtract(one.used)
        self._least -= one.least
        self._told[one.hosts] -= 1
        if not self._told[one.hosts]:
            del self._told[one.hosts]

    def used(self, host: str, *, without: str) -> float:
        """Return the cores that the nodes of all jobs but one used on a host; a node of which the host isn't known may be there."""
        own = self._of[without].used if without in self._of else Counter[str]()
        return sum(self._used[name] - own[name] for name in {host, ""}) / _PARTS

    def least_cores(self, *, without: str) -> float:
        """Return the cores that all jobs but one keep at the least."""
        return (self._least - (self._of[without].least if without in self._of else 0)) / _PARTS

    def left_of(self, capacity: Capacity) -> Capacity:
        """Return what no job has."""
        hosts = tuple(
            Host(host.name, self._less(host.resources, None if len(capacity.hosts) == 1 else host.name))
            for host in capacity.hosts
        )
        return Capacity(self._less(capacity.total, None), hosts)

    def _less(self, resources: Resources, host: str | None) -> Resources:
        """Return what is left beside what is held on a host; None: on all of them."""
        cores, memory = (held.total() if host is None else held[host] for held in (self._held_cores, self._held_memory))
        return Resources(max(0.0, resources.cores - cores / _PARTS), max(0, resources.memory - memory))

    def hosts(self, also: tuple[Host, ...] = ()) -> tuple[Host, ...]:
        """Return the hosts that there are. Masters tell of a host what their job may use there: the most that any of them tells counts."""
        told = [host for hosts in [*self._told, also] for host in hosts]
        names = sorted({host.name for host in told} - {""}) or [""]
        if len(names) == 1:
            return (Host(names[0], largest_of(told)),)
        named: dict[str, list[Host]] = {name: [] for name in names}
        for host in told:
            if host.name:
                named[host.name].append(host)
        return tuple(Host(name, largest_of(its)) for name, its in named.items())

    def capacity(self, liked: Resources, also: tuple[Host, ...] = ()) -> Capacity:
        """Return what there is for all jobs together: as the person likes (0: no preference), or what the hosts have."""
        hosts = self.hosts(also)
        there = total_of(hosts)
        total = Resources(liked.cores or there.cores, liked.memory or there.memory)
        return Capacity(total, hosts if len(hosts) > 1 else (Host(hosts[0].name, total),))


def _use_of(known: RegisteredJob) -> _Use:
    held_cores, held_memory, used = Counter[str](), Counter[str](), Counter[str]()
    for host, resources in known.held():
        held_cores[host] += round(resources.cores * _PARTS)
        held_memory[host] += resources.memory
    if known.profiles:
        for host, cores in used_of(known.profiles[-1]):
            used[host] += round(cores * _PARTS)
    return _Use(held_cores, held_memory, used, round(known.least_cores * _PARTS), known.demand.hosts)
