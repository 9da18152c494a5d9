"""Well-tuned static plans: what each job would be given by somebody who knew it, and had tried many plans before. It is an oracle.

Told the truth (costs of a minibatch, rows by the end, machines), it searches the plan that is fastest in the physics of the simulation
within the cores of the request, or those that are fair where the user asks for fewer; of those nearly as fast, the one with the fewest
cores. Memory is what nodes come to need, and a little more. Nothing changes while jobs run. DLRover-RM (VLDB 2024) compares with such
plans, tuned by its authors' experts; how they searched isn't known here, so that this is our own reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dlrover_lite.backends.sim.fluid.job import JobRequest
from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Node
from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.core.units import LEAST_MEMORY, MIB, Resources
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.simulation.policies.policy import HostReport, JobReport, Room
from dlrover_lite.simulation.traces.trace import limit_rate

__all__ = ["Settings", "Tuned"]

_SERVERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_SERVER_CORES = (0.5, 1.0)
"""Cores of a server: more than one are of no use to its one thread."""
_WORKER_CORES = (0.5, 1.0, 2.0, 4.0)
_PARTS = (1.0, 0.8, 0.6, 0.45, 0.3)
"""Parts of the workers that there are cores for."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers it searches by."""

    fair_share: float = 1 / 32
    """Part of all cores that each job may have, whatever its user asks for. Source: assumption (about as many jobs are there at a time)."""
    tried: int = 4
    """Number of plans that are tried in the physics, those that a rough formula finds best. Source: assumption."""
    nearly: float = 0.03
    """Part of the best rate that a plan may be short of, if it has fewer cores. Source: assumption."""
    spare_memory: float = 1.1
    """Memory of a node over what it comes to need. Source: assumption."""


class Tuned:
    """Knows the truth of all jobs that will come."""

    def __init__(
        self,
        truth: Iterable[JobRequest],
        machines: Sequence[Machine],
        rates: Rates | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._truth = {job.name: job for job in truth}
        self._machines = list(machines)
        self._rates = Rates() if rates is None else rates
        self._its = settings or Settings()
        self._found: dict[str, Plan | None] = {}

    def first(self, job: JobReport, hosts: Sequence[HostReport]) -> Plan | None:
        return self.best(job.name)

    def plans(self, now: float, jobs: Sequence[JobReport], hosts: Sequence[HostReport]) -> Mapping[str, Plan]:
        return {}

    def best(self, name: str) -> Plan | None:
        """Return the best fixed plan of a job; None: no plan has room on the empty cluster."""
        if name not in self._found:
            self._found[name] = self._search(self._truth[name])
        return self._found[name]

    def _search(self, job: JobRequest) -> Plan | None:
        everything = sum(machine.cores for machine in self._machines)
        asked = job.workers * job.worker.cores + job.servers * job.server.cores
        budget = min(everything, job.most_cores, max(asked, self._its.fair_share * everything))
        rough = [(self._rough(job, plan), plan) for plan in self._candidates(job, budget)]
        rough.sort(key=lambda one: (-one[0], cores_of(one[1])))
        best = max((rate for rate, _ in rough), default=0.0)
        thrifty = sorted(
            (one for one in rough if one[0] >= best * (1 - self._its.nearly)), key=lambda one: cores_of(one[1])
        )
        few = dict.fromkeys(plan for _, plan in [*rough[: self._its.tried], *thrifty[: self._its.tried]])
        tried = [(rate, plan) for plan in few if (rate := self._rate(job, plan)) is not None]
        if not tried:
            return None
        fastest = max(rate for rate, _ in tried)
        near = [plan for rate, plan in tried if rate >= fastest * (1 - self._its.nearly)]
        return min(near, key=lambda plan: (cores_of(plan), plan.worker.count, plan.ps.count))

    def _candidates(self, job: JobRequest, budget: float) -> list[Plan]:
        most = max(machine.memory for machine in self._machines)
        memory = self._its.spare_memory
        worker_memory = _rounded(job.memory.worker(job.costs.depth) * memory)
        found: dict[Plan, None] = {}
        for servers in _SERVERS:
            server_memory = _rounded(job.memory.server(job.samples, 1 / servers) * memory)
            if max(server_memory, worker_memory) > most:
                continue
            for server_cores in _SERVER_CORES:
                left = budget - servers * server_cores
                for worker_cores in _WORKER_CORES:
                    for part in _PARTS:
                        workers = math.floor(part * left / worker_cores)
                        if workers >= 1:
                            ps = RolePlan(servers, Resources(server_cores, server_memory))
                            found[Plan(ps=ps, worker=RolePlan(workers, Resources(worker_cores, worker_memory)))] = None
        return list(found)

    def _rough(self, job: JobRequest, plan: Plan) -> float:
        worker, ps = plan.worker, plan.ps
        return limit_rate(job.costs, worker.count, worker.each.cores, ps.count, ps.each.cores)

    def _rate(self, job: JobRequest, plan: Plan) -> float | None:
        """Return the samples/s of a plan on the empty cluster; None: it has no room there."""
        room = Room([one.cores for one in self._machines], [one.memory for one in self._machines])
        placed: list[list[Node]] = []
        for role in (plan.ps, plan.worker):
            hosts = [room.take(role.each) for _ in range(role.count)]
            nodes = [Node(role.each.cores, host) for host in hosts if host is not None]
            if len(nodes) < role.count:
                return None
            placed.append(nodes)
        servers, workers = placed
        return self._rates.of(job.costs, workers, servers, self._machines).samples


def cores_of(plan: Plan) -> float:
    return plan.worker.count * plan.worker.each.cores + plan.ps.count * plan.ps.each.cores


def _rounded(size: float) -> int:
    return max(LEAST_MEMORY, math.ceil(size / MIB) * MIB)
