"""Training on several hosts as queues: the truth that the brain's decisions are measured against. It shares no formula with the brain.

Minibatches circulate. Each waits until it has been read, is pulled from every PS, computed by its worker, and pushed to every PS. Workers
and PS serve one minibatch after the other, first come first served. CPU limits are those of the kernel: so many seconds in each period of
0.1 s, at full speed until they are used up. Nodes that run share the cores of their host evenly, and work as fast as their host is. Part
of a worker's work can be spread over the whole cores of its limit; a PS has one thread. What goes from one host to another passes the
card of the first and then that of the other, one transfer after the other on each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.core.kernels.compile import kernel

__all__ = ["Costs", "Node", "Window", "run"]

Floats = NDArray[np.float64]

_PERIOD = 0.1
_NOTHING = 1e-9
_READ_AHEAD = 2
"""Number of minibatches that are read ahead for each worker."""
_WARM_SECONDS = 0.5


@dataclass(frozen=True)
class Node:
    """A worker or a PS. ``host``: position of its host."""

    cores: float
    host: int = 0


@dataclass(frozen=True)
class Costs:
    """CPU seconds of a minibatch, on a host of speed 1, apart from what is said otherwise."""

    worker: float = 0.020
    worker_request: float = 0.0008
    """For each PS that is asked."""
    parallel: float = 0.8
    """Share of a worker's work that is spread over its cores."""
    ps: float = 0.008
    """CPU seconds of all PS together."""
    ps_request: float = 0.0012
    latency: float = 0.003
    """Seconds that a minibatch waits for nothing, on its way."""
    variation: float = 0.15
    """Relative standard deviation of each piece of work."""
    batch_size: int = 1024
    depth: int = 2
    """Minibatches under way in a worker."""
    samples_read_per_second: float = 1e12
    """The most samples that can be read, by all workers together."""
    sample_bytes: float = 1_664.0
    """Bytes of a sample's rows: they travel to the worker, and gradients back."""


class Window(NamedTuple):
    """What was measured of ``seconds`` of training."""

    seconds: float
    minibatches: NDArray[np.int64]
    """[workers]"""
    cpu_seconds: Floats
    """[workers + PS], workers first; as the two that follow."""
    busy_seconds: Floats
    throttled_seconds: Floats
    waited_seconds: Floats
    """Seconds that minibatches waited at a node, added up."""
    read_seconds: Floats
    """[workers]: seconds in which a worker's reader was at work, or waited for its turn at what all read from; evenly divided."""
    moved_bytes: Floats
    """[hosts]: bytes that came from other hosts."""
    moved_seconds: Floats
    """[hosts]: seconds in which they came."""


def run(
    workers: Sequence[Node],
    servers: Sequence[Node],
    machines: Sequence[Machine],
    costs: Costs,
    *,
    seed: int,
    seconds: float = 4.0,
    warm_seconds: float = _WARM_SECONDS,
    shares: Sequence[float] = (),
) -> Window:
    """Train for ``seconds``, after some to warm up. ``shares``: of the work on rows that each PS has; empty: even."""
    nodes = [*workers, *servers]
    measured = _run(
        len(workers),
        np.array([node.cores for node in nodes]),
        np.array([node.host for node in nodes]),
        np.array([[one.cores, one.speed, one.bytes_per_second] for one in machines]),
        np.array(list(shares) or [1 / len(servers)] * len(servers)),
        np.array(
            [
                costs.worker,
                costs.worker_request,
                costs.parallel,
                costs.ps,
                costs.ps_request,
                costs.latency,
                costs.variation,
                costs.batch_size / costs.samples_read_per_second,
                costs.sample_bytes * costs.batch_size,
            ]
        ),
        costs.depth,
        seed,
        warm_seconds,
        seconds,
    )
    return Window(seconds, *measured)


# A minibatch's part at a PS is number m * (P + 1) + s; the minibatch as a whole (read, computed, on its way) has s = P. Each part is at one
# station at a time: the workers' CPUs, the PS', each host's card out and in.


@kernel
def _add(station, item, work, first, last, after, works, left):  # type: ignore[no-untyped-def]
    works[item] = work
    after[item] = -1
    if first[station] < 0:
        first[station] = item
        left[station] = work
    else:
        after[last[station]] = item
    last[station] = item


@kernel
def _take(station, first, after, works, left):  # type: ignore[no-untyped-def]
    item = first[station]
    first[station] = after[item]
    left[station] = works[first[station]] if first[station] >= 0 else 0.0
    return item


@kernel
def _work(seconds, variation):  # type: ignore[no-untyped-def]
    if variation <= 0.0:
        return seconds
    return seconds * np.random.gamma(1.0 / variation**2, variation**2)


@kernel
def _speedup(cores, parallel):  # type: ignore[no-untyped-def]
    """How much faster work is done by the threads of so many cores than by one."""
    threads = max(1.0, np.floor(cores + 1e-9))
    return 1.0 / (1.0 - parallel + parallel / threads)


@kernel
def _run(n_workers, cores, host, machines, shares, costs, depth, seed, warm, seconds):  # type: ignore[no-untyped-def]  # noqa: PLR0915
    np.random.seed(seed)
    n_nodes, n_hosts = cores.shape[0], machines.shape[0]
    n_servers = n_nodes - n_workers
    worker_cost, request_cost, parallel, ps_cost, ps_request, latency, variation, read_time, batch_bytes = costs
    n_stations = n_nodes + 2 * n_hosts  # nodes, cards out, cards in
    total = n_workers * depth
    width = n_servers + 1
    first, last = np.full(n_stations, -1), np.full(n_stations, -1)
    left, waiting = np.zeros(n_stations), np.zeros(n_stations, np.int64)
    after, works = np.full(total * width, -1), np.zeros(total * width)
    pushes = np.zeros(total, np.bool_)
    missing = np.zeros(total, np.int64)
    fast = np.ones(n_nodes)
    for node in range(n_workers):
        fast[node] = _speedup(cores[node], parallel)
    # on its way without a station: sorted by arrival, since the delay is the same for all
    way_item, way_at = np.zeros(total, np.int64), np.zeros(total)
    way_first, way_count = 0, 0
    unread = np.zeros(total, np.int64)
    unread_first, unread_count = 0, 0
    buffered, read_left = _READ_AHEAD * n_workers, read_time
    done = np.zeros(n_workers, np.int64)
    used, busy, throttled, waited = np.zeros(n_nodes), np.zeros(n_nodes), np.zeros(n_nodes), np.zeros(n_nodes)
    reading = 0.0
    moved, moving = np.zeros(n_hosts), np.zeros(n_hosts)
    budget, rate = np.zeros(n_nodes), np.zeros(n_nodes)
    active = np.zeros(n_hosts)
    ended = np.zeros(n_stations, np.int64)
    now, period_ends, measuring = 0.0, 0.0, False

    begin = np.arange(total)  # minibatches that want to be read
    begins = total
    while True:
        # what wants to be read, or has been
        for at in range(begins):
            minibatch = begin[at]
            unread[(unread_first + unread_count) % total] = minibatch
            unread_count += 1
        begins = 0
        while unread_count and buffered:
            minibatch = unread[unread_first]
            unread_first = (unread_first + 1) % total
            unread_count -= 1
            buffered -= 1
            pushes[minibatch] = False
            missing[minibatch] = n_servers
            for s in range(n_servers):
                work = _work((ps_cost * shares[s] + ps_request) / 2, variation)
                _add(n_workers + s, minibatch * width + s, work, first, last, after, works, left)
                waiting[n_workers + s] += 1
        if not measuring and now >= warm - _NOTHING:
            measuring = True
            done[:], used[:], busy[:], throttled[:], waited[:] = 0, 0, 0, 0, 0
            moved[:], moving[:], reading = 0, 0, 0.0
        if now >= warm + seconds - _NOTHING:
            break
        if now >= period_ends - _NOTHING:
            period_ends = now + _PERIOD
            budget[:] = cores * _PERIOD
        # how fast each works, and when the first of them ends
        active[:] = 0
        for node in range(n_nodes):
            if first[node] >= 0 and budget[node] > _NOTHING:
                active[host[node]] += fast[node]
        step = min(period_ends, warm + seconds if measuring else warm) - now
        for node in range(n_nodes):
            rate[node] = 0.0
            if first[node] >= 0 and budget[node] > _NOTHING:
                share = min(1.0, machines[host[node], 0] / active[host[node]])
                rate[node] = share * fast[node]
                step = min(step, left[node] / (rate[node] * machines[host[node], 1]), budget[node] / rate[node])
        for station in range(n_nodes, n_stations):
            if first[station] >= 0:
                step = min(step, left[station])
        if way_count:
            step = min(step, way_at[way_first] - now)
        reads = buffered < _READ_AHEAD * n_workers
        if reads:
            step = min(step, read_left)
        step = max(step, 0.0)
        now += step
        ends = 0
        for node in range(n_nodes):
            if first[node] < 0:
                continue
            busy[node] += step
            waited[node] += step * (waiting[node] - 1)
            if budget[node] <= _NOTHING:
                throttled[node] += step
            used[node] += step * rate[node]
            budget[node] -= step * rate[node]
            left[node] -= step * rate[node] * machines[host[node], 1]
            if rate[node] > 0.0 and left[node] <= _NOTHING:
                ended[ends] = node
                ends += 1
        for station in range(n_nodes, n_stations):
            if first[station] < 0:
                continue
            left[station] -= step
            if station >= n_nodes + n_hosts:
                moving[station - n_nodes - n_hosts] += step
            if left[station] <= _NOTHING:
                ended[ends] = station
                ends += 1
        if reads:
            reading += step * min(n_workers, _READ_AHEAD * n_workers - buffered)
            read_left -= step
            if read_left <= _NOTHING:
                buffered += 1
                read_left = read_time
        for at in range(ends):
            station = ended[at]
            item = _take(station, first, after, works, left)
            minibatch, s = item // width, item % width
            worker = minibatch // depth
            if station < n_nodes:
                waiting[station] -= 1
            if station < n_workers:  # computed: gradients go to every PS
                pushes[minibatch] = True
                missing[minibatch] = n_servers
                for to in range(n_servers):
                    server = n_workers + to
                    each = batch_bytes * shares[to]
                    if host[server] != host[worker]:
                        card = n_nodes + host[worker]
                        seconds_there = each / machines[host[worker], 2]
                        _add(card, minibatch * width + to, seconds_there, first, last, after, works, left)
                    else:
                        work = _work((ps_cost * shares[to] + ps_request) / 2, variation)
                        _add(server, minibatch * width + to, work, first, last, after, works, left)
                        waiting[server] += 1
                continue
            if station < n_nodes:  # a PS has answered
                if not pushes[minibatch] and host[station] != host[worker]:
                    seconds_there = batch_bytes * shares[s] / machines[host[station], 2]
                    _add(n_nodes + host[station], item, seconds_there, first, last, after, works, left)
                    continue
            elif station < n_nodes + n_hosts:  # out of one host, into the other
                target = host[n_workers + s] if pushes[minibatch] else host[worker]
                seconds_there = batch_bytes * shares[s] / machines[target, 2]
                _add(n_nodes + n_hosts + target, item, seconds_there, first, last, after, works, left)
                continue
            else:
                moved[station - n_nodes - n_hosts] += batch_bytes * shares[s]
                if pushes[minibatch]:
                    work = _work((ps_cost * shares[s] + ps_request) / 2, variation)
                    _add(n_workers + s, item, work, first, last, after, works, left)
                    waiting[n_workers + s] += 1
                    continue
            missing[minibatch] -= 1
            if missing[minibatch] == 0:
                way_item[(way_first + way_count) % total] = minibatch
                way_at[(way_first + way_count) % total] = now + latency / 2
                way_count += 1
        while way_count and way_at[way_first] <= now + _NOTHING:
            minibatch = way_item[way_first]
            way_first = (way_first + 1) % total
            way_count -= 1
            worker = minibatch // depth
            if pushes[minibatch]:
                done[worker] += 1
                begin[begins] = minibatch
                begins += 1
            else:
                work = _work(worker_cost + request_cost * n_servers, variation)
                _add(worker, minibatch * width + n_servers, work, first, last, after, works, left)
                waiting[worker] += 1
    return done, used, busy, throttled, waited, np.full(n_workers, reading / n_workers), moved, moving
