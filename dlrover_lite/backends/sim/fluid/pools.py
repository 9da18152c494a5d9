"""Machines that come while jobs wait for room, and go when they have stood idle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dlrover_lite.backends.sim.clock import Event, EventClock
from dlrover_lite.backends.sim.fluid.places import Places
from dlrover_lite.backends.sim.physics.machines import Machine

__all__ = ["Pool", "Pools"]


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


class Pools:
    """The pools of a cluster, whose machines are those from a position on. ``say`` is told of each machine that comes or goes."""

    def __init__(
        self, places: Places, clock: EventClock, pools: Sequence[Pool], first: int, say: Callable[[int, str], None]
    ) -> None:
        self._places, self._clock, self._say = places, clock, say
        self._pool_of: dict[int, Pool] = {}
        self._coming: set[int] = set()
        self._idle: dict[int, Event] = {}
        for pool in pools:
            for number in range(pool.most):
                self._pool_of[first] = pool
                places.set_there(first, number < pool.least)
                first += 1
        if pools:
            places.emptied = self._emptied

    def wanted(self, cores: float) -> None:
        """Have as many machines come as hold what waits for room, of the first pools that have more."""
        left = cores - sum(self._pool_of[host].machine.cores for host in self._coming)
        for host, pool in self._pool_of.items():
            if left <= 0.0:
                return
            if not self._places.there[host] and host not in self._coming:
                self._coming.add(host)
                left -= pool.machine.cores
                self._clock.after(pool.grow_seconds, partial(self._comes, host))

    def _comes(self, host: int) -> None:
        self._coming.discard(host)
        self._places.set_there(host, True)
        self._emptied(host)
        self._say(host, "is there")

    def _emptied(self, host: int) -> None:
        pool = self._pool_of.get(host)
        if pool is None or math.isinf(pool.shrink_seconds):
            return
        if (before := self._idle.pop(host, None)) is not None:
            before.cancel()
        self._idle[host] = self._clock.after(pool.shrink_seconds, partial(self._goes, host, pool))

    def _goes(self, host: int, pool: Pool) -> None:
        """Give a machine back that has stood idle all the time, unless it is one of those that stay."""
        del self._idle[host]
        present = sum(bool(self._places.there[one]) for one, its in self._pool_of.items() if its is pool)
        if not self._places.is_empty(host) or present <= pool.least:
            return
        self._places.set_there(host, False)
        self._say(host, "is given back")
