"""Large jobs as smaller ones that are as fast: of many nodes that are alike some stand for all, each for as many.

Queues cost what the product of workers and parameter servers does. All servers meet the same minibatches, and workers that are alike do the
same beside each other. So every so many-th worker and server is kept (of those sorted by what they are), a minibatch stands for those of
several workers, and takes as many times longer at servers and on network cards. Each node, machine and card is as busy as before, but for
what is due to chance; a minibatch waits that much longer at servers, which matters little beside what hundreds of others take there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs, Node

__all__ = ["MOST_SERVERS", "MOST_WORKERS", "Job", "Sample", "sample", "server_limit", "worker_limit"]

MOST_WORKERS, MOST_SERVERS = 40, 16
"""Nodes of a role up to which all of them are kept: with twice as many, rates of jobs of hundreds of nodes differ by a hundredth."""


@dataclass(frozen=True)
class Job:
    """A job where its nodes are. ``shares``: of the work on rows that each server has."""

    workers: Sequence[Node]
    servers: Sequence[Node]
    shares: Sequence[float]
    machines: Sequence[Machine]
    costs: Costs

    @property
    def limit(self) -> float:
        """Minibatches/s that the slower role allows, as if the way between them, and others on their machines, were no limit."""
        of_workers = sum(worker_limit(self, node) for node in self.workers)
        of_servers = min(server_limit(self, node, share) for node, share in zip(self.servers, self.shares, strict=True))
        return min(of_workers, of_servers, self.costs.samples_read_per_second / self.costs.batch_size)


@dataclass(frozen=True)
class Sample:
    """A job of few nodes, and which of them each node of the whole one does as, by position."""

    job: Job
    as_worker: Sequence[int]
    as_server: Sequence[int]


def worker_limit(job: Job, node: Node) -> float:
    """Return the minibatches/s that a worker can compute."""
    seconds = (job.costs.worker + job.costs.worker_request * len(job.servers)) / job.machines[node.host].speed
    return min(node.cores, _speedup(job.costs, node.cores)) / seconds


def server_limit(job: Job, node: Node, share: float) -> float:
    """Return the minibatches/s of the whole job that a server can serve."""
    seconds = (job.costs.ps * share + job.costs.ps_request) / job.machines[node.host].speed
    return min(node.cores, 1.0) / seconds if seconds else float("inf")


def _speedup(costs: Costs, cores: float) -> float:
    """Return how much faster a worker's threads do its work than one does."""
    threads = max(1.0, float(int(cores + 1e-9)))
    return 1.0 / max(costs.overlapped, (1.0 - costs.overlapped) * (1.0 - costs.parallel + costs.parallel / threads))


def sample(job: Job) -> Sample:
    """Return a job that is as fast, of at most so many nodes of each role."""
    if len(job.workers) <= MOST_WORKERS and len(job.servers) <= MOST_SERVERS:
        return Sample(job, range(len(job.workers)), range(len(job.servers)))
    its = sorted(range(len(job.workers)), key=lambda at: (worker_limit(job, job.workers[at]), job.workers[at].host))
    servers = [(server_limit(job, node, share), node.host) for node, share in zip(job.servers, job.shares, strict=True)]
    workers, as_worker = _every(its, MOST_WORKERS)
    kept, as_server = _every(sorted(range(len(servers)), key=lambda at: servers[at]), MOST_SERVERS)
    of_workers, of_servers = len(its) / len(workers), len(servers) / len(kept)
    total = sum(job.shares[at] for at in kept)
    shares = [job.shares[at] / total for at in kept]
    costs = replace(
        job.costs,
        worker_request=job.costs.worker_request * of_servers,
        ps=job.costs.ps * of_workers * total,
        ps_request=job.costs.ps_request * of_workers,
        samples_read_per_second=job.costs.samples_read_per_second / of_workers,
    )
    machines, hosts = _machines(job, workers, kept, shares)
    few = Job(
        [Node(job.workers[at].cores, hosts[job.workers[at].host]) for at in workers],
        [Node(job.servers[at].cores, hosts[job.servers[at].host]) for at in kept],
        shares,
        machines,
        costs,
    )
    return Sample(few, as_worker, as_server)


def _machines(
    job: Job, workers: Sequence[int], servers: Sequence[int], shares: Sequence[float]
) -> tuple[list[Machine], dict[int, int]]:
    """Return the machines that the nodes kept are on, each with as many of its cores, and of what its card carries, as it keeps of what
    there is for it to do; and the position of each among them by that among all."""
    everyone = _Loads(job, range(len(job.workers)), range(len(job.servers)), job.shares)
    kept, stands_for = _Loads(job, workers, servers, shares), len(job.workers) / len(workers)
    machines, hosts = list[Machine](), dict[int, int]()
    for host, machine in enumerate(job.machines):
        if not kept.threads[host]:
            continue
        hosts[host] = len(machines)
        cores = machine.cores * kept.threads[host] / everyone.threads[host]
        before = everyone.traffic[host]
        carries = kept.traffic[host] / stands_for / before if before else 1.0
        machines.append(replace(machine, cores=cores, bytes_per_second=machine.bytes_per_second * carries))
    return machines, hosts


class _Loads:
    """What some nodes of a job ask of each machine: threads at work, and parts of all that is sent."""

    def __init__(self, job: Job, workers: Sequence[int], servers: Sequence[int], shares: Sequence[float]) -> None:
        """``shares``: of these servers, together 1."""
        self.threads, self.traffic = [0.0] * len(job.machines), [0.0] * len(job.machines)
        for at in workers:
            node = job.workers[at]
            self.threads[node.host] += _speedup(job.costs, node.cores)
            self.traffic[node.host] += 1 / len(workers)
        for at, share in zip(servers, shares, strict=True):
            self.threads[job.servers[at].host] += 1.0
            self.traffic[job.servers[at].host] += share


def _every(sorted_positions: Sequence[int], most: int) -> tuple[list[int], list[int]]:
    """Keep at most so many of the positions, evenly, the first among them: that of the slowest. Return them, and for each position which of
    the kept ones is nearest."""
    count = len(sorted_positions)
    kept = min(count, most)
    nearest = [0] * count
    for place, position in enumerate(sorted_positions):
        nearest[position] = place * kept // count
    first = [-(-at * count // kept) for at in range(kept)]
    return [sorted_positions[place] for place in first], nearest
