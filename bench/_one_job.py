"""A job that has trained for 64 intervals, and a brain that knows nothing of it but these: its whole decision, from profiles to words.

Intervals are of ``_many_jobs``, with 26 tables each, and of eight plans in turn, so that the model is fitted to all of them. The plans to
choose from are those that ``bounds_of`` leaves open for a recipe's ceiling.
"""

from __future__ import annotations

import numpy as np
from _many_jobs import BEGAN, FEATURES, REPORT_SECONDS, TABLES, SteadyJob
from msgspec.structs import replace

from dlrover_lite.brain.capacity import Capacity
from dlrover_lite.brain.explain.decision_text import explain
from dlrover_lite.brain.job_bounds import bounds_of
from dlrover_lite.brain.job_tracker import RegisteredJob
from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.plan_grid import lattice_of
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.demands import Demand, TableFacts
from dlrover_lite.protocol.hosts import Host, total_of
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.profiles import HostUse, Profile

WINDOWS, PLANS = 64, 8
PS_MEMORY, WORKER_MEMORY = 4 * GIB, GIB
OTHER_CORES = 0.5
"""Of each host, that strangers take."""


class OneJob:
    """``hosts`` of so many ``cores`` each; the recipe's ceiling is all of them."""

    def __init__(self, hosts: int, cores: float) -> None:
        there = tuple(Host(f"host-{number}", Resources(cores, 4 * GIB * int(cores))) for number in range(hosts))
        self.capacity = Capacity(total_of(there), there)
        self._demand = Demand(
            hosts=there, total=self.capacity.total, total_samples=1e10, epoch_samples=1e10,
            facts=TableFacts(state_parts=1, most_ids=1e8), checkpoints=True,
        )  # fmt: skip
        self._job = SteadyJob("job", _plan(0), 0.02, 0.006, np.random.default_rng(0), np.linspace(0.55, 0.75, TABLES))
        self._profiles = [self._window(number) for number in range(WINDOWS)]
        self.at = self._profiles[-1].at
        self.points = len(lattice_of(bounds_of(self._demand)))

    def _window(self, number: int) -> Profile:
        self._job.plan = _plan(number * PLANS // WINDOWS)
        found = self._job.window(BEGAN + (number + 1) * REPORT_SECONDS, "")
        names = [host.name for host in self.capacity.hosts]
        workers = tuple(replace(use, host=names[at % len(names)]) for at, use in enumerate(found.workers))
        servers = tuple(replace(use, host=names[at % len(names)]) for at, use in enumerate(found.ps))
        hosts = tuple(HostUse(host.name, host.resources.cores, OTHER_CORES) for host in self.capacity.hosts)
        return replace(found, workers=workers, ps=servers, hosts=hosts)

    def registered(self) -> RegisteredJob:
        """Return the job as its master has told of it, with nothing computed of it yet."""
        known = RegisteredJob("job", FEATURES, self._demand, BEGAN)
        known.begin(self.capacity, BEGAN)
        for profile in self._profiles:
            known.add(profile)
        standing = self._job.standing("")
        last = self._profiles[-1]
        places = {use.node: use.host for use in last.workers} | {use.node: use.host for use in last.ps}
        nodes = tuple(replace(node, host=places[node.node]) for node in standing.nodes)
        known.stands(replace(standing, nodes=nodes))
        return known

    def inputs(self, known: RegisteredJob) -> RoundInputs:
        view = known.view(free_cores=known.free_cores(self.capacity), at=self.at)
        hosts = self.capacity.hosts if len(self.capacity.hosts) > 1 else ()
        return RoundInputs(at=self.at, capacity=self.capacity.total, hosts=hosts, jobs=(view,))


def decided(inputs: RoundInputs) -> str:
    """Decide, and return the explanation."""
    return explain(decide(inputs).decisions[0])


def _plan(number: int) -> Plan:
    worker, ps = Resources(1.0, WORKER_MEMORY), Resources(0.5, PS_MEMORY)
    return Plan(ps=RolePlan(1 + number % 3, ps), worker=RolePlan(2 + number, worker))
