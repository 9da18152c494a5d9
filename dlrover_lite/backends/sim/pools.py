"""Machines that come while something waits for room, and go when they have stood idle, as a cluster's autoscaler has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from dlrover_lite.backends.sim.clock import Event, EventClock
from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.core.units import Resources

__all__ = ["Pool", "Pools"]

Host = TypeVar("Host", bound=Hashable)
Host_contra = TypeVar("Host_contra", contravariant=True)


@dataclass(frozen=True)
class Pool:
    """Machines that are alike."""

    machine: Machine
    least: int
    """Number of those that stay."""
    most: int
    grow_seconds: float = 120.0
    """Seconds from when a job finds no room until another machine is there."""
    shrink_seconds: float = 600.0
    """Seconds for which one stands idle until it is given back."""


class _Machines(Protocol[Host_contra]):
    def is_there(self, host: Host_contra, /) -> bool: ...

    def set_there(self, host: Host_contra, there: bool, /) -> None: ...

    def is_empty(self, host: Host_contra, /) -> bool: ...


class Pools(Generic[Host]):
    """The pools of a cluster. ``pool_of``: the pool of each machine that may come and go, of each pool those first that stay. ``say`` is
    told of each machine that comes or goes."""

    def __init__(
        self,
        machines: _Machines[Host],
        clock: EventClock,
        pool_of: Mapping[Host, Pool],
        say: Callable[[Host, str], None] = lambda host, what: None,
    ) -> None:
        self._machines, self._clock, self._say, self._pool_of = machines, clock, say, dict(pool_of)
        self._coming: set[Host] = set()
        self._idle: dict[Host, Event] = {}
        present: dict[int, int] = {}
        for host, pool in self._pool_of.items():
            present[id(pool)] = present.get(id(pool), 0) + 1  # two pools may be alike
            machines.set_there(host, present[id(pool)] <= pool.least)

    def wanted(self, together: Resources) -> None:
        """Have as many machines come as hold what waits for room, of the first pools that have more."""
        coming = [self._pool_of[host].machine for host in self._coming]
        cores = together.cores - sum(machine.cores for machine in coming)
        memory = together.memory - sum(machine.memory for machine in coming)
        for host, pool in self._pool_of.items():
            if cores <= 0.0 and memory <= 0:
                return
            if not self._machines.is_there(host) and host not in self._coming:
                self._coming.add(host)
                cores -= pool.machine.cores
                memory -= pool.machine.memory
                self._clock.after(pool.grow_seconds, partial(self._comes, host))

    def could_hold(self, each: Resources) -> bool:
        """Say whether a machine of a pool, with nothing on it, has so much."""
        machines = [pool.machine for pool in set(self._pool_of.values())]
        return any(each.cores <= one.cores and each.memory <= one.memory for one in machines)

    def _comes(self, host: Host) -> None:
        self._coming.discard(host)
        self._machines.set_there(host, True)
        self.emptied(host)
        self._say(host, "is there")

    def emptied(self, host: Host) -> None:
        """Take note that nothing is on a machine any more."""
        pool = self._pool_of.get(host)
        if pool is None or math.isinf(pool.shrink_seconds):
            return
        if (before := self._idle.pop(host, None)) is not None:
            before.cancel()
        self._idle[host] = self._clock.after(pool.shrink_seconds, partial(self._goes, host, pool))

    def _goes(self, host: Host, pool: Pool) -> None:
        """Give a machine back that has stood idle all the time, unless it is one of those that stay."""
        del self._idle[host]
        present = sum(self._machines.is_there(one) for one, its in self._pool_of.items() if its is pool)
        if not self._machines.is_empty(host) or present <= pool.least:
            return
        self._machines.set_there(host, False)
        self._say(host, "is given back")
