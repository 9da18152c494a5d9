"""A whole job on a virtual clock: the real master and the real brain, with scripted parameter servers and workers that compute nothing.

Each of them is an actor that is stepped when a message has come for it, or when it is to be woken. All chance comes from one seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol

import msgspec

from dlrover_lite.brain.advisor import Advisor, Told
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server.service import Service
from dlrover_lite.core.errors import BackendError
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
from dlrover_lite.protocol.nodes import Enforcement, HostUsage, NodeSpec, Observation, Observed, Readings, Usage
from dlrover_lite.recipe.id_kinds import reconcile
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.frames import Later
from dlrover_lite.transport.memory import MemoryConnector, Network, VirtualClock

__all__ = ["World"]

EPOCH = 1_700_000_000.0
MASTER, BRAIN = "memory://master", "memory://brain"
CAPACITY = Resources(8.0, 16 * GIB)
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
    """A node of the job: it says hello, and then does its work by asking the master one thing after the other."""

    def __init__(self, world: World, spec: NodeSpec) -> None:
        self.world, self.spec, self.id = world, spec, spec.id
        self.resources = spec.resources
        self.cpu_seconds = 0.0
        self.ended = False
        self._due_at = self._beat_at = world.clock.now
        self._client = MemoryConnector(world.network).client(MASTER, MasterReplies)
        self._asked: tuple[int, msgspec.Struct] | None = None
        self._next: Callable[[], msgspec.Struct] = self._hello

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
        if now >= self._beat_at and not self.ended:
            self._beat_at = now + _BEAT_SECONDS
            if self.spec.role == "worker":
                self._client.send(Heartbeat(self.id))
        if now >= self._due_at and not self.ended:
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
        self.ended = True
        self._due_at = self._beat_at = float("inf")
        self._client.close()


class Worker(Node):
    """Trains minibatches in the time that its cores and the parameter servers' take, a little more or less, and reports now and then."""

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
                self.world.backend.ends(self.id, "Succeeded")
            case _:
                self.rests(0.0, lambda: TopologyRequest(self.id))

    def _train(self, lease: Lease) -> None:
        """Train some minibatches of the lease, and then report."""
        servers = [node for node in self.world.backend.alive() if node.spec.role == "ps"]
        slowest = max((PS_CPU_SECONDS / len(servers) / node.resources.cores for node in servers), default=0.1)
        each = (WORKER_CPU_SECONDS / self.resources.cores + slowest) * self.world.random.lognormvariate(0.0, 0.1)
        first, self._done = self._done, min(lease.stop, self._done + max(1, int(_WORK_SECONDS / each)))
        minibatches = self._done - first
        self.cpu_seconds += minibatches * WORKER_CPU_SECONDS
        for node in servers:
            node.cpu_seconds += minibatches * PS_CPU_SECONDS / len(servers)
        self.world.trained(minibatches)
        phases = {"read": 0.1 * each, "pull": slowest / 2, "compute": each - slowest, "push": slowest / 2, "wait": 0.0}
        report = WorkReport(
            samples=minibatches * self.world.plan.batch_size,
            minibatches=minibatches,
            seconds={name: minibatches * seconds for name, seconds in phases.items()},
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
        self.rests(minibatches * each, lambda: request)


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
        share = self.world.rows // max(1, sum(node.spec.role == "ps" for node in self.world.backend.alive()))
        counters = PsCounters(
            self.cpu_seconds,
            0.1 * self.cpu_seconds,
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


class SimulatedBackend:
    """Nodes come up after a while, and end at once when they are told to. A host holds no more cores than it has."""

    def __init__(self, world: World, hosts: list[Host]) -> None:
        self.nodes: dict[str, Node] = {}
        self.hosts = hosts
        self.on: dict[str, str] = {}
        """Host of each node."""
        self.refused: list[str] = []
        """Launches and resizes for which a host had too little."""
        self._given: dict[str, Resources] = {}
        self._world = world
        self._observed: dict[str, Observed] = {}
        self._version = 0
        self.wake_at = float("inf")
        self._starting: list[tuple[float, NodeSpec]] = []

    has_mail = False

    def step(self) -> None:
        """Start the nodes whose time has come."""
        now = self._world.clock.now
        due = [spec for at, spec in self._starting if at <= now]
        self._starting = [one for one in self._starting if one[0] > now]
        self.wake_at = min((at for at, _ in self._starting), default=float("inf"))
        for spec in due:
            kind = Server if spec.role == "ps" else Worker
            self.nodes[spec.id] = kind(self._world, spec)
            self._set(spec.id, Observed(started_at=EPOCH + now))

    def alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if not node.ended]

    def ends(self, node: str, reason: Any) -> None:
        """End a node, for a reason of its own."""
        if (known := self.nodes.get(node)) is not None:
            known.close()
        self._starting = [one for one in self._starting if one[1].id != node]
        self._given.pop(node, None)
        at = EPOCH + self._world.clock.now
        self._set(node, Observed(started_at=at, ended_at=at, reason=reason))

    def _set(self, node: str, seen: Observed) -> None:
        self._observed[node] = seen
        self._version += 1

    # --- the interface ----------------------------------------------------------------------------------------------------

    def capacity(self) -> list[Host]:
        return self.hosts

    def shared_room(self) -> None:
        return None

    def _free(self, host: Host, *, without: str = "") -> float:
        return host.resources.cores - sum(
            its.cores for node, its in self._given.items() if self.on[node] == host.name and node != without
        )

    def _refuse(self, what: str) -> NoReturn:
        self.refused.append(what)
        raise BackendError(what)

    def launch(self, spec: NodeSpec) -> None:
        if spec.id not in self._observed:
            host = max((one for one in self.hosts if spec.host in ("", one.name)), key=self._free)
            if self._free(host) < spec.resources.cores - 1e-9:
                self._refuse(f"{spec.id} needs {spec.resources.cores} cores, {host.name} has {self._free(host)} left")
            self.on[spec.id], self._given[spec.id] = host.name, spec.resources
            self._set(spec.id, Observed())
            self._starting.append((self._world.clock.now + self._world.random.uniform(0.5, 2.0), spec))
            self.wake_at = min(at for at, _ in self._starting)

    def resize(self, node: str, resources: Resources) -> None:
        host = next(one for one in self.hosts if one.name == self.on[node])
        if self._free(host, without=node) < resources.cores - 1e-9:
            self._refuse(f"{node} can't have {resources.cores} cores on {host.name}")
        if node in self._given:
            self._given[node] = resources
        self.nodes[node].resources = resources

    def terminate(self, node: str, *, grace_seconds: float, keep_memory: bool = False) -> None:
        if node in self._observed and self._observed[node].ended_at is None:
            self.ends(node, "Succeeded" if grace_seconds else "Killed")

    def observe(self, *, after: int | None = None) -> Observation | None:
        return None if self._version == after else Observation(self._version, dict(self._observed))

    def _usage(self, node: Node) -> Usage:
        memory = 100 * MIB + (64 * self._world.rows if node.spec.role == "ps" else 0)
        return Usage(node.cpu_seconds, memory, memory)

    def readings(self) -> Readings:
        nodes = {node.id: self._usage(node) for node in self.alive()}
        used = {
            host.name: sum(node.cpu_seconds for node in self.nodes.values() if self.on[node.id] == host.name)
            for host in self.hosts
        }
        hosts = [HostUsage(host.name, host.resources.cores, used[host.name]) for host in self.hosts]
        return Readings(nodes, {node: self.on[node] for node in nodes}, hosts)

    def enforcement(self) -> Enforcement:
        return Enforcement("simulation")


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
            job, data, world.backend.hosts, world.backend, edge, story=story, brain=self._brain, now=world.clock.now
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
        self.clock = VirtualClock()
        self.random = random.Random(seed)
        self.network = Network(self.clock, seed=seed, latency_seconds=lambda: 1e-4 + self.random.expovariate(2000.0))
        self.plan = plan
        self.said: list[str] = []
        self.minibatches = 0
        self.backend = SimulatedBackend(self, hosts or HOSTS)
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
            demand=demand_of(recipe, self.backend.hosts, samples=plan.samples),
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
            actors: list[Actor] = [self.master, self.brain, self.backend, *self.backend.alive()]
            arrival = self.network.next_arrival
            times = [actor.wake_at for actor in actors] + ([arrival] if arrival is not None else [])
            self.clock.advance_to(min(times))
            assert self.clock.now < most_seconds, self.master.outcome
            self.network.deliver()
            for actor in actors:
                if actor.has_mail or actor.wake_at <= self.clock.now:
                    actor.step()
