"""A job as a fluid: samples that flow at a rate which stays as it is until something happens to the job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dlrover_lite.backends.sim.clock import Event
from dlrover_lite.backends.sim.physics.memory import MemoryCosts
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.backends.sim.physics.rates import Rate
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.plans import Plan, RolePlan

__all__ = ["STOPPED", "FluidJob", "FluidNode", "JobRequest", "JobState", "PlanRate", "Usage"]

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
    most_cores: float = math.inf
    """The most cores that all its nodes may have together."""

    @property
    def plan(self) -> Plan:
        """What its user asks for."""
        return Plan(ps=RolePlan(self.servers, self.server), worker=RolePlan(self.workers, self.worker))


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
    owns: bool = True
    """A server has its share of the rows: not one to which rows are still to move."""
    number: int = 0
    """Number among all nodes that its job has had."""


class Usage(NamedTuple):
    """What a job used, and was given, between two moments; means over that time."""

    start: float
    stop: float
    used_cores: float
    given_cores: float
    used_bytes: float
    given_bytes: float


class PlanRate(NamedTuple):
    """What was measured of a job while it had a plan, and nothing held it up."""

    plan: Plan
    seconds: float
    samples: float


@dataclass(eq=False)
class FluidJob:
    """What has become of a job by ``since``, and the rate at which it goes on from then."""

    request: JobRequest
    plan: Plan
    nodes: list[FluidNode]
    state: JobState = "arriving"
    samples: float = 0.0
    saved_samples: float = 0.0
    """Samples of the newest checkpoint."""
    rate: Rate = STOPPED
    since: float = 0.0
    started_at: float | None = None
    """Time when it first had room."""
    training_from: float | None = None
    """Time when it first trained: checkpoints are counted from there."""
    ended_at: float | None = None
    used_core_seconds: float = 0.0
    given_core_seconds: float = 0.0
    """CPU seconds that its nodes could have used, from when they had their places on."""
    used_byte_seconds: float = 0.0
    given_byte_seconds: float = 0.0
    usage: list[Usage] = field(default_factory=list, repr=False)
    measured: dict[Plan, PlanRate] = field(default_factory=dict, repr=False)
    """What was measured with each plan that it has had, the newest last."""
    kept_rate: float = 1.0
    """Share of the rate that is left while rows move."""
    held_until: float = 0.0
    """Time until which a change of the plan holds it up."""
    changing: bool = False
    """A change of the plan is under way."""
    next: Event | None = field(default=None, repr=False)
    """Its end, or its first server's running out of memory, at this rate."""
    _full: tuple[tuple[int, int], float] = ((0, 0), 0.0)
    """Samples that fill so many servers with so much memory."""

    @classmethod
    def of(cls, request: JobRequest) -> FluidJob:
        job = cls(request, request.plan, [])
        job.adopt(request.plan)
        return job

    def adopt(self, plan: Plan) -> None:
        """Have the nodes of a plan, none of which has a place."""
        self.plan, self.nodes = plan, []
        self.add("server", plan.ps.each, plan.ps.count)
        self.add("worker", plan.worker.each, plan.worker.count)

    def add(
        self, role: Literal["worker", "server"], each: Resources, count: int, *, owns: bool = True
    ) -> list[FluidNode]:
        """Add nodes that have no places yet, and return them."""
        first = max((node.number for node in self.nodes), default=-1) + 1
        added = [FluidNode(role, each, owns=owns, number=first + at) for at in range(count)]
        self.nodes += added
        return added

    def of_role(self, role: Literal["worker", "server"]) -> list[FluidNode]:
        return [node for node in self.nodes if node.role == role]

    @property
    def owners(self) -> list[FluidNode]:
        """Servers that have rows, or had: without one of them it can't train."""
        return [node for node in self.nodes if node.role == "server" and node.owns]

    @property
    def unplaced_cores(self) -> float:
        """Cores that its nodes without a place want."""
        return sum(node.resources.cores for node in self.nodes if node.host < 0)

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def samples_until_full(self) -> float:
        """Samples after which its servers have filled their memory; 0 if its workers have from the beginning."""
        its, owners = self.request, self.owners
        if its.memory.worker(its.costs.depth) > self.plan.worker.each.memory:
            return 0.0
        case = min(node.resources.memory for node in owners), len(owners)
        if self._full[0] != case:
            self._full = case, its.memory.samples_within(case[0], 1 / case[1])
        return self._full[1]

    def passes(self, now: float) -> None:
        """Let samples flow until now."""
        seconds = now - self.since
        if self.training_from is not None:
            every = self.request.checkpoint_seconds
            saved_at = self.training_from + every * math.floor((now - self.training_from) / every)
            if saved_at > self.since:
                self.saved_samples = self.samples + self.rate.samples * (saved_at - self.since)
        before = self.samples
        self.samples += self.rate.samples * seconds
        if seconds > 0.0:
            self._uses(seconds, before)
            self._measures(seconds, self.samples - before)
        self.since = now

    def _uses(self, seconds: float, before: float) -> None:
        """Count what nodes that have places use, and are given."""
        placed = [node for node in self.nodes if node.host >= 0]
        if not placed:
            return
        cores = self.rate.worker_cores + self.rate.server_cores
        given = sum(node.resources.cores for node in placed)
        given_bytes = float(sum(node.resources.memory for node in placed))
        used_bytes = self._mean_bytes(placed, before)
        self.used_core_seconds += cores * seconds
        self.given_core_seconds += given * seconds
        self.used_byte_seconds += used_bytes * seconds
        self.given_byte_seconds += given_bytes * seconds
        self.usage.append(Usage(self.since, self.since + seconds, cores, given, used_bytes, given_bytes))

    def _mean_bytes(self, placed: list[FluidNode], before: float) -> float:
        """Return the mean memory of nodes that are there, by Simpson's rule: rows grow ever more slowly, and smoothly."""
        its = self.request.memory
        up = [node for node in placed if node.up]
        base = sum(its.worker(self.request.costs.depth) if node.role == "worker" else its.server_bytes for node in up)
        owners = len(self.owners)
        share = sum(node.role == "server" and node.owns for node in up) / owners if owners else 0.0
        if not share:
            return float(base)
        if self.samples == before:
            return float(base + share * its.row_bytes(before))
        rows = its.row_bytes(before) + 4 * its.row_bytes((before + self.samples) / 2) + its.row_bytes(self.samples)
        return float(base + share * rows / 6)

    def _measures(self, seconds: float, samples: float) -> None:
        if self.changing or not samples or not all(node.up for node in self.nodes):
            return
        known = self.measured.pop(self.plan, PlanRate(self.plan, 0.0, 0.0))
        self.measured[self.plan] = PlanRate(self.plan, known.seconds + seconds, known.samples + samples)
