"""The profiler of a job within its master: feeds it, says when nothing can be measured, and hands on what it finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.jobs.profiles import Gap
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.profiling.profiler import Pace, Part, Profiler, Situation
from dlrover_lite.master.work.shards import Answer, ShardService
from dlrover_lite.protocol.messages import LeaseRequest, PsReport
from dlrover_lite.protocol.nodes import Enforcement
from dlrover_lite.protocol.profiles import Level, Profile
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.frames import MalformedMessage

if TYPE_CHECKING:
    from dlrover_lite.master.generation_run import GenerationRun

__all__ = ["Profiling", "Sink", "Usual"]

LEVEL_STEP = 0.02
"""Share of a PS's memory limit: what it holds is told again once it has grown by that."""


class Sink(Protocol):
    """Who is to have what was measured."""

    def keep(self, found: Profile | Gap) -> None:
        """Keep what was measured. Raises DlroverLiteError when it can't: it isn't asked again for this one."""


class Usual:
    """Evaluations and checkpoints that leave no time to measure training without them are part of it: a job that evaluates every few
    seconds is as fast as it is with that."""

    PATIENCE_SECONDS = 15.0
    """Seconds without a stretch that is long enough for an interval, before evaluations and checkpoints count as part of training."""

    def __init__(self, enough_seconds: float) -> None:
        """Create one. ``enough_seconds``: length of a stretch without evaluations and checkpoints that is long enough."""
        self._enough_seconds = enough_seconds
        self._free_since: float | None = None
        """Time since when there is no evaluation or checkpoint; None: there is no training that could be measured."""
        self._enough_at = 0.0
        """Time when there was a long enough stretch last, or training began."""
        self.is_usual = False

    def disturbs(self, now: float, *, under_way: bool, trains: bool) -> bool:
        """Return whether one that is under way keeps training from being measured. ``trains``: nothing else does."""
        if not trains:
            self._free_since = None
            return under_way
        if self._free_since is None:
            self._free_since = self._enough_at = now
        if under_way:
            self._free_since = now
        elif now - self._free_since >= self._enough_seconds:
            self._enough_at, self.is_usual = now, False
        if now - self._enough_at >= self.PATIENCE_SECONDS:
            self.is_usual = True
        return under_way and not self.is_usual


@dataclass(eq=False)
class Profiling:
    """``sinks`` are given each interval when it has ended."""

    job: str
    recipe: Recipe
    shards: ShardService
    sinks: list[Sink]
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    enforcement: Enforcement
    pace: Pace | None = None

    def __post_init__(self) -> None:
        pace, batch_size = self.pace or Pace(), self.recipe.training.batch_size
        before = self.shards.consumed_samples
        self.profiler = Profiler(
            self.job,
            batch_size=batch_size,
            samples_so_far=before,
            pace=pace,
            shared_cores=self.enforcement.shared_cores,
        )
        self.usual = Usual(pace.warm_up_seconds + pace.least_seconds)
        self._at_work: set[str] = set()
        """Workers that have trained."""
        self._readings_at = -math.inf
        self._complained = ""
        self._told: Level | None = None
        self._fleet: Fleet | None = None
        """The fleet that ``_parts`` are of."""
        self._parts: tuple[Part, ...] = ()

    @property
    def seconds_left(self) -> float:
        """Seconds that are left of the interval under way; 0: nothing can be measured."""
        ends = self.profiler.ends
        return 0.0 if ends is None else max(0.0, ends - self.clock())

    @property
    def ends_at(self) -> float | None:
        """Time when the interval under way is to be over, in seconds since the epoch; None: nothing can be measured."""
        return None if self.profiler.ends is None else self.wall_clock() + self.seconds_left

    def taken_over(self, why: str) -> None:
        """Note that an earlier master was at an interval, of which nothing is known any more."""
        self._keep(Gap(self.wall_clock(), None, why))

    def worked(self, request: LeaseRequest, answer: Answer, *, samples: int) -> None:
        """Handle a worker's report; ``samples`` are consumed by it that weren't before."""
        of, newly = answer.consumed.of, answer.consumed.newly
        if of is not None and of.kind == "train":
            self._at_work.add(request.node)
            self.profiler.worked(self.clock(), request.node, samples=samples, minibatches=newly, report=request.report)

    def served(self, report: PsReport) -> None:
        """Handle a report of a PS. Raises MalformedMessage."""
        counters = report.counters
        if counters is None:
            return
        if not (0 <= counters.busy_seconds < math.inf and 0 <= counters.queue_seconds < math.inf):
            raise MalformedMessage(f"{counters.busy_seconds} busy seconds, {counters.queue_seconds} in the queue")
        self.profiler.served(self.clock(), report)

    def turn(self, run: GenerationRun) -> None:
        """Handle what has changed, and what is over by now."""
        now, at = self.clock(), self.wall_clock()
        if run.reconciler.readings is not None and run.reconciler.readings[0] > self._readings_at:
            self._readings_at, readings = run.reconciler.readings
            self.profiler.readings(self._readings_at, readings)
        if run.fleet is not self._fleet:
            self._fleet, up = run.fleet, [node for node in run.fleet.running if node.state == "up"]
            self._parts = tuple(Part(node.id, node.role, node.resources.cores) for node in up)
        disturbed, beside = self._disturbed(run), self._beside(run)
        if self.usual.disturbs(now, under_way=bool(beside), trains=not disturbed):
            disturbed = disturbed or beside
        self._keep(self.profiler.situation(now, at, Situation(self._parts, disturbed)))
        self._keep(self.profiler.tick(now, at))
        if self.profiler.waits_for_readings(now):
            run.reconciler.read_soon()

    def level(self, run: GenerationRun) -> Level | None:
        """Return what the PS hold, where it is news: it is told as soon as they have grown by some part of their limits."""
        servers, checkpoints = run.servers, run.checkpoints
        if not servers.at_rest or (checkpoints is not None and checkpoints.cuts.phase != "idle"):
            return None  # moves and snapshots take memory of their own
        if run.shards.trained:
            return None
        before = {one.node: one.used_bytes for one in self._told.ps} if self._told is not None else {}
        limits = run.fleet.by_id

        def is_news(used: Mapping[str, int]) -> bool:
            return any(
                node not in before or abs(its - before[node]) >= LEVEL_STEP * limits[node].resources.memory
                for node, its in used.items()
            )

        found = self.profiler.level(self.clock(), self.wall_clock(), is_news)
        self._told = found or self._told
        return found

    def _disturbed(self, run: GenerationRun) -> str:
        servers = run.servers
        if run.outcome is not None or run.beginning is not None or run.stopping:
            return "the job ends"
        if run.disk.interrupted:
            return "the disk was full"
        if run.shards.trained:
            return "training is over"
        if not servers.state.version or servers.restore is not None:
            return "the parameter servers aren't ready"
        for node in run.fleet.running:
            if node.state != "up":
                return f"{node.id} is {node.state}"
            if node.role == "worker" and node.id not in self._at_work:
                return f"{node.id} has not begun to train"
            if node.role == "ps" and not servers.tidy(node.id):
                return f"slots come to {node.id} or leave it"
        if not servers.settled:
            return "slots are to move"
        return ""

    @staticmethod
    def _beside(run: GenerationRun) -> str:
        """Say what goes on beside training and takes of its CPU, in words."""
        if run.rounds.open:
            return "an evaluation is under way"
        if run.checkpoints is not None and run.checkpoints.cuts.phase != "idle":
            return "a checkpoint is taken"
        return ""

    def _keep(self, found: Profile | Gap | None) -> None:
        if found is None:
            return
        for sink in self.sinks:
            try:
                sink.keep(found)
            except DlroverLiteError as error:  # training goes on without
                if error.message != self._complained:
                    print(f"a profile is lost: {error.message}", flush=True)
                self._complained = error.message
