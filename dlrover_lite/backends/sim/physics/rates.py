"""The steady rate of a job where its nodes are, kept by what it depends on.

``queues`` are run once for each case. Machines that are alike are the same to a job, and so are nodes that are alike on one of them: cases
that differ in no more than names and order are one, and give the same rate, whoever asks first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs, Node, run

__all__ = ["Rate", "Rates"]

_SECONDS = 1.0
"""Seconds of training that are simulated for a rate, unless minibatches are long: ten of the periods of CPU limits."""
_MINIBATCHES = 300
"""Least number of minibatches that a rate comes from, about."""
_MOST_SECONDS = 3600.0


class Rate(NamedTuple):
    """What a job does in a second."""

    samples: float
    worker_cores: float
    """CPU seconds of all workers together."""
    server_cores: float


class _Place(NamedTuple):
    """A machine as a job meets it, and the job's nodes there. Memory is left out: it changes no rate until there is none left."""

    cores: float
    speed: float
    bytes_per_second: float
    workers: tuple[float, ...]
    """Cores of each worker."""
    servers: tuple[tuple[float, float], ...]
    """Cores of each server, and its share of the work on rows."""


class Rates:
    """Rates by cases, for one seed."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._known: dict[tuple[Costs, tuple[_Place, ...]], Rate] = {}

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
        case = (costs, _places(workers, servers, machines, shares or [1 / len(servers)] * len(servers)))
        if case not in self._known:
            self._known[case] = self._run(*case)
        return self._known[case]

    def _run(self, costs: Costs, places: tuple[_Place, ...]) -> Rate:
        machines = [Machine(place.cores, place.speed, place.bytes_per_second) for place in places]
        workers = [Node(cores, at) for at, place in enumerate(places) for cores in place.workers]
        servers = [Node(cores, at) for at, place in enumerate(places) for cores, _ in place.servers]
        shares = [share for place in places for _, share in place.servers]
        seconds = _SECONDS
        while True:
            window = run(workers, servers, machines, costs, seed=self._seed, seconds=seconds, shares=shares)
            minibatches = int(window.minibatches.sum())
            if minibatches >= _MINIBATCHES or seconds >= _MOST_SECONDS:
                break
            seconds = min(_MOST_SECONDS, seconds * max(2.0, 1.1 * _MINIBATCHES / max(1, minibatches)))
        used = window.cpu_seconds / seconds
        samples = minibatches * costs.batch_size / seconds
        return Rate(samples, float(used[: len(workers)].sum()), float(used[len(workers) :].sum()))


def _places(
    workers: Sequence[Node], servers: Sequence[Node], machines: Sequence[Machine], shares: Sequence[float]
) -> tuple[_Place, ...]:
    """Put a case in its one form: machines that have nodes, in the order of what they are and have."""
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
        found.append(_Place(machine.cores, machine.speed, machine.bytes_per_second, *on))
    return tuple(sorted(found))
