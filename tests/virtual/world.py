"""A whole job on a virtual clock: the real master and the real brain over simulated machines, with programs that take the time of training.

Each of them is an actor that is stepped when a message has come for it, or when it is to be woken. All chance comes from one seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dlrover_lite.backends.sim.backend import SimBackend
from dlrover_lite.backends.sim.clock import EventClock
from dlrover_lite.backends.sim.cluster import Cluster
from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.startup import Startup
from dlrover_lite.backends.sim.process import Process, Program
from dlrover_lite.brain.advisor import Advisor, Told
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server.service import Service
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.jobs import events as stories
from dlrover_lite.jobs.store import Job
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.edge import Edge
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.io_queue import InlineIo
from dlrover_lite.master.master import Master
from dlrover_lite.master.outcome import Outcome
from dlrover_lite.master.work.shard_plan import JobData, ShardPlan
from dlrover_lite.protocol.brain_messages import Advice, BrainRequests, RegisterJob
from dlrover_lite.protocol.demands import demand_of
from dlrover_lite.protocol.features import features_of
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.messages import (
    Ack,
    Export,
    Exported,
    Finished,
    Heartbeat,
    Hello,
    Lease,
    LeaseRequest,
    MasterReplies,
    MasterRequests,
    PsCounters,
    PsOrders,
    PsReport,
    ReadySlots,
    TableCount,
    Topology,
    TopologyRequest,
    Wait,
    WorkReport,
)
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.recipe.id_kinds import reconcile
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.frames import Later
from dlrover_lite.transport.memory import MemoryConnector, Network

__all__ = ["World"]

EPOCH = 1_700_000_000.0
MASTER, BRAIN = "memory://master", "memory://brain"
CAPACITY = Resources(8.0, 16 * GIB)
OWN_BYTES = 60 * MIB
"""Bytes of a node beside its rows."""
STARTUP = Startup(pending_seconds=0.2, starting_seconds=1.0, joining_seconds=0.0)
HOSTS = [Host("here", CAPACITY)]
WORKER_CPU_SECONDS, PS_CPU_SECONDS = 0.2, 0.04
"""CPU seconds that a minibatch takes of a worker, and of all parameter servers together."""
_RETRY_SECONDS = 2.0
_REPORT_SECONDS = 0.25
_BEAT_SECONDS = 1.0
_BRAIN_SECONDS = 0.5
_WORK_SECONDS = 1.0
"""Seconds for which a worker trains before it reports."""


class Actor(Protocol):
    @property
    def wake_at(self) -> float:
        """Time when it is to take a step, whether or not a message has come."""

    @property
    def has_mail(self) -> bool:
        """A message has come that it hasn't seen."""

    def step(self) -> None:
        """Do what is due, and take messages."""


class Node:
    """A program of a node: it says hello, and then does its work by asking the master one thing after the other."""

    def __init__(self, world: World, spec: NodeSpec) -> None:
        self.world, self.spec, self.id = world, spec, spec.id
        self._due_at = self._beat_at = world.clock.now
        self._client = MemoryConnector(world.network).client(MASTER, MasterReplies)
        self._asked: tuple[int, msgspec.Struct] | None = None
        self._next: Callable[[], msgspec.Struct] = self._hello

    def begin(self, process: Process) -> None:
        self.process = process
        process.hold(OWN_BYTES)
        self.world.programs.append(self)

    def asked_to_end(self) -> None:
        self.process.end(-15)

    @property
    def wake_at(self) -> float:
        return min(self._due_at, self._beat_at)

    @property
    def has_mail(self) -> bool:
        return self._client.has_mail

    def step(self) -> None:
        now = self.world.clock.now
        while (reply := self._client.receive()) is not None:
            if self._asked is not None and reply.sequence == self._asked[0] and not isinstance(reply.body, Later):
                self._asked = None
                self.take(reply.body)
        if now >= self._beat_at and self.process.running:
            self._beat_at = now + _BEAT_SECONDS
            if self.spec.role == "worker":
                self._client.send(Heartbeat(self.id))
        if now >= self._due_at and self.process.running:
            self._due_at = now + _RETRY_SECONDS
            if self._asked is not None:
                self._client.send(self._asked[1], sequence=self._asked[0])
            else:
                body = self._next()
                self._asked = self._client.send(body), body

    def _hello(self) -> msgspec.Struct:
        return Hello(self.id, self.spec.role, f"memory://{self.id}")

    def take(self, body: Any) -> None:
        """Go on with what the master has answered."""
        raise NotImplementedError

    def rests(self, seconds: float, then: Callable[[], msgspec.Struct]) -> None:
        """Do nothing for a while, and then ask what ``then`` says."""
        self._due_at, self._next = self.world.clock.now + seconds, then

    def close(self) -> None:
        self._client.close()


class Worker(Node):
    """Trains minibatches in the time that its cores and the parameter servers' take, a little more or less, and reports now and then."""

    applied: Callable[[str], None] = staticmethod(lambda _server: None)
    """Function that is told which server has taken its gradients, or won't, as it has ended."""
    _lease: Lease | None = None
    _done = 0
    """Minibatches of the lease that are done, as a number within the epoch."""

    def take(self, body: Any) -> None:
        match body:
            case Topology():
                self.rests(0.0, lambda: LeaseRequest(self.id))
            case Lease():
                self._lease, self._done = body, body.start
                self._train(body)
            case Ack() if self._lease is not None:
                self._train(self._lease)
            case Wait():
                self.rests(max(0.05, body.seconds), lambda: LeaseRequest(self.id))
            case Export():
                self.rests(1.0, lambda: Exported(self.id, self.world.rows, 1000))
            case Finished():
                self.process.end(0)
            case _:
                self.rests(0.0, lambda: TopologyRequest(self.id))

    def _train(self, lease: Lease) -> None:
        """Compute some minibatches of the lease; then the servers take their gradients, and then it reports."""
        servers = [node for node in self.world.programs if node.spec.role == "ps"]
        each = WORKER_CPU_SECONDS / self.process.limits.cores * self.world.random.lognormvariate(0.0, 0.1)
        first, self._done = self._done, min(lease.stop, self._done + max(1, int(_WORK_SECONDS / each)))
        minibatches = self._done - first
        self.world.trained(minibatches)
        began = self.world.clock.now
        self._due_at = float("inf")  # the end of this work is what it waits for

        def computed() -> None:
            pushed = self.world.clock.now
            left = {node.id for node in servers if node.process.running}

            def applied(server: str) -> None:
                if server in left:
                    left.remove(server)
                    if not left:
                        self._report(lease, first, pushed - began, self.world.clock.now - pushed)

            self.applied = applied
            for node in servers:
                if node.process.running:
                    node.process.do(minibatches * PS_CPU_SECONDS / len(servers), partial(applied, node.id))
            if not left:
                self._report(lease, first, pushed - began, 0.0)

        self.process.do(minibatches * WORKER_CPU_SECONDS, computed)

    def _report(self, lease: Lease, first: int, computing_seconds: float, pushing_seconds: float) -> None:
        minibatches = self._done - first
        compute = {"read": 0.1 * computing_seconds, "compute": 0.9 * computing_seconds}
        report = WorkReport(
            samples=minibatches * self.world.plan.batch_size,
            minibatches=minibatches,
            seconds={**compute, "pull": 0.0, "push": pushing_seconds, "wait": 0.0},
            cpu_seconds={"compute": 0.8 * minibatches * WORKER_CPU_SECONDS},
        )
        request = LeaseRequest(
            self.id,
            token=lease.token,
            consumed=[(first, self._done)],
            report=report,
            want=self._done == lease.stop,
            holding=[lease.token],
        )
        self.rests(0.0, lambda: request)


class Server(Node):
    """Follows its orders at once, and reports several times a second."""

    def __init__(self, world: World, spec: NodeSpec) -> None:
        super().__init__(world, spec)
        self._orders = PsOrders(0)

    def take(self, body: Any) -> None:
        if isinstance(body, PsOrders) and body.version >= self._orders.version:
            self._orders = body
        self.rests(_REPORT_SECONDS, self._report)

    def _report(self) -> PsReport:
        share = self.world.rows // max(1, sum(node.spec.role == "ps" for node in self.world.programs))
        self.process.hold(OWN_BYTES + 64 * share)
        self.world.machines.settle_all()
        counters = PsCounters(
            self.process.cpu_seconds,
            0.1 * self.process.cpu_seconds,
            2 * self.world.minibatches,
            64 * share,
            [TableCount("C1", 16, share)],
        )
        ready = [ReadySlots(move.move, move.slots) for move in self._orders.moves if move.target == self.id]
        return PsReport(
            self.id,
            rows=share,
            bytes=64 * share,
            pushes=self.world.minibatches,
            version=self._orders.version,
            ready=ready,
            counters=counters,
        )


class Brain:
    """The brain's service with its advisor, over a database."""

    def __init__(self, world: World, path: Path) -> None:
        self.wake_at = 0.0
        self._world = world
        self._store = ConfigStore(path)
        self._advisor = Advisor(ConfigStore(path), say=world.said.append)
        self._told: list[Told] = []
        self._advice: dict[str, Advice] = {}
        self._server = MemoryConnector(world.network).server(BRAIN, BrainRequests, remember_replies=True)
        self._service = Service(
            self._server,
            self._store,
            look=lambda _: None,
            advise=lambda job: self._advice.get(job),  # noqa: PLW0108 - it is another dict each time
            tell=self._told.append,
            clock=world.clock,
            wall_clock=world.wall_clock,
        )

    @property
    def has_mail(self) -> bool:
        return self._server.has_mail

    def step(self) -> None:
        self._service.turn(0.0)
        if self._world.clock.now >= self.wake_at:
            self.wake_at = self._world.clock.now + _BRAIN_SECONDS
            for advice in self._advisor.step(self._world.wall_clock(), self._told):
                self._advice = advice
            self._told.clear()


class MasterActor:
    """The master, over a server; it can be killed, and another one started."""

    def __init__(self, world: World, job: Job, link: Callable[[EventLog], BrainLink]) -> None:
        self.wake_at = 0.0
        self.outcome: Outcome | None = None
        self._world, self._job, self._link = world, job, link
        self.start()

    @property
    def has_mail(self) -> bool:
        return self._server.has_mail

    def start(self) -> None:
        world, job = self._world, self._job
        self._server = MemoryConnector(world.network).server(MASTER, MasterRequests, remember_replies=True)
        before = stories.read(job.directory, on_damage=world.said.append).entries
        story = EventLog(lambda entries: stories.append(job.directory, entries), world.wall_clock, before)
        edge = Edge(
            endpoint=MASTER,
            attempt=self._server.attempt,
            io=InlineIo,
            stop=lambda: False,
            wall_clock=world.wall_clock,
            free=lambda _: GIB,
        )
        data = JobData(world.plan, reconcile([], None, whose="the job"))
        self._brain = self._link(story)
        self._master: Master | None = Master(
            job,
            data,
            world.backend.capacity(),
            world.backend,
            edge,
            story=story,
            brain=self._brain,
            now=world.clock.now,
        )
        self.wake_at = world.clock.now

    def step(self) -> None:
        assert self._master is not None
        outbox, self.wake_at = self._master.step(self._world.clock.now, self._server.receive())
        for request, body in outbox:
            self._server.answer(request, body)
        self.outcome = self._master.outcome

    def kill(self) -> None:
        """End it as by kill -9; what was asked of it is lost."""
        assert self._master is not None
        self._master.close()
        self._brain.close()
        self._server.close()
        self.start()


class World:
    """One job, the brain that advises it, and the machines that they are on."""

    def __init__(
        self, directory: Path, recipe: Recipe, plan: ShardPlan, *, seed: int, hosts: list[Host] | None = None
    ) -> None:
        self.clock = EventClock()
        self.random = random.Random(seed)
        self.network = Network(self.clock, seed=seed, latency_seconds=lambda: 1e-4 + self.random.expovariate(2000.0))
        self.plan = plan
        self.said: list[str] = []
        self.minibatches = 0
        machines = {host.name: Machine(host.resources.cores, memory=host.resources.memory) for host in hosts or HOSTS}
        self.machines = Cluster(machines, self.clock)
        self.programs: list[Node] = []
        """What runs, in the order of its start."""
        self.backend = SimBackend(self.machines, self._program, startup=STARTUP, seed=seed, epoch=EPOCH)
        self._seen = 0
        self.without_room: set[str] = set()
        """Nodes that no machine had room for at some time."""
        job = Job(directory / "ads-1")
        job.directory.mkdir()
        (job.directory / "recipe.json").write_bytes(msgspec.json.encode(recipe))
        self.job = job
        self.brain = Brain(self, directory / "brain.sqlite")
        features = features_of(recipe, rows=plan.samples, owner="ada")
        registration = RegisterJob(
            job=job.id,
            name=features.name,
            owner=features.owner,
            model=features.model,
            directory=str(job.directory),
            created_at=EPOCH,
            started_at=EPOCH,
            features=msgspec.to_builtins(features),
            demand=demand_of(recipe, self.backend.capacity(), samples=plan.samples),
        )

        def link(story: EventLog) -> BrainLink:
            return BrainLink(
                registration,
                lambda: BRAIN,
                connector=MemoryConnector(self.network),
                say=lambda line: story.node("master", line),
                clock=self.clock,
                wall_clock=self.wall_clock,
            )

        self.master = MasterActor(self, job, link)

    def _program(self, spec: NodeSpec) -> Program:
        return Server(self, spec) if spec.role == "ps" else Worker(self, spec)

    def _look(self) -> None:
        """Take note of what has become of nodes."""
        for node in [one for one in self.programs if not one.process.running]:
            node.close()
            self.programs.remove(node)
            for worker in self.programs:
                if isinstance(worker, Worker):
                    worker.applied(node.id)
        if (seen := self.backend.observe(after=self._seen)) is not None:
            self._seen = seen.version
            self.without_room |= {name for name, one in seen.nodes.items() if one.no_room}

    def wall_clock(self) -> float:
        return EPOCH + self.clock.now

    @property
    def rows(self) -> int:
        """Number of embedding rows that have been trained by now: ever fewer ids are new."""
        return int(1e6 * (1 - 0.9997**self.minibatches))

    def trained(self, minibatches: int) -> None:
        self.minibatches += minibatches

    def run(self, *, until: Callable[[], bool], most_seconds: float) -> None:
        """Let time pass, from one event to the next."""
        while not until():
            actors: list[Actor] = [self.master, self.brain, *self.programs]
            arrival = self.network.next_arrival
            times = [actor.wake_at for actor in actors] + ([arrival] if arrival is not None else [])
            self.clock.run_until(min([*times, self.clock.next_at]))
            assert self.clock.now < most_seconds, self.master.outcome
            self.network.deliver()
            self._look()
            for actor in actors:
                if actor.has_mail or actor.wake_at <= self.clock.now:
                    actor.step()
