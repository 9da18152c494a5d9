"""A simulated world: machines, the brain, and jobs with their real masters, which talk over the transport in memory on a virtual clock.

All that happens follows from a seed. Whoever acts is stepped when a message has come for it, or when it is to be woken.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dlrover_lite.backends.sim.clock import EventClock, source_of_chance
from dlrover_lite.backends.sim.cluster import Cluster
from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.startup import Startup
from dlrover_lite.backends.sim.pools import Pool
from dlrover_lite.brain.policies import USUAL as POLICIES
from dlrover_lite.brain.policies import Policies
from dlrover_lite.brain_server.service import JobEnd
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.master.cadence import USUAL, Cadence
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.simulation.actors import Actor, BrainActor
from dlrover_lite.simulation.job import JobSpec, SimulatedJob
from dlrover_lite.transport.memory import Network

__all__ = ["EPOCH", "HOSTS", "STARTUP", "World"]

EPOCH = 1_700_000_000.0
"""Seconds since the epoch when a world begins."""
HOSTS = (Host("here", Resources(8.0, 16 * GIB)),)
STARTUP = Startup(pending_seconds=0.2, starting_seconds=1.0, joining_seconds=0.0)
_KEPT_NOTES = 200
_MOST_AT_ONCE = 10_000
"""Steps at one moment, after which something goes round in circles."""


class World:
    """``directory``: where the files of jobs, and the brain's database, go. Without ``brain`` jobs go by their own plans."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int = 0,
        hosts: Sequence[Host] = HOSTS,
        startup: Startup = STARTUP,
        machines: Mapping[str, Machine] | None = None,
        pools: Mapping[str, Pool] | None = None,
        brain: bool = True,
        epoch: float = EPOCH,
        latency: bool = True,
        hands_over: bool = False,
        cadence: Cadence = USUAL,
        policies: Policies = POLICIES,
        brain_seconds: float = 0.5,
        shared_cores: bool = False,
    ) -> None:
        """``latency``: messages take some time; else those of one moment arrive at that moment, in an order that the seed decides.
        ``hands_over``: messages aren't encoded. ``machines``: in place of ``hosts``, where they are unlike in more than cores and memory.
        ``pools``: the pool of each machine that comes and goes.
        ``cadence``: that of masters.
        ``shared_cores``: the nodes of a job share the cores that they have together.
        ``brain_seconds``: seconds between two looks of the brain at what it was told."""
        self.directory, self.seed, self.epoch, self.startup = directory, seed, epoch, startup
        self.cadence, self.policies, self.brain_seconds = cadence, policies, brain_seconds
        self.shared_cores = shared_cores
        self.clock = EventClock()
        self.wall_shift = 0.0
        """Seconds by which the wall clock was put forward."""
        chance = self.chance("latency")
        self.network = Network(
            self.clock,
            seed=seed,
            latency_seconds=(lambda: 1e-4 + chance.expovariate(2000.0)) if latency else (lambda: 0.0),
            hands_over=hands_over,
        )
        if machines is None:
            machines = {host.name: Machine(host.resources.cores, memory=host.resources.memory) for host in hosts}
        self.host_numbers = {name: at for at, name in enumerate(machines)}
        """Positions of machines."""
        self.machines = Cluster(machines, self.clock, pools)
        self.said: list[str] = []
        """What processes have said that somebody should know."""
        self.jobs: dict[str, SimulatedJob] = {}
        """Jobs that have arrived."""
        self.steps = 0
        """Number of steps that somebody has taken."""
        self.watchers: list[Callable[[Actor], None]] = []
        """Are told of each step that somebody has taken."""
        self.notes: deque[str] = deque(maxlen=_KEPT_NOTES)
        """The newest of what has happened, a line each."""
        self.problems: list[str] = []
        """What mustn't be, and was."""
        self.owner_changes = 0
        """How often a server has begun to follow other orders."""
        self._due: dict[Actor, None] = {}
        self._to_come = 0
        self.database = directory / "brain.sqlite"
        self.brain = BrainActor(self, self.database) if brain else None

    # --- what it is made of -----------------------------------------------------------------------------------------------

    def chance(self, name: str) -> random.Random:
        """Return a source of chance of its own for whoever has this name."""
        return source_of_chance(self.seed, name)

    def wall_clock(self) -> float:
        """Return the seconds since the epoch, as its processes are told them."""
        return self.epoch + self.clock.now + self.wall_shift

    def add(self, spec: JobSpec) -> None:
        """Have a job arrive when it is to."""
        self._to_come += 1
        self.clock.at(spec.arrives_at, lambda: self._arrive(spec))

    def _arrive(self, spec: JobSpec) -> None:
        job = SimulatedJob(self, spec)
        self._to_come -= 1
        self.jobs[job.id] = job

    @property
    def is_over(self) -> bool:
        """All jobs have come, and have ended."""
        return not self._to_come and None not in [job.master.outcome for job in self.jobs.values()]

    def look_at(self, directory: str) -> JobEnd | None:
        """Say how the job with these files has ended; None while it runs. (``brain_server.service.Look``)"""
        job = next((job for job in self.jobs.values() if str(job.files.directory) == directory), None)
        if job is None or (outcome := job.outcome) is None:
            return None
        return JobEnd(outcome.state, self.wall_clock(), outcome.message, job.files.status() or {})

    def note(self, who: str, what: str) -> None:
        """Keep what has happened, for who asks why."""
        self.notes.append(f"{self.clock.now:10.4f} {who}: {what}")

    # --- what happens to it -----------------------------------------------------------------------------------------------

    def fail_machine(self, host: str) -> None:
        """End all that runs on a machine, with all that was left there; it can't be used until it is repaired."""
        processes = self.machines.fail(host)
        for job in self.jobs.values():
            for process in processes:
                if job.backend.processes.get(process.name) is process:
                    job.backend.lost(process)
        self.machines.try_waiting()

    # --- what simulated nodes tell ----------------------------------------------------------------------------------------

    def applied_twice(self, job: SimulatedJob, server: str) -> Callable[[int, int], None]:
        """Return what a server tells when it has applied a minibatch for the second time."""

        def tell(epoch: int, k: int) -> None:
            self.problems.append(f"{job.id}: {server} has applied minibatch {k} of epoch {epoch} twice in a slot")

        return tell

    def owners_changed(self, job: SimulatedJob) -> None:
        """Note that a server of a job follows other orders than before."""
        self.owner_changes += 1

    # --- time -------------------------------------------------------------------------------------------------------------

    def due(self, actor: Actor) -> None:
        """Have somebody take a step at this moment."""
        self._due[actor] = None

    def run(self, *, until: Callable[[], bool], most_seconds: float) -> None:
        """Let time pass, from one event to the next. Raises JobError when it is later than ``most_seconds`` on the clock before that."""
        while not until():
            self.happen()
            if self.clock.now > most_seconds:
                raise JobError(f"After {most_seconds:g} s of the simulated clock it still isn't so")

    def happen(self) -> None:
        """Go on to the next moment at which something happens, and have all of it happen."""
        if not self._due:
            arrival = self.network.next_arrival
            moment = self.clock.next_at if arrival is None else min(arrival, self.clock.next_at)
            if math.isinf(moment):
                raise JobError(f"At {self.clock.now:g} s nothing more is going to happen")
            self.clock.run_until(moment)
            self.network.deliver()
        for _ in range(_MOST_AT_ONCE):
            if not self._due:
                return
            actor = next(iter(self._due))
            del self._due[actor]
            self.steps += 1
            actor.step()
            for watch in self.watchers:
                watch(actor)
        raise JobError(f"At {self.clock.now:g} s {actor.name} takes one step after the other, and no time passes")

    def close(self) -> None:
        """End all that runs, as by kill -9."""
        for job in self.jobs.values():
            job.master.close()
        if self.brain is not None:
            self.brain.close()
