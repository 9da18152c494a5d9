"""The steady rate of a job where its nodes are, and what each node does at it, kept by what they depend on.

``queues`` are run once for each case. Machines that are alike are the same to a job, and so are nodes that are alike on one of them: cases
that differ in no more than names and order are one, and give the same rate, whoever asks first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.network_cards import JobKey, NetworkCards
from dlrover_lite.backends.sim.physics.queues import Costs, Node, Window, run
from dlrover_lite.backends.sim.physics.representative_nodes import Job, Sample, sample, worker_limit

__all__ = ["STANDS", "JobRate", "NodeRate", "Rate", "Rates", "Received"]

_MINIBATCHES = 300
"""Least number of minibatches that a rate comes from."""
_MORE = 1.1
"""How many times as long it is looked as so many would take at the limit of the slower role, which is hardly ever reached."""
_MOST_SECONDS = 3600.0
_LEAST_SECONDS = 0.2
"""Two of those periods."""
_MOST_LONGER = 4.0
"""How many times longer the next look is, at most, after one that has seen too few minibatches: perhaps none had gone all of its way."""
_CYCLES = 4.0
"""Number of minibatches, one after the other, of the slowest worker that a rate comes from at least; half as many warm it up."""
_ROUNDS = 2.0
"""How often all minibatches under way are to come by, at least; half as often to warm up. They begin together, and less than a round of
them shows what is at workers and servers just then: of 250 workers and 100 servers a fifth too much."""


class Rate(NamedTuple):
    """What a job does in a second."""

    samples: float
    worker_cores: float
    """CPU seconds of all workers together."""
    server_cores: float


class NodeRate(NamedTuple):
    """What a worker or a server does in a second."""

    minibatches: float
    """Minibatches that a worker trains; of a server 0, as all of them pass it."""
    cpu_seconds: float
    busy_seconds: float
    throttled_seconds: float
    waited_seconds: float
    """Seconds that minibatches wait at it, added up."""
    read_seconds: float
    """Seconds in which a worker's reader is at work, or waits for what all read from."""


class Received(NamedTuple):
    """What comes to a machine from others in a second."""

    bytes: float
    seconds: float
    """Seconds in which something comes."""


class JobRate(NamedTuple):
    """What each node of a job does in a second, in the order in which they were told."""

    workers: tuple[NodeRate, ...]
    servers: tuple[NodeRate, ...]
    received: tuple[Received, ...]
    """What comes to each machine, in the order of machines."""

    @property
    def minibatches(self) -> float:
        return sum(worker.minibatches for worker in self.workers)

    def total(self, batch_size: int) -> Rate:
        """Return what the whole job does."""
        worker_cores, server_cores = (sum(one.cpu_seconds for one in of) for of in (self.workers, self.servers))
        return Rate(self.minibatches * batch_size, worker_cores, server_cores)


class _Place(NamedTuple):
    """A machine as a job meets it, and the job's nodes there. Memory is left out: it changes no rate until there is none left."""

    cores: float
    speed: float
    bytes_per_second: float
    workers: tuple[float, ...]
    """Cores of each worker."""
    servers: tuple[tuple[float, float], ...]
    """Cores of each server, and its share of the work on rows."""


STANDS = NodeRate(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""A node that does nothing."""


class Rates:
    """Rates by cases, for one seed."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._known: dict[tuple[Costs, tuple[_Place, ...]], JobRate] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(
        self,
        costs: Costs,
        workers: Sequence[Node],
        servers: Sequence[Node],
        machines: Sequence[Machine],
        shares: Sequence[float] = (),
    ) -> Rate:
        """Return the rate of these nodes on machines as others leave them; without workers, or without servers, it is 0. ``shares``: of the
        work on rows that each server has; empty: even."""
        if not workers or not servers:
            return Rate(0.0, 0.0, 0.0)
        places, _ = _places(workers, servers, machines, shares or [1 / len(servers)] * len(servers))
        return self._look_up(costs, places).total(costs.batch_size)

    def with_cards(
        self,
        cards: NetworkCards[JobKey],
        job: JobKey,
        costs: Costs,
        workers: Sequence[Node],
        servers: Sequence[Node],
        machines: Sequence[Machine],
        shares: Sequence[float] = (),
    ) -> tuple[JobRate, list[JobKey]]:
        """Return the same by nodes, beside all that passes the cards of these machines; and the other jobs that have other parts of them
        now. Without workers, or without servers, the job wants nothing of them."""
        alone = self.of_nodes(costs, workers, servers, machines, shares)
        wanted = {host: its.bytes for host, its in enumerate(alone.received) if its.bytes}
        changed = cards.wants(job, wanted, {host: one.bytes_per_second for host, one in enumerate(machines)})
        if not (parts := cards.parts(job)):
            return alone, changed
        beside = [
            replace(one, bytes_per_second=one.bytes_per_second * parts[host]) if host in parts else one
            for host, one in enumerate(machines)
        ]
        return self.of_nodes(costs, workers, servers, beside, shares), changed

    def of_nodes(
        self,
        costs: Costs,
        workers: Sequence[Node],
        servers: Sequence[Node],
        machines: Sequence[Machine],
        shares: Sequence[float] = (),
    ) -> JobRate:
        """Return the same by nodes."""
        if not workers or not servers:
            nothing = (Received(0.0, 0.0),) * len(machines)
            return JobRate((STANDS,) * len(workers), (STANDS,) * len(servers), nothing)
        each = list(shares) or [1 / len(servers)] * len(servers)
        places, hosts = _places(workers, servers, machines, each)
        found = self._look_up(costs, places)
        place_of = {host: at for at, host in enumerate(hosts)}
        their_workers = sorted(range(len(workers)), key=lambda at: (place_of[workers[at].host], workers[at].cores))
        their_servers = sorted(
            range(len(servers)), key=lambda at: (place_of[servers[at].host], servers[at].cores, each[at])
        )
        received = [Received(0.0, 0.0)] * len(machines)
        for host, its in zip(hosts, found.received, strict=True):
            received[host] = its
        return JobRate(
            _in_order(found.workers, their_workers), _in_order(found.servers, their_servers), tuple(received)
        )

    def _look_up(self, costs: Costs, places: tuple[_Place, ...]) -> JobRate:
        if (costs, places) not in self._known:
            self._known[costs, places] = self._run(costs, places)
        return self._known[costs, places]

    def _run(self, costs: Costs, places: tuple[_Place, ...]) -> JobRate:
        whole = Job(
            [Node(cores, at) for at, place in enumerate(places) for cores in place.workers],
            [Node(cores, at) for at, place in enumerate(places) for cores, _ in place.servers],
            [share for place in places for _, share in place.servers],
            [Machine(place.cores, place.speed, place.bytes_per_second) for place in places],
            costs,
        )
        found = sample(whole)
        job, limit = found.job, found.job.limit
        alone = costs.latency + max(1 / worker_limit(whole, worker) for worker in whole.workers)
        together = costs.depth * len(job.workers) / limit
        seconds = max(_LEAST_SECONDS, _CYCLES * alone, _ROUNDS * together, _MORE * _MINIBATCHES / limit)
        warm = max(_LEAST_SECONDS, _CYCLES / 2 * alone, _ROUNDS / 2 * together)
        while True:
            window = run(
                job.workers,
                job.servers,
                job.machines,
                job.costs,
                seed=self._seed,
                seconds=seconds,
                warm_seconds=warm,
                shares=job.shares,
            )
            minibatches = int(window.minibatches.sum())
            if minibatches >= _MINIBATCHES or seconds >= _MOST_SECONDS:
                return _rate_of(window, whole, found)
            longer = min(_MOST_LONGER, max(2.0, _MORE * _MINIBATCHES / max(1, minibatches)))
            seconds, warm = min(_MOST_SECONDS, seconds * longer), warm * longer


def _rate_of(window: Window, whole: Job, found: Sample) -> JobRate:
    count, seconds, stands_for = len(window.minibatches), window.seconds, len(whole.workers) / len(window.minibatches)
    columns = [
        [*window.minibatches.tolist(), *[0] * (len(window.cpu_seconds) - count)],
        window.cpu_seconds.tolist(),
        window.busy_seconds.tolist(),
        window.throttled_seconds.tolist(),
        [*window.waited_seconds[:count].tolist(), *(stands_for * window.waited_seconds[count:]).tolist()],
        [*window.read_seconds.tolist(), *[0.0] * (len(window.cpu_seconds) - count)],
    ]
    nodes = [NodeRate(*(value / seconds for value in values)) for values in zip(*columns, strict=True)]
    workers = tuple(nodes[at] for at in found.as_worker)
    servers = tuple(nodes[count + at] for at in found.as_server)
    return JobRate(workers, servers, _received(whole, workers))


def _received(job: Job, workers: Sequence[NodeRate]) -> tuple[Received, ...]:
    """Return what comes to each machine: rows for its workers, and gradients for its servers, from all others."""
    rates, shares = [0.0] * len(job.machines), [0.0] * len(job.machines)
    for node, rate in zip(job.workers, workers, strict=True):
        rates[node.host] += rate.minibatches
    for node, share in zip(job.servers, job.shares, strict=True):
        shares[node.host] += share
    total, of_minibatch = sum(rates), job.costs.sample_bytes * job.costs.batch_size
    found = []
    for machine, its, share in zip(job.machines, rates, shares, strict=True):
        count = of_minibatch * (its * (1.0 - share) + share * (total - its))
        found.append(Received(count, count / machine.bytes_per_second))
    return tuple(found)


def _in_order(found: Sequence[NodeRate], positions: Sequence[int]) -> tuple[NodeRate, ...]:
    """Put what was found for nodes in the order of a case back to theirs: the first is the node at ``positions[0]``."""
    told = [STANDS] * len(found)
    for rate, at in zip(found, positions, strict=True):
        told[at] = rate
    return tuple(told)


def _places(
    workers: Sequence[Node], servers: Sequence[Node], machines: Sequence[Machine], shares: Sequence[float]
) -> tuple[tuple[_Place, ...], list[int]]:
    """Put a case in its one form: machines that have nodes, in the order of what they are and have; and say which machine each is."""
    workers_on: dict[int, list[float]] = {}
    servers_on: dict[int, list[tuple[float, float]]] = {}
    for worker in workers:
        workers_on.setdefault(worker.host, []).append(worker.cores)
    for server, share in zip(servers, shares, strict=True):
        servers_on.setdefault(server.host, []).append((server.cores, share))
    found = []
    for host in workers_on.keys() | servers_on.keys():
        machine = machines[host]
        on = tuple(sorted(workers_on.get(host, []))), tuple(sorted(servers_on.get(host, [])))
        found.append((_Place(machine.cores, machine.speed, machine.bytes_per_second, *on), host))
    found.sort()
    return tuple(place for place, _ in found), [host for _, host in found]
