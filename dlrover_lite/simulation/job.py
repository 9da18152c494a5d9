"""A job of a simulated world: what it is asked to be, its files, its master, and the programs of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.backends.sim.backend import SimBackend
from dlrover_lite.backends.sim.process import Program
from dlrover_lite.core.errors import BrainError
from dlrover_lite.jobs import checkpoint_location
from dlrover_lite.jobs.restore_point import Usable, own_checkpoint
from dlrover_lite.jobs.store import Beginning, take_up_job
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.outcome import Outcome
from dlrover_lite.master.profiling.profiler import Pace
from dlrover_lite.master.work.shard_plan import JobData, ShardPlan
from dlrover_lite.protocol.brain_messages import RegisterJob
from dlrover_lite.protocol.demands import autoscale_of, demand_of
from dlrover_lite.protocol.features import features_of
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.recipe.id_kinds import reconcile
from dlrover_lite.recipe.schema import Checkpoint, Recipe
from dlrover_lite.simulation.actors import BRAIN, MasterActor
from dlrover_lite.simulation.nodes.memory import ServerMemory
from dlrover_lite.simulation.nodes.parts import PartContents
from dlrover_lite.simulation.nodes.program import NodeProgram
from dlrover_lite.simulation.nodes.server import Server
from dlrover_lite.simulation.nodes.work import SteadyWork, Work
from dlrover_lite.simulation.nodes.worker import Worker
from dlrover_lite.transport.memory import MemoryConnector

if TYPE_CHECKING:
    from dlrover_lite.master.slots.slot_state import SlotState
    from dlrover_lite.simulation.world import World

__all__ = ["JobSpec", "SimulatedJob", "exact_program"]


def exact_program(job: SimulatedJob, spec: NodeSpec) -> NodeProgram:
    """Return the program of a node that does all that the real one does, minibatch by minibatch."""
    return Server(job, spec) if spec.role == "ps" else Worker(job, spec)


@dataclass(frozen=True)
class JobSpec:
    """A job that is to come."""

    recipe: Recipe
    plan: ShardPlan
    arrives_at: float = 0.0
    """Time on the world's clock when its master begins."""
    id: str = ""
    """Name of its directory; empty: that of the recipe, with a number."""
    owner: str = "ada"
    work: Work = field(default_factory=SteadyWork)
    counted: bool = False
    """Servers count how often each minibatch was applied in each slot."""
    program: Callable[[SimulatedJob, NodeSpec], NodeProgram] = exact_program
    """Makes the program of a node."""
    pace: Pace | None = None
    """Lengths of the intervals in which its master measures; None: as usual."""


class SimulatedJob:
    """A job that has arrived."""

    def __init__(self, world: World, spec: JobSpec) -> None:
        self.world, self.spec = world, spec
        self.id = spec.id or f"{spec.recipe.name}-{len(world.jobs) + 1}"
        self.endpoint = f"memory://{self.id}/master"
        self.slept = 0.0
        """Seconds for which the machine of its master has slept."""
        self.is_disk_full = False
        self.minibatches = 0
        """Number of minibatches that its workers have computed."""
        self._rows = -1, 0
        """A number of minibatches, and the rows after so many."""
        self.programs: dict[str, NodeProgram] = {}
        """Programs that run, in the order of their start."""
        self.parts = PartContents()
        """What is in the parts of its checkpoints."""
        self.failing: dict[tuple[int, int], Callable[[], object]] = {}
        """Minibatches (epoch, k) that are to raise the next time, with what is called then."""
        self.failing_exports: list[Callable[[], object]] = []
        """Is called, one after the other, when an export of its model fails, which it does as long as there is one left."""
        self.exports = 0
        """How often its model was exported."""
        self.crashes = False
        """Its workers end by themselves soon after they have begun."""
        self.on_slots: Callable[[SlotState, SlotState], None] = lambda before, now: None
        """Is told when its master's slots, or their moves, are others than before."""
        self.memories: dict[str, ServerMemory] = {}
        """What each of its servers has left, or has."""
        self.data = JobData(spec.plan, reconcile([], None, whose="the job"))
        self.files = take_up_job(world.directory / self.id, spec.recipe, created_at=world.wall_clock())
        takes = isinstance(spec.recipe.checkpoint, Checkpoint)
        self.checkpoints = checkpoint_location.destination(spec.recipe, self.id, self.files.home) if takes else ""
        self.backend = SimBackend(
            world.machines,
            self._program,
            startup=world.startup,
            seed=world.seed,
            job=self.id,
            epoch=world.epoch,
            shared_cores=world.shared_cores,
        )
        self.master = MasterActor(world, self)

    @property
    def outcome(self) -> Outcome | None:
        """How it has ended; None: it hasn't."""
        return self.master.outcome

    @property
    def is_over(self) -> bool:
        """The job has ended."""
        return self.master.outcome is not None

    def master_clock(self) -> float:
        """Return the time of its master's steady clock, which stands still while that one's machine sleeps."""
        return self.world.clock.now - self.slept

    def servers(self) -> list[Server]:
        return [one for one in self.programs.values() if isinstance(one, Server)]

    def workers(self) -> list[Worker]:
        return [one for one in self.programs.values() if isinstance(one, Worker)]

    def rows(self) -> int:
        """Return the number of embedding rows that have been trained by now."""
        if self._rows[0] != self.minibatches:
            self._rows = self.minibatches, self.spec.work.rows(self.minibatches)
        return self._rows[1]

    # --- what happens to it -----------------------------------------------------------------------------------------------

    def resume(self) -> bool:
        """Have a job that was stopped go on with its newest checkpoint; return whether there is one."""
        found = own_checkpoint(self.files)
        if not isinstance(found, Usable):
            return False
        waits_since = None if autoscale_of(self.spec.recipe) == "off" else self.world.wall_clock()
        generation = (self.files.generation() or 0) + 1
        beginning = Beginning(generation, found.url, found.manifest.cut, waits_since=waits_since)
        beginning = beginning.after(self.files.beginning(), found.url, found.manifest.generation)
        self.files.start_again(beginning, launcher=self.files.record().launcher, detached=True, is_over=lambda: True)
        self.master.outcome = None
        self.master.start()
        return True

    # --- what it stands on ------------------------------------------------------------------------------------------------

    def _program(self, spec: NodeSpec) -> Program:
        return self.spec.program(self, spec)

    def failpoints(self, dies_at: str) -> str:
        """Return the failpoints for a step of its master, as ``core.failpoints`` has them."""
        points = [f"{dies_at}=raise"] if dies_at else []
        if self.is_disk_full:
            # as long as these files are there: the room of the second is set aside for the result
            there = {"job.ledger": "job.json", "job.file": ".reserve"}
            points += [f"{name}=full@{self.files.directory / file}" for name, file in there.items()]
        return ",".join(points)

    def link(self, story: EventLog) -> BrainLink | None:
        """Make its master's line to the brain; None: the world has none."""
        world, recipe, samples = self.world, self.spec.recipe, self.spec.plan.samples
        if world.brain is None:
            return None
        features = features_of(recipe, rows=samples, owner=self.spec.owner)
        registration = RegisterJob(
            job=self.id,
            name=features.name,
            owner=features.owner,
            model=features.model,
            directory=str(self.files.directory),
            created_at=world.epoch + self.spec.arrives_at,
            started_at=world.epoch + self.spec.arrives_at,
            features=msgspec.to_builtins(features),
            priority=recipe.priority,
            demand=demand_of(recipe, self.backend.capacity(), samples=samples, shared_cores=self.world.shared_cores),
        )

        def find() -> str:
            if world.brain is None or not world.brain.lives:
                raise BrainError("there is no brain")
            return BRAIN

        return BrainLink(
            registration,
            find,
            connector=MemoryConnector(world.network),  # the master looks by itself what has come
            say=lambda line: story.node("master", line),
            clock=self.master_clock,
            wall_clock=world.wall_clock,
        )
