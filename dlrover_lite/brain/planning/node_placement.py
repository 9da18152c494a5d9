"""Which hosts a plan's nodes run on: parameter servers are spread evenly over the fastest hosts, workers are packed beside them.

All workers wait for every PS, which has one thread: on a fast host it is worth more than a worker is, and it goes to one that has room for
it with the next change of plan. It takes its rows along, so it stays on its host unless another one is faster. Workers hold nothing: one
may end here, and another begin elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.brain.planning.plan_grid import MILLI, Candidate, FloatArray, IntArray, Lattice, MemoryNeed, to_milli
from dlrover_lite.protocol.hosts import Host, HostNodes

__all__ = ["HostSpace", "NodeSpeeds", "fitting_on", "node_speeds", "place", "worker_places"]

_AS_FAST = 0.9
"""Speed of a host, as a share of the fastest one's, from which on it is as good for a PS: measured speeds are off by a few hundredths."""


class HostSpace(NamedTuple):
    """What each host has for the nodes of one job, and how many of these are there, [hosts] each: the fastest first, of
    these the ones with the most cores. Those that have as much, and are about as fast, follow the first one of them."""

    names: tuple[str, ...]
    milli: IntArray
    """Thousandths of a core."""
    memory: IntArray
    """Bytes."""
    workers: IntArray
    servers: IntArray
    alike: IntArray
    """Number of hosts that an entry stands for."""
    speeds: FloatArray
    """Speed of a core."""
    speed_class: IntArray
    """Numbers of the hosts' classes, from 0: those of a class are about as fast as its fastest one, and faster than
    those of the next."""

    @staticmethod
    def of(
        hosts: Sequence[Host], nodes: Sequence[HostNodes] = (), speeds: Mapping[str, float] | None = None
    ) -> HostSpace:
        """Take in what ``hosts`` have for the job, and its ``nodes``: those on other hosts don't count. ``speeds``: of a core of each host;
        1 for those not named."""
        fast = {host.name: (speeds or {}).get(host.name, 1.0) for host in hosts}
        classes = _speed_classes(fast.values())

        def kind(host: Host) -> tuple[int, int, int]:
            return classes[fast[host.name]], to_milli(host.resources.cores), host.resources.memory

        order = sorted(
            hosts, key=lambda host: (-fast[host.name], -host.resources.cores, -host.resources.memory, host.name)
        )
        first: dict[tuple[int, int, int], int] = {}
        for at, host in enumerate(order):
            first.setdefault(kind(host), at)
        order.sort(key=lambda host: first[kind(host)])  # side by side, so that PS are spread as if they were grouped
        here = {one.host: one for one in nodes}
        each = [here.get(host.name, HostNodes(host.name)) for host in order]
        return HostSpace(
            tuple(host.name for host in order),
            np.array([to_milli(host.resources.cores) for host in order], np.int64),
            np.array([host.resources.memory for host in order], np.int64),
            np.array([one.workers for one in each], np.int64),
            np.array([one.servers for one in each], np.int64),
            np.ones(len(order), np.int64),
            np.array([fast[host.name] for host in order]),
            np.array([classes[fast[host.name]] for host in order], np.int64),
        )

    def grouped(self) -> HostSpace:
        """Return the same with one entry for all hosts of a class that have as much, and as many nodes. Their speed is
        the mean, their class what it was: by their means, hosts may seem about as fast that aren't."""
        columns = np.stack([self.milli, self.memory, self.workers, self.servers, self.speed_class])
        _, first, inverse, alike = np.unique(
            columns, axis=1, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)
        speeds = (np.bincount(inverse.ravel(), self.speeds) / alike)[order]
        first = first[order]
        names = tuple(self.names[at] for at in first.tolist())
        milli, memory, workers, servers, classes = columns[:, first]
        return HostSpace(names, milli, memory, workers, servers, alike[order], speeds, classes)


def _speed_classes(speeds: Iterable[float]) -> dict[float, int]:
    """Number the class of each speed, as ``HostSpace.speed_class`` has it."""
    found: dict[float, int] = {}
    fastest, number = math.inf, -1
    for speed in sorted(speeds, reverse=True):
        if speed < fastest * _AS_FAST:
            fastest, number = speed, number + 1
        found[speed] = number
    return found


def worker_places(
    servers: IntArray, worker_cores: FloatArray, ps_cores: FloatArray, need: MemoryNeed, space: HostSpace
) -> IntArray:
    """Compute how many workers of so many cores find a place on the hosts beside so many PS; 0 where a PS finds none. Arguments
    broadcast."""
    spread = _spread(servers, ps_cores, need, space)
    rooms, beside_one_more = (_rooms(spread.servers + more, worker_cores, spread, need, space) for more in (0, 1))
    found = ((space.alike - spread.with_more) * rooms + spread.with_more * beside_one_more).sum(axis=-1)
    return np.asarray(np.where(spread.fits, found, 0), np.int64)


def fitting_on(lattice: Lattice, need: MemoryNeed, most_bytes: int | None, space: HostSpace | None) -> IntArray:
    """Compute ``Lattice.fitting`` for nodes that all have a place; ``space`` None: there is only one host. With several it is by the sizes
    of workers and of PS too, (P, A, S)."""
    anywhere = lattice.fitting(need, most_bytes)
    if space is None:
        return anywhere
    servers = lattice.servers[:, None, None]
    return np.minimum(anywhere, worker_places(servers, lattice.worker_sizes[:, None], lattice.ps_cores, need, space))


def place(plan: Candidate, need: MemoryNeed, space: HostSpace) -> tuple[HostNodes, ...] | None:
    """Say how many nodes of the plan each host gets, those that get none left out; None when not all find a place. ``space``: not grouped.

    Workers stay where they are as far as there is room. Where some have to leave, those hosts are emptied first that have the fewest; more
    go where nodes of the job are already, and of these hosts to the fullest, so that other jobs find large pieces.
    """
    _, p, worker_cores, ps_cores = plan.parts()
    spread = _spread(p.astype(np.int64), ps_cores, need, space)
    servers = (spread.servers + spread.with_more)[0]
    rooms = _rooms(spread.servers + spread.with_more, worker_cores, spread, need, space)[0]
    if not spread.fits[0] or rooms.sum() < plan.workers:
        return None
    workers = np.minimum(space.workers, rooms)
    missing = plan.workers - int(workers.sum())
    hosts = range(len(workers))
    if missing < 0:
        order = sorted(hosts, key=lambda at: (workers[at], -at))
    else:
        order = sorted(hosts, key=lambda at: (workers[at] + servers[at] == 0, rooms[at] - workers[at], at))
    for at in order:
        step = int(np.clip(missing, -workers[at], rooms[at] - workers[at]))
        workers[at] += step
        missing -= step
    counts = zip(space.names, workers.tolist(), servers.tolist(), strict=True)
    return tuple(HostNodes(name, w, p) for name, w, p in counts if w or p)


class _Spread(NamedTuple):
    """PS on hosts, […, hosts] each but for ``fits`` […]."""

    servers: IntArray
    """Number of PS on each host."""
    with_more: IntArray
    """Number of the hosts that an entry stands for that have one more."""
    fits: NDArray[np.bool_]
    """All PS have a place."""
    milli: IntArray
    """Thousandths of a core of each PS, […, 1]."""
    memory: IntArray
    """Bytes of each PS, […, 1]."""


def _spread(servers: IntArray, ps_cores: FloatArray, need: MemoryNeed, space: HostSpace) -> _Spread:
    """Spread PS of one size over the fastest hosts with room, evenly over those that are about as fast. Those that are on hosts as fast as
    that already stay there; of fewer, those leave first that are where the most are."""
    milli = np.rint(ps_cores * MILLI).astype(np.int64)[..., None]
    memory = np.asarray(need.per_ps(servers), np.int64)[..., None]
    most = np.minimum(space.milli // milli, space.memory // np.maximum(memory, 1))
    servers = np.broadcast_to(servers, most.shape[:-1])
    low, high, classes = np.zeros_like(most), np.zeros_like(most), space.speed_class
    left = servers
    for number in range(int(classes[-1]) + 1):
        alike = np.where(classes == number, space.alike, 0)
        of_class = np.minimum(left, (most * alike).sum(axis=-1))
        left = left - of_class
        all_stay = (of_class >= (space.servers * alike).sum())[..., None]
        low = np.where((classes == number) & all_stay, space.servers, low)
        of_each = np.where(all_stay, most, np.minimum(most, space.servers))
        high = np.where(classes == number, of_each, high)
    stay = (low <= high).all(axis=-1)
    high = np.maximum(low, np.minimum(high, servers[..., None]))
    counts, with_more = low, np.zeros_like(low)
    for number in range(int(classes[-1]) + 1):
        within = np.where(classes <= number, high, low)
        counts, with_more = _filled(counts, with_more, within, servers, space)
    left = servers - (counts * space.alike).sum(axis=-1)
    return _Spread(counts, with_more, stay & (with_more.sum(axis=-1) == left), milli, memory)


def _filled(
    counts: IntArray, with_more: IntArray, high: IntArray, servers: IntArray, space: HostSpace
) -> tuple[IntArray, IntArray]:
    """Fill hosts with PS to a level, which rises as long as there are PS for all that are below it, up to ``high`` on each. Return how many
    are on each, and how many hosts of an entry have one more. ``with_more``: where the last of the PS are already."""
    low, top = counts, np.maximum(counts, high)
    placed = (counts * space.alike).sum(axis=-1) + with_more.sum(axis=-1) >= servers
    level, highest = np.zeros(servers.shape, np.int64), np.where(placed, 0, high.max(axis=-1))
    while (level < highest).any():  # the highest level with no more PS than there are
        middle = (level + highest + 1) // 2
        enough = (np.clip(middle[..., None], low, top) * space.alike).sum(axis=-1) <= servers
        level, highest = np.where(enough, middle, level), np.where(enough, highest, middle - 1)
    counts, higher = (np.clip(level[..., None] + more, low, top) for more in (0, 1))
    left = servers - (counts * space.alike).sum(axis=-1)
    waiting = np.where(higher > counts, space.alike, 0)
    more = np.clip(left[..., None] - (np.cumsum(waiting, axis=-1) - waiting), 0, waiting)
    return counts, np.where(placed[..., None], with_more, more)


class NodeSpeeds(NamedTuple):
    """Speeds of a job's nodes, [numbers of PS] each."""

    ps: FloatArray
    """Mean over the PS."""
    workers: FloatArray
    """Mean over the cores that PS leave."""


def node_speeds(space: HostSpace, servers: IntArray, ps_cores: float) -> NodeSpeeds:
    """Compute the speeds of nodes beside each other for these numbers of PS [P] of so many cores, whatever memory they need: PS that find
    no place count as those that do."""
    spread = _spread(servers, np.full(len(servers), ps_cores), MemoryNeed(), space)
    on = spread.servers * space.alike + spread.with_more
    power = np.maximum(space.milli * space.alike - on * spread.milli, 0)
    mean = float(np.average(space.speeds, weights=space.alike))
    of_ps, of_workers = (
        np.divide((many * space.speeds).sum(axis=-1), total, out=np.full(len(servers), mean), where=total > 0)
        for many, total in ((on, on.sum(axis=-1)), (power, power.sum(axis=-1)))
    )
    return NodeSpeeds(of_ps, of_workers)


def _rooms(
    servers: IntArray, worker_cores: FloatArray, spread: _Spread, need: MemoryNeed, space: HostSpace
) -> IntArray:
    """Compute the workers that have a place beside so many PS on each host, […, hosts]."""
    worker_milli = np.rint(worker_cores * MILLI).astype(np.int64)[..., None]
    rooms = (space.milli - servers * spread.milli) // worker_milli
    if need.worker:
        rooms = np.minimum(rooms, (space.memory - servers * spread.memory) // need.worker)
    return np.maximum(rooms, 0)
