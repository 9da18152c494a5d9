"""A generation of a job over an in-memory backend and transport, its clients scripted, stepped on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from dlrover_lite.core.errors import BackendError, CantResize, RemoteError
from dlrover_lite.core.metrics import BinaryMetrics
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs import events as stories
from dlrover_lite.jobs.profiles import Gap
from dlrover_lite.jobs.store import Beginning, Job
from dlrover_lite.master.autoscale.autoscaler import Autoscaler
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.cadence import Cadence
from dlrover_lite.master.checkpoints.restore import GoingBack, begin_generation, end_generation, is_to_begin
from dlrover_lite.master.edge import Edge, as_the_master
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.full_disk import FullDisk
from dlrover_lite.master.generation_run import GenerationRun
from dlrover_lite.master.io_queue import InlineIo
from dlrover_lite.master.job_state_store import FLEET, SLOTS
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.outcome import Outcome
from dlrover_lite.master.phases import Outbox, Phase
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.shards import ShardPlan, ShardService
from dlrover_lite.protocol.demands import Autoscale
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.messages import (
    Export,
    Finished,
    Hello,
    Lease,
    LeaseRequest,
    MasterReplies,
    MasterRequests,
    PsOrders,
    PsReport,
    ReadySlots,
    Wait,
    Welcome,
    WorkReport,
)
from dlrover_lite.protocol.nodes import Enforcement, HostUsage, NodeSpec, Observation, Observed, Readings, Usage
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.profiles import Profile
from dlrover_lite.protocol.questions import StatusRequest
from dlrover_lite.recipe import schema
from dlrover_lite.transport.frames import Failure, Later, Reply
from dlrover_lite.transport.memory import MemoryConnector, Network, VirtualClock

PATIENCE = 60.0
"""Seconds, of the virtual clock, within which whatever a test waits for must have happened."""
_MOST_STEPS = 2_000
"""Steps in which it must have, where a clock stands still."""
TICK_SECONDS = 0.005
"""Seconds that pass with each request."""
EPOCH = 1_700_000_000.0
RESOURCES = Resources(1.0, 1 << 30)
CAPACITY = Resources(8.0, 8 << 30)
PATIENT = schema.Health(startup_seconds=3600.0, heartbeat_seconds=3600.0, progress_seconds=3600.0)
"""Nodes say something when a test has them do so, however long that takes it."""


class Backend:
    """Nodes exist as what is observed of them. ``terminate`` ends them at once; ``ends`` lets one end by itself; one that
    ``refuses`` starts none."""

    def __init__(self) -> None:
        self.launched: list[NodeSpec] = []
        self.terminated: list[str] = []
        self.kept: list[str] = []
        """Of those, the ones whose memory is for others."""
        self.let_go: list[str] = []
        """Terminated when they had ended: nobody wants their memory."""
        self.hosts = [Host("here", CAPACITY)]
        self.refuses = False
        self.on: dict[str, str] = {}
        """Host of a node, where it isn't the only one."""
        self.awaited: dict[str, str] = {}
        """What nodes wait for before they start."""
        self.no_room: dict[str, str] = {}
        """Why there is no room for nodes."""
        self.has_to_be_on: dict[str, str] = {}
        """The only host where a node for which there is no room can start."""
        self.unknown_host = ""
        """Host on which it launches nothing."""
        self.is_slow_to_end = False
        """Nodes that are terminated end when the test says so."""
        self.resized: list[tuple[str, Resources]] = []
        self.refuses_to_resize = ""
        self.cant_resize = ""
        self.used: dict[str, int] = {}
        """Memory, where it isn't 1,000 bytes."""
        self.step_until: Callable[[Callable[[], object]], None] = lambda _: None
        """Steps the master until something is so."""
        self._observed: dict[str, Observed] = {}
        self._version = 0

    def capacity(self) -> list[Host]:
        return self.hosts

    def shared_room(self) -> None:
        return None

    def enforcement(self) -> Enforcement:
        return Enforcement("nothing", ["anything"])

    def resize(self, node: str, resources: Resources) -> None:
        if self.refuses_to_resize:
            raise BackendError(self.refuses_to_resize)
        if self.cant_resize:
            raise CantResize(self.cant_resize)
        self.resized.append((node, resources))

    def launch(self, spec: NodeSpec) -> None:
        if self.refuses:
            raise BackendError(f"{spec.id} can't be launched any more")
        if spec.host and spec.host == self.unknown_host:
            raise BackendError(f"there is no host {spec.host}")
        if spec.id not in [other.id for other in self.launched]:
            self.launched.append(spec)
            self.starts(spec.id)

    def starts(self, node: str) -> None:
        no_room = self.no_room.get(node, "")
        awaited = self.awaited.get(node, no_room)
        waits = Observed(detail=awaited, no_room=no_room, host=self.has_to_be_on.get(node, ""))
        self._change(node, waits if awaited else Observed(started_at=0.0))

    def terminate(self, node: str, *, grace_seconds: float, keep_memory: bool = False) -> None:
        if keep_memory:
            self.kept.append(node)
        if node in self._observed and self._observed[node].ended_at is not None:
            self.let_go.append(node)
            return
        self.terminated.append(node)
        if not self.is_slow_to_end:
            self.ends(node, "Succeeded")

    def ends(self, node: str, reason: str = "Killed") -> None:
        self._change(node, Observed(started_at=0.0, ended_at=0.0, reason=reason))  # type: ignore[arg-type]

    def _change(self, node: str, seen: Observed) -> None:
        self._observed[node] = seen
        self._version += 1

    def observe(self, *, after: int | None = None) -> Observation | None:
        return None if self._version == after else Observation(self._version, dict(self._observed))

    def readings(self) -> Readings:
        ended = {node for node, seen in self._observed.items() if seen.ended_at is not None}
        running = [spec.id for spec in self.launched if spec.id not in ended]
        nodes = {node: Usage(1.5, self.used.get(node, 1000), 2000) for node in running}
        return Readings(
            nodes,
            {node: self.on.get(node, "here") for node in nodes},
            [HostUsage(name, CAPACITY.cores, 10.0) for name in sorted({"here", *self.on.values()})],
        )

    def wait_for_launch(self, node: str) -> None:
        self.step_until(lambda: any(spec.id == node for spec in self.launched))


class Kept(list[Profile | Gap]):
    """A sink for profiles."""

    def keep(self, found: Profile | Gap) -> None:
        self.append(found)


class _Killed(BaseException):
    """The master ends here and now, as by kill -9."""


def all_of(orders: PsOrders) -> list[ReadySlots]:
    """What a target says that has all there is of its moves."""
    return [ReadySlots(move.move, move.slots) for move in orders.moves]


class RigClient:
    """A client of a rig's master; to wait for a reply is to step the master."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._client = MemoryConnector(rig.network).client(rig.endpoint, MasterReplies)
        self.session = self._client.session

    def send(self, body: msgspec.Struct, *, sequence: int | None = None) -> int:
        return self._client.send(body, sequence=sequence)

    def receive(self, seconds: float) -> Reply | None:
        """Return the next reply, within so many seconds of the virtual clock; None if none comes."""
        end, steps = self._rig.clock.now + seconds, 0
        while (reply := self._client.receive()) is None and self._rig.clock.now < end and steps < _MOST_STEPS:
            self._rig.step()
            steps += 1
            if (reply := self._client.receive()) is not None or not self._rig.runs:
                break
            self._rig.passes()
        return reply


class Io(InlineIo):
    """Input and output at the checkpoints' destination: done at once, unless it ``hangs``."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self._waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, action: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._waiting.append((action, then))
        if not self.hangs:
            self.go_on()

    def go_on(self) -> None:
        """Do what has been waited for."""
        self.hangs = False
        while self._waiting:
            super().submit(*self._waiting.pop(0))

    def close(self, patience_seconds: float) -> bool:
        return not self._waiting


class Rig:
    """A master and what talks to it. Its clock moves as the master needs it, or, where a test hands one in, as the test does."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        ps: int = 1,
        workers: int = 2,
        export: str = "npz",
        optimizer_state: bool = False,
        health: schema.Health | None = None,
        refuses: bool = False,
        stopping: bool = False,
        beginning: Beginning | None = None,
        checkpoint: dict[str, Any] | None = None,
        mode: Autoscale = "off",
        brain: Callable[[Network, VirtualClock], BrainLink] | None = None,
        clock: VirtualClock | None = None,
        runs_on: schema.Cluster | Literal["local"] = "local",
        cadence: Cadence | None = None,
        **plan: Any,
    ) -> None:
        self._is_frozen = clock is not None
        self.clock = clock or VirtualClock()
        self.network = Network(self.clock)
        self.mode, self.cadence = mode, cadence or Cadence()
        self.brain = brain(self.network, self.clock) if brain is not None else None
        self.beside: list[Callable[[], None]] = []
        """What else takes a step with each of the master's."""
        self.directory = tmp_path
        self.job = Job(tmp_path)
        self.recipe = schema.Recipe(
            version=1,
            name="rig",
            model=schema.Model(use="wide_deep"),
            data=schema.CsvData(train=["x"], label="y", max_bad_share=0.01),
            export=schema.Export(format=export, optimizer_state=optimizer_state),  # type: ignore[arg-type]
            health=health or PATIENT,
            checkpoint="off" if checkpoint is None else schema.Checkpoint(**checkpoint),
            backend=runs_on,
        )
        (tmp_path / "recipe.json").write_bytes(msgspec.json.encode(self.recipe))
        if beginning is not None:
            self.job.write_beginning(beginning)
        self.checkpoints = tmp_path / "checkpoints"
        self.backend = Backend()
        self.backend.refuses = refuses
        self.backend.step_until = self.step_until
        self.outcome: Outcome | None = None
        self.profiles = Kept()
        self.clients: dict[str, RigClient] = {}
        self.fleet = Fleet(Plan(RolePlan(ps, RESOURCES), RolePlan(workers, RESOURCES)), CAPACITY)
        self.shard_plan = ShardPlan(**{"samples": 40, "batch_size": 4, "epochs": 1, **plan})
        self.endpoint = "memory://master"
        self.start(stopping=stopping)

    def wall_clock(self) -> float:
        return EPOCH + self.clock.now

    # --- the master -----------------------------------------------------------------------------------------------------

    @property
    def runs(self) -> bool:
        """Whether there is a master."""
        return self._phases is not None

    @property
    def wakes_in(self) -> float:
        """Seconds until the master has something to do by itself."""
        return self._wake_at - self.clock.now

    def start(self, *, stopping: bool = False) -> None:
        """Start a master over what an earlier one has left, if any."""
        self.server = MemoryConnector(self.network).server(self.endpoint, MasterRequests, remember_replies=True)
        self.stopping = stopping
        self.url_for_nodes: Callable[[str], str] = as_the_master
        self.outbox = Outbox()
        self._unanswerable: tuple[int, int] | None = None
        self.story = EventLog(lambda entries: stories.append(self.directory, entries), self.wall_clock)
        self._phases: Phase[Outcome] | None = self._generations()
        self._wake_at = next(self._phases)
        self.step()

    def _generations(self) -> Phase[Outcome]:
        yield self.clock.now
        while True:
            if is_to_begin(self.job):
                yield from end_generation(self.job, self.backend, self.clock, lambda _: None)
                begin_generation(
                    self.job,
                    self.shard_plan,
                    self.fleet.plan,
                    self.fleet.capacity,
                    self.story,
                    wall_clock=self.wall_clock,
                    clock=self.clock,
                )
            with LedgerStore(self.job.ledger()) as store:
                self.master = self._run_over(store)
                if (outcome := (yield from self.master.steps())) is not None:
                    return outcome

    def _run_over(self, store: LedgerStore) -> GenerationRun:
        return GenerationRun(
            "rig-1",
            self.recipe,
            ShardService(store, self.shard_plan, wait_seconds=0.01, story=self.story),
            self.backend,
            self.fleet,
            Edge(
                endpoint=self.endpoint,
                attempt=self.server.attempt,
                io=self._another_io,
                stop=lambda: self.stopping,
                wall_clock=self.wall_clock,
                free=lambda _: 4096,
                url_for_nodes=self._seen_by_nodes,
                cadence=self.cadence,
            ),
            outbox=self.outbox,
            disk=FullDisk(clock=self.clock, free=lambda _: 4096, tell=lambda line: self.story.node("master", line)),
            clock=self.clock,
            export_directory=self.directory / "export",
            checkpoints="" if self.recipe.checkpoint == "off" else str(self.checkpoints),
            story=self.story,
            go_back=GoingBack(self.job),
            brain=self.brain,
            autoscaler=Autoscaler(job="rig-1", mode=self.mode),
            profiles=[self.profiles],
        )

    def _seen_by_nodes(self, url: str) -> str:
        return self.url_for_nodes(url)

    def _another_io(self) -> Io:
        self.io = Io()
        return self.io

    def step(self) -> None:
        """Take one step of the master, and of what is beside it."""
        for turn in self.beside:
            turn()
        if self._phases is None:
            return
        try:
            self._wake_at = self._phases.send(self.server.receive())
        except StopIteration as over:
            self.outcome, self._phases = over.value, None
        except _Killed:
            self._is_gone()
            return
        for request, body in self.outbox.take():
            if (request.session, request.sequence) == self._unanswerable:
                self.kill()
                return
            self.server.answer(request, body)
        for turn in self.beside:
            turn()

    def passes(self) -> None:
        """Let time pass until the master has something to do by itself."""
        if not self._is_frozen:
            self.clock.advance_to(max(self.clock.now + 0.001, min(self._wake_at, self.clock.now + 1.0)))

    def step_until(self, condition: Callable[[], object]) -> None:
        """Step the master until something is so."""
        end = self.clock.now + PATIENCE
        for _ in range(_MOST_STEPS):
            if condition():
                return
            assert self.runs, f"the master has ended with {self.outcome}"
            assert self.clock.now < end
            self.step()
            self.passes()
        assert condition()

    def kill(self) -> None:
        """End the master between two steps, as by kill -9."""
        assert self._phases is not None
        self._phases.close()
        self._is_gone()

    def _is_gone(self) -> None:
        self._phases = None
        self.server.close()
        self.clients.clear()

    def kill_before_the_answer(self, node: str, body: Any) -> int:
        """The master applies and commits what ``node`` asks, and ends before it can answer; returns the request's number."""
        client = self.client(node)
        sequence = client.send(body)
        self._unanswerable = (client.session, sequence)
        self.join_killed()
        return sequence

    def kill_in_resize(self, node: str, body: Any) -> None:
        """The master ends in what it does for this request, when it asks the backend to resize a node."""
        resize = self.backend.resize

        def dies(*_: Any) -> None:
            raise _Killed

        self.backend.resize = dies  # type: ignore[method-assign]
        self.client(node).send(body)
        self.join_killed()
        self.backend.resize = resize  # type: ignore[method-assign]

    def kill_at(self, step: str) -> None:
        """The master ends when it next comes to ``keep_slots``, ``keep_fleet`` or ``launch``, and before it does that."""
        reconciler, facts, keep = self.master.reconciler, self.master.facts, self.master.facts.keep
        fatal = {"keep_slots": SLOTS, "keep_fleet": FLEET}.get(step)

        def die(*_: Any) -> None:
            raise _Killed

        def keep_or_die(fact: Any, value: Any) -> None:
            die() if fact is fatal else keep(fact, value)

        if fatal is None:
            reconciler._launch = die  # type: ignore[method-assign]
        facts.keep = keep_or_die  # type: ignore[method-assign]

    def join_killed(self) -> None:
        """Step the master until it is killed."""
        end = self.clock.now + PATIENCE
        while self.runs:
            assert self.clock.now < end
            self.step()
            self.passes()
        assert self.outcome is None

    # --- who talks to it ------------------------------------------------------------------------------------------------

    def client(self, node: str) -> RigClient:
        if node not in self.clients:
            self.clients[node] = RigClient(self)
        return self.clients[node]

    def ask(self, node: str, body: Any) -> Any:
        """Ask a master that is there to answer: one that may end meanwhile is to be asked with ``ask_while_it_runs``."""
        answer = self.ask_while_it_runs(node, body)
        assert answer is not None, f"the master has ended with {self.outcome}"
        if isinstance(answer, Failure):
            raise RemoteError(answer.code, answer.message, hint=answer.hint)
        return answer

    def ask_while_it_runs(self, node: str, body: Any) -> Any:
        """Return the answer, or None when the master has ended without one. Asked again meanwhile."""
        client = self.client(node)
        sequence = client.send(body)
        if not self._is_frozen:
            self.clock.now += TICK_SECONDS
        for _ in range(_MOST_STEPS):
            reply = client.receive(1.0)
            if reply is None:
                if not self.runs:
                    return None
                client.send(body, sequence=sequence)
            elif reply.sequence == sequence and not isinstance(reply.body, Later):
                return reply.body
        raise AssertionError(f"{body} isn't answered")

    def up(self, *nodes: str) -> None:
        for node in nodes:
            self.backend.wait_for_launch(node)
            role = "ps" if node.startswith("ps") else "worker"
            assert isinstance(self.ask(node, Hello(node, role, f"inproc://{node}")), Welcome)  # type: ignore[arg-type]

    def report(self, node: str, *, orders: PsOrders | None = None, **fields: Any) -> Any:
        """What a PS is told when it says that it follows ``orders``. ``ready``: numbers of moves of which it has all that these name."""
        if orders is not None and "ready" in fields:
            fields["ready"] = [one for one in all_of(orders) if one.move in fields["ready"]]
        fields = {"rows": 0, "bytes": 0, "pushes": 0, "version": orders.version if orders else 0, **fields}
        return self.ask(node, PsReport(node, **fields))

    def follow(self, *nodes: str, until: Callable[[Any], bool], finish: bool = True) -> Any:
        """PS that do what they are told, and at once, until the master's status is as wanted; with ``finish`` False no target is ever
        ready. Returns the status."""
        orders: dict[str, PsOrders] = {}
        for status in self.statuses():
            if until(status):
                return status
            for node in nodes:
                known = orders.get(node)
                ready = [move.move for move in known.moves if move.target == node] if known and finish else []
                answer = self.report(node, orders=known, ready=ready)
                if isinstance(answer, PsOrders):
                    assert known is None or answer.version >= known.version
                    orders[node] = answer
        raise AssertionError

    def statuses(self) -> Iterator[Any]:
        """Yield the master's status after each of its turns, for as long as a test is patient."""
        end = self.clock.now + PATIENCE
        while True:
            status = self.ask("cli", StatusRequest())
            yield status
            assert self.clock.now < end, status
            self.passes()

    def lease(self, node: str, **report: Any) -> Any:
        """Asks until the answer is no Wait."""
        answer = self.ask(node, LeaseRequest(node, **report))
        while isinstance(answer, Wait):
            answer = self.ask(node, LeaseRequest(node))
        return answer

    def work(self, node: str, *, until: type = Finished | Export) -> Any:  # type: ignore[assignment]
        """Do all there is to do; returns the answer that ends it."""
        answer = self.lease(node)
        while not isinstance(answer, until):
            answer = self.lease(node, **done(answer))
        return answer

    def ended(self) -> Outcome:
        """Step the master until it has ended."""
        end = self.clock.now + PATIENCE
        while self.runs:
            assert self.clock.now < end
            self.step()
            self.passes()
        assert self.outcome is not None
        return self.outcome

    def close(self) -> None:
        if self.runs:
            self.kill()
        if self.brain is not None:
            self.brain.close()


def report_of(samples: int, **fields: Any) -> WorkReport:
    metrics = BinaryMetrics()
    metrics.add(np.linspace(-1, 1, samples), np.arange(samples) >= samples // 2)  # perfectly ordered: AUC 1
    return WorkReport(samples=samples, minibatches=samples // 4, metrics=metrics.to_bytes(), **fields)


def done(lease: Lease) -> dict[str, Any]:
    samples = 4 * (lease.stop - lease.start)
    return {"token": lease.token, "consumed": [(lease.start, lease.stop)], "report": report_of(samples)}
