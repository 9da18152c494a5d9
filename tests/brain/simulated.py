"""Simulated jobs that are measured as real ones are: the queues of ``queueing``, with nodes that have names, hosts, rows and memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from dlrover_lite.brain.healing.mitigation import NodeNow
from dlrover_lite.brain.models.memory_model import index_bytes
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.profiles import HostUse, Profile, PsUse, WorkerUse
from tests.brain import queueing
from tests.brain.queueing import Costs, Plan

START = 100_000.0
"""Few digits, so that seconds are left when it is stored with seven."""


def hosts(**each: Resources) -> tuple[Host, ...]:
    """What there is on hosts with these names."""
    return tuple(Host(name, resources) for name, resources in each.items())


@dataclass
class Job:
    """``window`` measures it; whatever is changed in between holds from the next window on."""

    plan: Candidate
    costs: Costs = field(default_factory=Costs)
    name: str = "job"
    seed: int = 0
    host_cores: float = 16.0
    hosts: dict[str, str] = field(default_factory=dict)
    """Where nodes are; "a" for those not named."""
    speeds: dict[str, float] = field(default_factory=dict)
    """Of nodes; 1 for those not named."""
    shares: list[float] = field(default_factory=list)
    """Of the PS's work and rows; even when empty."""
    limits: dict[str, int] = field(default_factory=dict)
    """Bytes; 1 GiB for those not named."""
    rows_per_sample: float = 2.0
    slope: float = 0.7
    row_bytes: int = 140
    base: int = 90 * MIB
    progress: float = 1.0
    """Samples counted for each that is simulated: a window stands for more of the job than is simulated."""
    at: float = START
    samples: float = 0.0
    replaced: dict[str, str] = field(default_factory=dict)
    """Names of nodes that took the place of others."""

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def names(self, role: str) -> list[str]:
        count = self.plan.workers if role == "worker" else self.plan.servers
        return [self.replaced.get(name, name) for name in (f"{role}-{at}" for at in range(count))]

    def nodes(self) -> tuple[NodeNow, ...]:
        return tuple(
            NodeNow(name, role, self.hosts.get(name, "a"), Resources(cores, self.limits.get(name, GIB)))
            for role, cores in (("ps", self.plan.ps_cores), ("worker", self.plan.worker_cores))
            for name in self.names(role)
        )

    def rows(self) -> float:
        return self.rows_per_sample * self.samples**self.slope

    def window(self, seconds: float = 5.0) -> Profile:
        plan, workers, servers = self.plan, self.names("worker"), self.names("ps")
        shares = self.shares or [1 / plan.servers] * plan.servers
        run = queueing._Run(
            Plan(plan.workers, plan.servers, plan.worker_cores, plan.ps_cores, self.host_cores),
            self.costs,
            self._rng,
            [self.speeds.get(name, 1.0) for name in workers],
            [self.speeds.get(name, 1.0) for name in servers],
            shares,
        )
        run.run_until(seconds)
        samples = run.done * self.costs.batch_size
        self.at += seconds * self.progress
        self.samples += samples * self.progress
        ps_uses = []
        for name, node, share in zip(servers, run.ps, shares, strict=True):
            rows = int(self.rows() * share)
            of_rows = int(rows * self.row_bytes + index_bytes(rows))
            measured = PsUse(name, self.hosts.get(name, "a"), node.cores, run.done, node.used, node.busy, node.waiting)
            memory = {
                "rows": rows,
                "row_bytes": of_rows,
                "used_bytes": self.base + of_rows,
                "peak_bytes": self.base + of_rows,
            }
            ps_uses.append(msgspec.structs.replace(measured, throttled_seconds=node.throttled, **memory))
        read = {"read": run.reading / plan.workers} if self.costs.read else {}
        used_hosts = sorted({self.hosts.get(name, "a") for name in workers + servers})
        return Profile(
            job=self.name,
            at=self.at,
            seconds=seconds,
            batch_size=self.costs.batch_size,
            samples=samples,
            samples_so_far=int(self.samples),
            workers=tuple(
                WorkerUse(name, self.hosts.get(name, "a"), node.cores, node.done, node.used, node.throttled, read)
                for name, node in zip(workers, run.workers, strict=True)
            ),
            ps=tuple(ps_uses),
            hosts=tuple(HostUse(host, self.host_cores) for host in used_hosts),
        )

    def used(self, ps: str) -> int:
        """Bytes, now."""
        shares = self.shares or [1 / self.plan.servers] * self.plan.servers
        rows = int(self.rows() * shares[self.names("ps").index(ps)])
        return self.base + int(rows * self.row_bytes + index_bytes(rows))

    def windows(self, count: int) -> tuple[Profile, ...]:
        return tuple(self.window() for _ in range(count))
