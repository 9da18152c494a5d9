"""What a policy is told, and what it answers: plans for jobs. It is told no more than the brain is: requests, what was measured, what is
left to do, and what hosts have; nothing of what jobs are in truth (but for the oracle, ``tuned``, which says so)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.plans import Plan, RolePlan

__all__ = ["HostReport", "JobReport", "Measurement", "Policy", "Room", "with_counts"]

_ROUNDING = 1e-9


class Measurement(NamedTuple):
    """What was measured with a plan."""

    plan: Plan
    samples_per_second: float
    seconds: float
    """Seconds for which it was."""


class JobReport(NamedTuple):
    """What is known of a job."""

    name: str
    priority: float
    request: Plan
    """Plan that its user asks for."""
    present: Plan
    """Plan that it has; of one that waits for its first one, its request."""
    ready: bool
    """It trains, and no change of its plan is under way."""
    samples_left: float
    measured: tuple[Measurement, ...] = ()
    """Each plan once, the newest last."""
    worker_use: float = 0.0
    """CPU that its workers use of what they are given, now."""
    server_use: float = 0.0
    waits: bool = False
    """It has nothing yet, and waits for its first plan."""
    most_cores: float = math.inf
    """The most cores that all its nodes may have together."""

    @property
    def rate(self) -> float | None:
        """Samples/s measured with the present plan; None: nothing was."""
        return next((one.samples_per_second for one in self.measured if one.plan == self.present), None)


class HostReport(NamedTuple):
    """What a host has, and has left."""

    cores: float
    memory: int
    left_cores: float
    left_memory: int


class Policy(Protocol):
    """Decides what jobs get. Pure: the same reports give the same plans."""

    def first(self, job: JobReport, hosts: Sequence[HostReport]) -> Plan | None:
        """Return the plan that a job begins with that waits, which has room in what hosts have left; None: it is to wait. Asked in the
        order of arrival, whenever there may be room."""

    def plans(self, now: float, jobs: Sequence[JobReport], hosts: Sequence[HostReport]) -> Mapping[str, Plan]:
        """Return the plans that jobs are to have from now on, of those that are to have another one; those that wait are asked for by
        ``first``. Asked every 60 s."""


class Room:
    """What is left on hosts while nodes are tried on them: each where most cores are left, as the simulation places them."""

    def __init__(self, cores: Sequence[float], memory: Sequence[int]) -> None:
        self._cores: NDArray[np.float64] = np.array(cores, np.float64)
        self._memory: NDArray[np.int64] = np.array(memory, np.int64)

    @classmethod
    def left(cls, hosts: Sequence[HostReport]) -> Room:
        """Return what is free."""
        return cls([host.left_cores for host in hosts], [host.left_memory for host in hosts])

    @classmethod
    def whole(cls, hosts: Sequence[HostReport]) -> Room:
        """Return all that there is, as if no job had anything."""
        return cls([host.cores for host in hosts], [host.memory for host in hosts])

    def take(self, each: Resources) -> int | None:
        """Take room for a node; return its host, or None where there is no room."""
        if not len(self._cores):
            return None
        enough = (self._cores >= each.cores - _ROUNDING) & (self._memory >= each.memory)
        host = int(np.argmax(np.where(enough, self._cores, -1.0)))
        if not enough[host]:
            return None
        self._cores[host] -= each.cores
        self._memory[host] -= each.memory
        return host

    def take_all(self, plan: Plan) -> bool:
        """Take room for all nodes of a plan, servers first; False, and nothing is taken, if one finds none."""
        before = self._cores.copy(), self._memory.copy()
        nodes = [plan.ps.each] * plan.ps.count + [plan.worker.each] * plan.worker.count
        if all(self.take(each) is not None for each in nodes):
            return True
        self._cores, self._memory = before
        return False


def with_counts(request: Plan, workers: int, servers: int, hosts: Sequence[HostReport]) -> Plan | None:
    """Return a plan with other counts of nodes as large as its user asks for. Servers get what memory all of them together have in the
    request, divided evenly, so that fewer of them hold the same rows; None: no host has as much."""
    memory = math.ceil(request.ps.count * request.ps.each.memory / servers)
    if memory > max((host.memory for host in hosts), default=0):
        return None
    each = Resources(request.ps.each.cores, memory)
    return Plan(ps=RolePlan(servers, each), worker=RolePlan(workers, request.worker.each))
