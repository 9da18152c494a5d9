"""Training on several hosts as queues: the truth that the brain's decisions are measured against. It shares no formula with the brain.

Minibatches circulate. Each waits until it has been read, is pulled from every PS, computed by its worker, and pushed to every PS. Workers
and PS serve one minibatch after the other, first come first served. CPU limits are those of the kernel: so many seconds in each period of
0.1 s, at full speed until they are used up. Nodes that run share the cores of their host evenly, and work as fast as their host is. Part
of a worker's work can be spread over the whole cores of its limit, and part of it is done by other threads beside; a PS has one thread.
What goes from one host to another passes the card of the first and then that of the other, one transfer after the other on each.
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
    overlapped: float = 0.0
    """Share of a worker's work that other threads do, beside those that compute."""
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
                costs.overlapped,
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
#
# What is at a station is brought up to date only when something happens there. In between each card works at its speed, and the nodes of a
# host at theirs, times the share of a core that each has there: so each host has a time of its own, ``virtual``, that passes at that share
# of the clock's pace. In that the moment of a node's next event, ``due``, stays what it is, whoever else begins or ends.


@kernel
def _work(seconds, variation):  # type: ignore[no-untyped-def]
    if variation <= 0.0:
        return seconds
    return seconds * np.random.gamma(1.0 / variation**2, variation**2)


@kernel
def _speedup(cores, parallel, overlapped):  # type: ignore[no-untyped-def]
    """How much faster work is done by the threads of so many cores, and those beside, than by one."""
    threads = max(1.0, np.floor(cores + 1e-9))
    return 1.0 / max(overlapped, (1.0 - overlapped) * (1.0 - parallel + parallel / threads))


@kernel
def _count(node, now, its, times, first, runs, waiting, since, left, budget, measured):  # type: ignore[no-untyped-def]
    """Bring a node up to date, and the time of its host."""
    host, fast, speed = its[0][node], its[1][node], its[2][node]
    share, virtual, at = times[0], times[1], times[2]
    virtual[host] += (now - at[host]) * share[host]
    at[host] = now
    seconds, work = now - since[0, node], (virtual[host] - since[1, node]) * fast
    since[0, node], since[1, node] = now, virtual[host]
    if seconds <= 0.0 or first[node] < 0:
        return
    measured[1, node] += seconds
    measured[3, node] += seconds * (waiting[node] - 1)
    if runs[node]:
        measured[0, node] += work
        budget[node] -= work
        left[node] -= work * speed
    else:
        measured[2, node] += seconds


@kernel
def _look_ahead(node, its, times, runs, left, budget, due):  # type: ignore[no-untyped-def]
    """Find when a node, which is up to date, will be done with what it works at, or have used up its limit."""
    host, fast, speed, members, ends = its[0][node], its[1][node], its[2][node], its[3], its[4]
    share, virtual, at, least, host_due = times
    before, due[node] = due[node], np.inf
    if runs[node]:
        due[node] = virtual[host] + max(0.0, min(left[node] / (fast * speed), budget[node] / fast))
    if due[node] <= least[host]:
        least[host] = due[node]
    elif before == least[host]:
        least[host] = np.inf
        for position in range(ends[host], ends[host + 1]):
            least[host] = min(least[host], due[members[position]])
    host_due[host] = at[host] + max(0.0, least[host] - virtual[host]) / share[host]


@kernel
def _turn(node, turns, its, times, room, active, runs, left, budget, due):  # type: ignore[no-untyped-def]
    """Have a node, which is up to date, work or not from now on; all that work on its host share the cores evenly."""
    host, fast, share = its[0][node], its[1][node], times[0]
    if runs[node] != turns:
        active[host] += fast if turns else -fast
        runs[node] = turns
        share[host] = min(1.0, room[host] / max(active[host], _NOTHING))
    _look_ahead(node, its, times, runs, left, budget, due)


@kernel
def _add(station, item, work, first, last, after, works, left):  # type: ignore[no-untyped-def]
    """Put an item behind those at a station, which is up to date; return whether it is the only one."""
    works[item] = work
    after[item] = -1
    alone = first[station] < 0
    if alone:
        first[station] = item
        left[station] = work
    else:
        after[last[station]] = item
    last[station] = item
    return alone


@kernel
def _take(station, first, after, works, left):  # type: ignore[no-untyped-def]
    item = first[station]
    first[station] = after[item]
    left[station] = works[first[station]] if first[station] >= 0 else 0.0
    return item


@kernel
def _run(n_workers, cores, host, machines, shares, costs, depth, seed, warm, seconds):  # type: ignore[no-untyped-def]  # noqa: PLR0915
    np.random.seed(seed)
    n_nodes, n_hosts = cores.shape[0], machines.shape[0]
    n_servers = n_nodes - n_workers
    worker_cost, request_cost, parallel, overlapped, ps_cost, ps_request, latency, variation, read_time, batch_bytes = (
        costs
    )
    n_stations = n_nodes + 2 * n_hosts  # nodes, cards out, cards in
    cards_in = n_nodes + n_hosts
    total = n_workers * depth
    width = n_servers + 1
    first, last = np.full(n_stations, -1), np.full(n_stations, -1)
    left, waiting = np.zeros(n_stations), np.zeros(n_nodes, np.int64)
    after, works = np.full(total * width, -1), np.zeros(total * width)
    since, due = np.zeros((2, n_nodes)), np.full(n_nodes, np.inf)
    card_since, card_due = np.zeros(n_stations), np.full(n_stations, np.inf)
    pushes = np.zeros(total, np.bool_)
    missing = np.zeros(total, np.int64)
    fast, speed = np.ones(n_nodes), np.ones(n_nodes)
    room, active = machines[:, 0].copy(), np.zeros(n_hosts)
    members, ends = np.argsort(host, kind="mergesort"), np.zeros(n_hosts + 1, np.int64)
    for node in range(n_nodes):
        if node < n_workers:
            fast[node] = _speedup(cores[node], parallel, overlapped)
        speed[node] = machines[host[node], 1]
        ends[host[node] + 1] += 1
    for at in range(n_hosts):
        ends[at + 1] += ends[at]
    its = (host, fast, speed, members, ends)
    share, virtual, at_virtual = np.ones(n_hosts), np.zeros(n_hosts), np.zeros(n_hosts)
    least, host_due = np.full(n_hosts, np.inf), np.full(n_hosts, np.inf)
    times = (share, virtual, at_virtual, least, host_due)
    # on its way without a station: sorted by arrival, since the delay is the same for all
    way_item, way_at = np.zeros(total, np.int64), np.zeros(total)
    way_first, way_count = 0, 0
    unread = np.zeros(total, np.int64)
    unread_first, unread_count = 0, 0
    most_buffered = _READ_AHEAD * n_workers
    buffered, read_at, read_since, reading = most_buffered, np.inf, 0.0, 0.0
    done = np.zeros(n_workers, np.int64)
    measured = np.zeros((4, n_nodes))  # used, busy, throttled, waited
    moved, moving = np.zeros(n_hosts), np.zeros(n_hosts)
    budget, runs = np.zeros(n_nodes), np.zeros(n_nodes, np.bool_)
    ended = np.zeros(n_stations, np.int64)
    now, period_ends, measuring = 0.0, 0.0, False

    begin = np.arange(total)  # minibatches that want to be read
    begins = total
    while True:
        # what wants to be read, or has been
        for at in range(begins):
            unread[(unread_first + unread_count) % total] = begin[at]
            unread_count += 1
        begins = 0
        while unread_count and buffered:
            minibatch = unread[unread_first]
            unread_first = (unread_first + 1) % total
            unread_count -= 1
            if buffered == most_buffered:
                read_at = now + read_time
            else:
                reading += (now - read_since) * min(n_workers, most_buffered - buffered)
            read_since = now
            buffered -= 1
            pushes[minibatch] = False
            missing[minibatch] = n_servers
            for s in range(n_servers):
                work = _work((ps_cost * shares[s] + ps_request) / 2, variation)
                node = n_workers + s
                _count(node, now, its, times, first, runs, waiting, since, left, budget, measured)
                waiting[node] += 1
                if _add(node, minibatch * width + s, work, first, last, after, works, left):
                    _turn(node, budget[node] > _NOTHING, its, times, room, active, runs, left, budget, due)
        starts = not measuring and now >= warm - _NOTHING
        over = now >= warm + seconds - _NOTHING
        new_period = now >= period_ends - _NOTHING
        if starts or over or new_period:
            for node in range(n_nodes):
                _count(node, now, its, times, first, runs, waiting, since, left, budget, measured)
        if starts or over:
            for card in range(n_nodes, n_stations):
                if first[card] >= 0 and card >= cards_in:
                    moving[card - cards_in] += now - card_since[card]
                card_since[card] = now
            if buffered < most_buffered:
                reading += (now - read_since) * min(n_workers, most_buffered - buffered)
            read_since = now
        if starts:
            measuring = True
            done[:], moved[:], moving[:], reading = 0, 0, 0, 0
            measured[:] = 0
        if over:
            break
        if new_period:
            period_ends = now + _PERIOD
            budget[:] = cores * _PERIOD
            active[:], due[:], least[:] = 0, np.inf, np.inf
            for node in range(n_nodes):
                runs[node] = first[node] >= 0
                if runs[node]:
                    active[host[node]] += fast[node]
            for at in range(n_hosts):
                share[at] = min(1.0, room[at] / max(active[at], _NOTHING))
            for node in range(n_nodes):
                _look_ahead(node, its, times, runs, left, budget, due)
        # the next moment at which something happens
        soonest = min(period_ends, warm + seconds if measuring else warm)
        for at in range(n_hosts):
            soonest = min(soonest, host_due[at])
        for card in range(n_nodes, n_stations):
            soonest = min(soonest, card_due[card])
        if way_count:
            soonest = min(soonest, way_at[way_first])
        if buffered < most_buffered:
            soonest = min(soonest, read_at)
        now = max(now, soonest)
        ended_count = 0
        for at in range(n_hosts):
            if host_due[at] > now + _NOTHING:
                continue
            virtual[at] += (now - at_virtual[at]) * share[at]
            at_virtual[at] = now
            for position in range(ends[at], ends[at + 1]):
                node = members[position]
                if due[node] > virtual[at] + _NOTHING:
                    continue
                _count(node, now, its, times, first, runs, waiting, since, left, budget, measured)
                if left[node] > _NOTHING:  # it has used up its limit
                    _turn(node, budget[node] > _NOTHING, its, times, room, active, runs, left, budget, due)
                    continue
                place = ended_count  # in the order of their numbers
                while place and ended[place - 1] > node:
                    ended[place] = ended[place - 1]
                    place -= 1
                ended[place] = node
                ended_count += 1
        for card in range(n_nodes, n_stations):
            if card_due[card] <= now + _NOTHING:
                ended[ended_count] = card
                ended_count += 1
        if buffered < most_buffered and read_at <= now + _NOTHING:
            reading += (now - read_since) * min(n_workers, most_buffered - buffered)
            read_since = now
            buffered += 1
            read_at = now + read_time
        for at in range(ended_count):
            station = ended[at]
            if station < n_nodes:
                _count(station, now, its, times, first, runs, waiting, since, left, budget, measured)
                waiting[station] -= 1
            elif station >= cards_in:
                moving[station - cards_in] += now - card_since[station]
            item = _take(station, first, after, works, left)
            if station < n_nodes:
                turns = first[station] >= 0 and budget[station] > _NOTHING
                _turn(station, turns, its, times, room, active, runs, left, budget, due)
            else:
                card_since[station] = now
                card_due[station] = now + left[station] if first[station] >= 0 else np.inf
            minibatch, s = item // width, item % width
            worker = minibatch // depth
            if station < n_workers:  # computed: gradients go to every PS
                pushes[minibatch] = True
                missing[minibatch] = n_servers
                card = n_nodes + host[worker]
                for to in range(n_servers):
                    node = n_workers + to
                    if host[node] != host[worker]:
                        work = batch_bytes * shares[to] / machines[host[worker], 2]
                        if _add(card, minibatch * width + to, work, first, last, after, works, left):
                            card_since[card], card_due[card] = now, now + work
                    else:
                        work = _work((ps_cost * shares[to] + ps_request) / 2, variation)
                        _count(node, now, its, times, first, runs, waiting, since, left, budget, measured)
                        waiting[node] += 1
                        if _add(node, minibatch * width + to, work, first, last, after, works, left):
                            _turn(node, budget[node] > _NOTHING, its, times, room, active, runs, left, budget, due)
                continue
            if station < n_nodes:  # a PS has answered
                if not pushes[minibatch] and host[station] != host[worker]:
                    work, card = batch_bytes * shares[s] / machines[host[station], 2], n_nodes + host[station]
                    if _add(card, item, work, first, last, after, works, left):
                        card_since[card], card_due[card] = now, now + work
                    continue
            elif station < cards_in:  # out of one host, into the other
                target = host[n_workers + s] if pushes[minibatch] else host[worker]
                work, card = batch_bytes * shares[s] / machines[target, 2], cards_in + target
                if _add(card, item, work, first, last, after, works, left):
                    card_since[card], card_due[card] = now, now + work
                continue
            else:
                moved[station - cards_in] += batch_bytes * shares[s]
                if pushes[minibatch]:
                    work = _work((ps_cost * shares[s] + ps_request) / 2, variation)
                    node = n_workers + s
                    _count(node, now, its, times, first, runs, waiting, since, left, budget, measured)
                    waiting[node] += 1
                    if _add(node, item, work, first, last, after, works, left):
                        _turn(node, budget[node] > _NOTHING, its, times, room, active, runs, left, budget, due)
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
                _count(worker, now, its, times, first, runs, waiting, since, left, budget, measured)
                waiting[worker] += 1
                if _add(worker, minibatch * width + n_servers, work, first, last, after, works, left):
                    _turn(worker, budget[worker] > _NOTHING, its, times, room, active, runs, left, budget, due)
    used, busy, throttled, waited = measured
    return done, used, busy, throttled, waited, np.full(n_workers, reading / n_workers), moved, moving
