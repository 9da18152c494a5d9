"""A job as a fluid: samples that flow at a rate which stays as it is until something happens to the job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from dlrover_lite.backends.sim.clock import Event
from dlrover_lite.backends.sim.physics.memory import MemoryCosts
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.backends.sim.physics.rates import Rate
from dlrover_lite.core.units import Resources

__all__ = ["STOPPED", "FluidJob", "FluidNode", "JobRequest", "JobState"]

JobState = Literal["arriving", "waiting", "starting", "training", "succeeded", "out of memory"]
"""Waiting: some of its nodes have no room. Starting: all have, and those that it can't train without aren't there yet."""

STOPPED = Rate(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class JobRequest:
    """A job as its user submits it, and what it is in truth."""

    name: str
    arrives_at: float
    """Seconds on the clock of the simulation."""
    samples: float
    """Number of samples to train on, over all epochs."""
    costs: Costs
    memory: MemoryCosts
    workers: int
    worker: Resources
    servers: int
    server: Resources
    checkpoint_seconds: float = 600.0
    """Seconds between two checkpoints."""
    priority: float = 1.0


@dataclass(eq=False)
class FluidNode:
    """A node, or the place that it leaves for the one that takes over."""

    role: Literal["worker", "server"]
    resources: Resources
    host: int = -1
    """Position of its machine; -1: none."""
    up: bool = False
    launches: int = 0
    """Number of launches, replacements included."""
    start: Event | None = None
    """Event of its being there."""


@dataclass(eq=False)
class FluidJob:
    """What has become of a job by ``since``, and the rate at which it goes on from then."""

    request: JobRequest
    nodes: list[FluidNode]
    state: JobState = "arriving"
    samples: float = 0.0
    saved_samples: float = 0.0
    """Samples of the newest checkpoint."""
    rate: Rate = STOPPED
    since: float = 0.0
    training_from: float | None = None
    """Time when it first trained: checkpoints are counted from there."""
    ended_at: float | None = None
    used_core_seconds: float = 0.0
    given_core_seconds: float = 0.0
    """CPU seconds that its nodes could have used, from when they had their places on."""
    next: Event | None = field(default=None, repr=False)
    """Its end, or its first server's running out of memory, at this rate."""

    @classmethod
    def of(cls, request: JobRequest) -> FluidJob:
        servers = [FluidNode("server", request.server) for _ in range(request.servers)]
        workers = [FluidNode("worker", request.worker) for _ in range(request.workers)]
        return cls(request, servers + workers)

    @property
    def unplaced_cores(self) -> float:
        """Cores that its nodes without a place want."""
        return sum(node.resources.cores for node in self.nodes if node.host < 0)

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @cached_property
    def samples_until_full(self) -> float:
        """Samples after which its servers have filled their memory; 0 if its workers have from the beginning."""
        its = self.request
        if its.memory.worker(its.costs.depth) > its.worker.memory:
            return 0.0
        return its.memory.samples_within(its.server.memory, 1 / its.servers)

    def passes(self, now: float) -> None:
        """Let samples flow until now."""
        seconds = now - self.since
        if self.training_from is not None:
            every = self.request.checkpoint_seconds
            saved_at = self.training_from + every * math.floor((now - self.training_from) / every)
            if saved_at > self.since:
                self.saved_samples = self.samples + self.rate.samples * (saved_at - self.since)
        self.samples += self.rate.samples * seconds
        self.used_core_seconds += (self.rate.worker_cores + self.rate.server_cores) * seconds
        given = sum(node.resources.cores for node in self.nodes if node.host >= 0)
        self.given_core_seconds += given * seconds
        self.since = now
