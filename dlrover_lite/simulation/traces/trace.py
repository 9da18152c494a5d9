"""A trace: jobs that come over some time, as their users submit them, and what each of them is in truth."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dlrover_lite.backends.sim.fluid.job import JobRequest
from dlrover_lite.backends.sim.physics.memory import MemoryCosts, Table
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.core.errors import TraceError
from dlrover_lite.core.units import LEAST_CORES, LEAST_MEMORY, MOST_CORES, MOST_MEMORY, Resources
from dlrover_lite.protocol.plans import Plan, RolePlan

__all__ = ["NAME_PATTERN", "Trace", "TraceJob", "TraceTable", "limit_rate"]

NAME_PATTERN = r"\A[^\x00-\x20\x7f]{1,200}\Z"
"""Pattern of a job's name: no blanks and no control characters."""
TEXT_PATTERN = r"\A[^\x00-\x1f\x7f]{0,200}\Z"

_MOST_SECONDS = 72 * 3600.0
"""Seconds after the last arrival for which jobs are waited for, unless it is said."""

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Text = Annotated[str, Meta(pattern=TEXT_PATTERN)]
Moment = Annotated[float, Meta(ge=0, le=1e9)]
Seconds = Annotated[float, Meta(ge=0.001, le=1e9)]
Count = Annotated[int, Meta(ge=1, le=4096)]
Cores = Annotated[float, Meta(ge=LEAST_CORES, le=MOST_CORES)]
Memory = Annotated[int, Meta(ge=LEAST_MEMORY, le=MOST_MEMORY)]
Bytes = Annotated[int, Meta(ge=0, le=MOST_MEMORY)]
Samples = Annotated[float, Meta(ge=1, le=1e15)]
CpuSeconds = Annotated[float, Meta(ge=0, le=1e6)]
Share = Annotated[float, Meta(ge=0, le=1)]
Ids = Annotated[float, Meta(ge=1, le=1e12)]


class TraceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Embedding tables that are alike."""

    count: Annotated[int, Meta(ge=1, le=100_000)]
    ids: Ids
    """Number of ids that there are in each table."""
    dim: Annotated[int, Meta(ge=1, le=65_536)]
    exponent: Annotated[float, Meta(ge=0, le=100)] = 1.2
    """Zipf exponent of how frequent the ids are; 0: all are as frequent."""
    ids_per_sample: Annotated[float, Meta(ge=0.001, le=1e6)] = 1.0


class TraceJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job. Its fields are the columns of the file: CPU seconds are those of a core of a machine of speed 1."""

    name: Name
    arrives_at: Moment
    """Seconds from the beginning of the trace until its user submits it."""
    owner: Text = ""
    model: Text = ""
    priority: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    suspendable: bool = True
    """It may give way to others, and go on later from a checkpoint."""

    # What its user asks for.
    workers: Count
    worker_cores: Cores
    """Cores of each worker."""
    worker_memory: Memory
    """Bytes of each worker."""
    servers: Count
    server_cores: Cores
    server_memory: Memory
    most_cores: Cores = MOST_CORES
    """The most cores that all its nodes may have together, whoever decides: its quota."""

    # What it is in truth.
    samples: Samples
    """Number of samples that it trains on, over all epochs."""
    epoch_samples: Samples
    """Number of samples of an epoch: the next one has the same ids."""
    batch_size: Annotated[int, Meta(ge=1, le=1 << 26)]
    depth: Annotated[int, Meta(ge=1, le=64)] = 2
    """Number of minibatches under way in a worker."""
    worker_seconds: Annotated[float, Meta(ge=1e-9, le=1e6)]
    """CPU seconds of a minibatch in its worker."""
    worker_request_seconds: CpuSeconds
    """CPU seconds of a minibatch in its worker for each server that is asked."""
    parallel_share: Share
    """Share of a worker's work that is spread over its cores."""
    all_servers_seconds: Annotated[float, Meta(ge=1e-9, le=1e6)]
    """CPU seconds of a minibatch in all servers together."""
    server_request_seconds: CpuSeconds
    """CPU seconds of a minibatch in each server, beside what depends on its rows."""
    latency_seconds: CpuSeconds
    """Seconds that a minibatch waits for nothing, on its way."""
    variation: Annotated[float, Meta(ge=0, le=2)]
    """Relative standard deviation of each piece of work."""
    read_samples_per_second: Annotated[float, Meta(ge=0.001, le=1e15)] = 1e12
    """The most samples/s that can be read, by all workers together."""
    sample_bytes: Annotated[float, Meta(ge=0, le=1e12)]
    """Bytes of a sample's rows that travel to its worker, and back."""
    tables: Annotated[tuple[TraceTable, ...], Meta(min_length=1, max_length=1000)]
    state_parts: Annotated[int, Meta(ge=0, le=8)] = 1
    """Floats of optimizer state for each value: 0 SGD, 1 Adagrad, 2 Adam and FTRL."""
    server_base_memory: Bytes
    """Bytes of a server without rows."""
    worker_base_memory: Bytes
    """Bytes of a worker beside its minibatches."""
    minibatch_memory: Bytes
    """Bytes of a minibatch in a worker."""
    checkpoint_seconds: Seconds = 600.0
    """Seconds between two checkpoints."""

    @property
    def plan(self) -> Plan:
        """What its user asks for."""
        return Plan(
            ps=RolePlan(self.servers, Resources(self.server_cores, self.server_memory)),
            worker=RolePlan(self.workers, Resources(self.worker_cores, self.worker_memory)),
        )

    @property
    def asked_cores(self) -> float:
        """Cores that its user asks for."""
        return self.workers * self.worker_cores + self.servers * self.server_cores

    @property
    def costs(self) -> Costs:
        return Costs(
            worker=self.worker_seconds,
            worker_request=self.worker_request_seconds,
            parallel=self.parallel_share,
            ps=self.all_servers_seconds,
            ps_request=self.server_request_seconds,
            latency=self.latency_seconds,
            variation=self.variation,
            batch_size=self.batch_size,
            depth=self.depth,
            samples_read_per_second=self.read_samples_per_second,
            sample_bytes=self.sample_bytes,
        )

    @property
    def memory(self) -> MemoryCosts:
        return MemoryCosts(
            tuple(Table(one.ids, one.exponent, one.dim, one.count, one.ids_per_sample) for one in self.tables),
            state_parts=self.state_parts,
            epoch_samples=self.epoch_samples,
            server_bytes=self.server_base_memory,
            worker_bytes=self.worker_base_memory,
            minibatch_bytes=self.minibatch_memory,
        )

    @property
    def request(self) -> JobRequest:
        """The job as a simulation takes it."""
        plan = self.plan
        return JobRequest(
            self.name,
            self.arrives_at,
            self.samples,
            self.costs,
            self.memory,
            plan.worker.count,
            plan.worker.each,
            plan.ps.count,
            plan.ps.each,
            checkpoint_seconds=self.checkpoint_seconds,
            priority=self.priority,
            most_cores=self.most_cores,
        )


class Trace(msgspec.Struct, frozen=True):
    """Jobs in the order of their arrival, those that arrive together by name."""

    jobs: tuple[TraceJob, ...]

    @classmethod
    def of(cls, jobs: list[TraceJob]) -> Trace:
        return cls(tuple(sorted(jobs, key=lambda job: (job.arrives_at, job.name))))

    def ends_at(self, hours: float | None) -> float:
        """Return the seconds after which a simulation ends though not all jobs have: so many hours, or some days after the last job has
        come. Raises TraceError for a trace without jobs."""
        if not self.jobs:
            raise TraceError("the trace has no jobs")
        return self.jobs[-1].arrives_at + _MOST_SECONDS if hours is None else hours * 3600.0


def limit_rate(costs: Costs, workers: int, worker_cores: float, servers: int, server_cores: float) -> float:
    """Return the samples/s that the slower role of a job allows, as if the other one, the way between them and its machines were no limit:
    a rough figure to make jobs by. What they do in a simulation comes from queues."""
    each = costs.worker + costs.worker_request * servers
    threads = max(1.0, float(int(worker_cores)))
    alone = each * (1.0 - costs.parallel + costs.parallel / threads)
    of_workers = workers * min(worker_cores / each, 1.0 / alone)
    of_servers = servers * min(1.0, server_cores) / (costs.ps + costs.ps_request * servers)
    return min(min(of_workers, of_servers) * costs.batch_size, costs.samples_read_per_second)
