"""Who acts in a simulated world: masters and the brain, each in a process of its own that can be killed and started again."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dlrover_lite.backends.sim.clock import Event
from dlrover_lite.brain.advisor import Advisor, Told
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server.service import Service
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.failpoints import Died, armed
from dlrover_lite.core.units import GIB
from dlrover_lite.jobs import events as stories
from dlrover_lite.master.edge import Edge
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.generation_run import GenerationRun
from dlrover_lite.master.io_queue import InlineIo
from dlrover_lite.master.master import Master
from dlrover_lite.master.outcome import Outcome
from dlrover_lite.master.slots.slot_state import SlotState
from dlrover_lite.protocol.brain_messages import Advice, BrainRequests
from dlrover_lite.protocol.messages import MasterRequests
from dlrover_lite.transport.memory import MemoryConnector, MemoryServer

if TYPE_CHECKING:
    from dlrover_lite.master.autoscale.brain_link import BrainLink
    from dlrover_lite.master.autoscale.first_plan import FirstPlan
    from dlrover_lite.master.work.ledger_store import LedgerStore
    from dlrover_lite.simulation.job import SimulatedJob
    from dlrover_lite.simulation.world import World

__all__ = ["BRAIN", "Actor", "BrainActor", "MasterActor", "WatchedMaster"]

BRAIN = "memory://brain"
_ROUNDING = 1e-6
"""Seconds by which somebody is woken later, where one clock's time is found from another's: never before it is time there."""


class Actor:
    """Something that takes a step when a message has come for it, and when it has asked to be woken."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.connector = MemoryConnector(world.network, on_mail=self.called)
        self._alarm: Event | None = None

    def called(self) -> None:
        """Take a step at this moment."""
        self.world.due(self)

    def wake_at(self, moment: float) -> None:
        """Be woken at a moment of the world's clock, and not when was said before; infinite: not at all."""
        if self._alarm is not None:
            if self._alarm.at == moment and self._alarm.due:
                return
            self._alarm.cancel()
        self._alarm = None if math.isinf(moment) else self.world.clock.at(moment, self.called)

    def step(self) -> None:
        """Take messages, and do what is due."""
        raise NotImplementedError


class WatchedMaster(Master):
    """The master, which lets its generation be seen."""

    run: GenerationRun | None = None
    """The generation that runs, or ran last; None: none has."""

    def _run_over(self, store: LedgerStore, nodes: FirstPlan) -> GenerationRun:
        self.run = super()._run_over(store, nodes)
        return self.run


class MasterActor(Actor):
    """The master of a job, over a server. When it is killed it is started again after a while, over what is durable."""

    def __init__(self, world: World, job: SimulatedJob) -> None:
        super().__init__(world, f"{job.id} master")
        self.outcome: Outcome | None = None
        self.is_asleep = False
        """Its machine sleeps."""
        self._pauses = 0
        self.kills = 0
        """How often it was killed."""
        self.dies_at = ""
        """The failpoint at which it is killed when it comes there; empty: nowhere."""
        self.on_death: Callable[[], object] = lambda: None
        """Is called when it is killed there."""
        self.restart_seconds = 0.5
        self.job = job
        self.run: GenerationRun | None = None
        """The generation that it runs, or ran last; None: it hasn't begun with one."""
        self._slots = SlotState()
        """Slots and their moves after its last step."""
        self._master: WatchedMaster | None = None
        self._server: MemoryServer | None = None
        self._brain: BrainLink | None = None
        self.start()

    @property
    def lives(self) -> bool:
        return self._master is not None

    @property
    def is_stopped(self) -> bool:
        """It lives, and takes no step."""
        return self._pauses > 0

    def start(self) -> None:
        """Start it, unless it runs or the job has ended."""
        world, job = self.world, self.job
        if self._master is not None or self.outcome is not None:
            return
        self.run = None  # what the one before knew, and hadn't made durable, is nobody's
        self._server = server = self.connector.server(job.endpoint, MasterRequests, remember_replies=True)
        directory = job.files.directory
        before = stories.read(directory, on_damage=world.said.append).entries
        story = EventLog(
            lambda entries: stories.append(directory, entries),
            world.wall_clock,
            before,
            say=lambda line: world.note(job.id, line),
        )
        edge = Edge(
            endpoint=job.endpoint,
            attempt=server.attempt,
            io=InlineIo,
            stop=lambda: False,
            wall_clock=world.wall_clock,
            free=lambda _: 0 if job.is_disk_full else GIB,
            pace=job.spec.pace,
            cadence=world.cadence,
            is_synced=False,
        )
        self._brain = job.link(story)
        self._master = WatchedMaster(
            job.files,
            job.data,
            job.backend,
            edge,
            story=story,
            brain=self._brain,
            now=job.master_clock(),
            checkpoints=job.checkpoints,
        )
        self.called()

    def step(self) -> None:
        if self._master is None or self._server is None or self._pauses:
            return
        points = self.job.failpoints(self.dies_at)
        try:
            with armed(points) if points else nullcontext():
                outbox, wake_at = self._master.step(self.job.master_clock(), self._server.receive())
        except Died:
            self.world.note(self.name, f"is killed at {self.dies_at}")
            self.dies_at = ""
            self.on_death()
            self.kill()
            return
        except DlroverLiteError as error:
            self.outcome = Outcome("failed", error.message, error.hint)
            self.close()
            return
        self.run = self._master.run or self.run
        if self.run is not None and (slots := self.run.servers.state) is not self._slots:
            before, self._slots = self._slots, slots
            self.job.on_slots(before, slots)
        if self._server.unforeseen:
            self.world.problems.append(f"{self.name}: a request met an exception that nobody had thought of")
        for request, body in outbox:
            self._server.answer(request, body)
        self.outcome = self._master.outcome
        if self.outcome is not None:
            self.close()
        else:
            due = max(wake_at, self.job.master_clock())  # at once, where it says that it was due long ago
            self.wake_at(due + self.job.slept + (_ROUNDING if self.job.slept else 0.0))

    def kill(self) -> None:
        """End it as by kill -9: what was asked of it and isn't answered is lost. It is started again after a while."""
        if self._master is None:
            return
        self.kills += 1
        self._pauses = 0
        self.close()
        self.world.clock.after(self.restart_seconds, self.start)

    def pause(self, paused: bool) -> None:
        """Stop it, or let it go on."""
        self._pauses = self._pauses + 1 if paused else max(0, self._pauses - 1)
        self.called()

    def sleeps(self, seconds: float) -> None:
        """Have its machine sleep: it is stopped, and its steady clock stands still."""

        def wakes() -> None:
            self.is_asleep = False
            self.job.slept += seconds
            self.pause(False)

        self.is_asleep = True
        self.pause(True)
        self.world.clock.after(seconds, wakes)

    def close(self) -> None:
        if self._master is not None:
            self._master.close()
        if self._brain is not None:
            self._brain.close()
        if self._server is not None:
            self._server.close()
        self._master = self._brain = self._server = None
        self.wake_at(math.inf)


class BrainActor(Actor):
    """The brain's service with its advisor, over a database. When it is killed it is started again after a while."""

    def __init__(self, world: World, path: Path) -> None:
        super().__init__(world, "brain")
        self.paused = False
        self.restart_seconds = 2.0
        self._path = path
        self._service: Service | None = None
        self._decide_at = 0.0
        self.start()

    @property
    def lives(self) -> bool:
        return self._service is not None

    @property
    def registered(self) -> frozenset[str]:
        """The jobs that it decides about."""
        return self._advisor.jobs

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._service is not None:
            return
        world = self.world
        self._store = ConfigStore(self._path, is_synced=False)
        self._decisions = ConfigStore(self._path, is_synced=False)
        self._advisor = Advisor(self._decisions, policies=world.policies, say=world.said.append)
        self._advisor.recall(world.wall_clock(), lambda directory: world.look_at(directory) is None)
        self._told: list[Told] = []
        self._advice: dict[str, Advice] = {}
        self._server = self.connector.server(BRAIN, BrainRequests, remember_replies=True)
        self._service = Service(
            self._server,  # type: ignore[arg-type]  # it has all that a service needs of one
            self._store,
            look=world.look_at,
            advise=self._advised,
            tell=self._told.append,
            clock=world.clock,
            wall_clock=world.wall_clock,
        )
        self._decide_at = world.clock.now
        self.called()

    def _advised(self, job: str) -> Advice | None:
        return self._advice.get(job)

    def step(self) -> None:
        if self._service is None or self.paused:
            return
        self._service.turn(0.0)
        if self.world.clock.now >= self._decide_at:
            self._decide_at = self.world.clock.now + self.world.brain_seconds
            for advice in self._advisor.step(self.world.wall_clock(), self._told):
                self._advice = advice
            self._told.clear()
        self.wake_at(self._decide_at)

    def kill(self) -> None:
        """End it as by kill -9. It is started again after a while."""
        if self._service is None:
            return
        self.close()
        self.world.clock.after(self.restart_seconds, self.start)

    def pause(self, paused: bool) -> None:
        """Stop it, or let it go on."""
        self.paused = paused
        self.called()

    def close(self) -> None:
        if self._service is not None:
            self._service.close()
            self._decisions.close()
        self._service = None
        self.wake_at(math.inf)
