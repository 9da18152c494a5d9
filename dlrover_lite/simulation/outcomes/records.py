"""What became of the jobs of a simulated world: what metrics, tables and plots are made of, whoever has simulated it."""

from __future__ import annotations

from typing import Literal

import msgspec

from dlrover_lite.backends.sim.fluid.job import FluidJob, Usage

__all__ = ["End", "JobRecord", "Run", "record_of"]

End = Literal["succeeded", "out of memory", "failed", "unfinished"]


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One job."""

    name: str
    model: str = ""
    asked_cores: float = 0.0
    """Cores of all nodes that its user asked for: the size of the job."""
    priority: float = 1.0
    arrived_at: float
    started_at: float | None = None
    """Time when it first had room; None: it never had."""
    ended_at: float | None = None
    end: End = "unfinished"
    usage: tuple[Usage, ...] = ()
    """What it used and was given, interval by interval; intervals in which it had nothing are left out."""

    @property
    def seconds(self) -> float | None:
        """Seconds from its arrival to its end; None: it hasn't ended well."""
        return self.ended_at - self.arrived_at if self.ended_at is not None and self.end == "succeeded" else None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs of a simulated world, under one policy."""

    policy: str
    seed: int
    until: float
    """Time up to which it was simulated."""
    jobs: tuple[JobRecord, ...]


def record_of(job: FluidJob, model: str) -> JobRecord:
    """Return the record of a fluid job that has ended, or goes no further."""
    its = job.request
    end: End = "unfinished"
    if job.state in ("succeeded", "out of memory"):
        end = "succeeded" if job.state == "succeeded" else "out of memory"
    return JobRecord(
        name=its.name,
        model=model,
        asked_cores=its.workers * its.worker.cores + its.servers * its.server.cores,
        priority=its.priority,
        arrived_at=its.arrives_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        end=end,
        usage=tuple(job.usage),
    )
