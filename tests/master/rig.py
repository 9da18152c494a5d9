"""A master over an in-memory backend and a real server, its clients scripted, its loop in a thread."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

from dlrover_lite.core.errors import BackendError, DeadlineExceeded
from dlrover_lite.core.metrics import BinaryMetrics
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs import events as stories
from dlrover_lite.jobs.profiles import Gap
from dlrover_lite.jobs.store import Beginning, Job
from dlrover_lite.master.autoscale.autoscaler import Autoscaler
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.checkpoints.restore import GoingBack, begin_generation
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.full_disk import FullDisk
from dlrover_lite.master.loop import Master, Outcome
from dlrover_lite.master.nodes.fleet import Fleet
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
    StatusRequest,
    Wait,
    Welcome,
    WorkReport,
)
from dlrover_lite.protocol.nodes import Enforcement, HostUsage, NodeSpec, Observation, Observed, Readings, Usage
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.profiles import Profile
from dlrover_lite.recipe import schema
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.server import Server

PATIENCE = 60.0
_names = itertools.count()
RESOURCES = Resources(1.0, 1 << 30)
CAPACITY = Resources(8.0, 8 << 30)
PATIENT = schema.Health(startup_seconds=3600.0, heartbeat_seconds=3600.0, progress_seconds=3600.0)
"""Nodes say something when a test has them do so, however long that takes it."""


class Clock:
    """Stands still until a test puts it forward."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


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
        self.refuses = False
        self.resized: list[tuple[str, Resources]] = []
        self.refuses_to_resize = ""
        self.used: dict[str, int] = {}
        """Memory, where it isn't 1,000 bytes."""
        self._observed: dict[str, Observed] = {}
        self._version = 0
        self._changed = threading.Condition()

    def capacity(self) -> list[Host]:
        return [Host("here", CAPACITY)]

    def enforcement(self) -> Enforcement:
        return Enforcement("nothing", ["anything"])

    def resize(self, node: str, resources: Resources) -> None:
        if self.refuses_to_resize:
            raise BackendError(self.refuses_to_resize)
        self.resized.append((node, resources))

    def launch(self, spec: NodeSpec) -> None:
        if self.refuses:
            raise BackendError(f"{spec.id} can't be launched any more")
        with self._changed:
            if spec.id not in [other.id for other in self.launched]:
                self.launched.append(spec)
                self._change(spec.id, Observed(started_at=0.0))

    def terminate(self, node: str, *, grace_seconds: float, keep_memory: bool = False) -> None:
        if keep_memory:
            self.kept.append(node)
        with self._changed:
            ended = node in self._observed and self._observed[node].ended_at is not None
        if ended:
            self.let_go.append(node)
            return
        self.terminated.append(node)
        self.ends(node, "Succeeded")

    def ends(self, node: str, reason: str = "Killed") -> None:
        with self._changed:
            self._change(node, Observed(started_at=0.0, ended_at=0.0, reason=reason))  # type: ignore[arg-type]

    def _change(self, node: str, seen: Observed) -> None:
        self._observed[node] = seen
        self._version += 1
        self._changed.notify_all()

    def observe(self, *, after: int | None = None, timeout_seconds: float = 0.0) -> Observation | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._version != after, timeout_seconds):
                return None
            return Observation(self._version, dict(self._observed))

    def usage(self, node: str) -> Usage | None:
        return Usage(1.5, self.used.get(node, 1000), 2000)

    def readings(self) -> Readings:
        with self._changed:
            ended = {node for node, seen in self._observed.items() if seen.ended_at is not None}
            running = [spec.id for spec in self.launched if spec.id not in ended]
        usages = {node: self.usage(node) for node in running}
        nodes = {node: usage for node, usage in usages.items() if usage is not None}
        return Readings(nodes, dict.fromkeys(nodes, "here"), [HostUsage("here", CAPACITY.cores, 10.0)])

    def wait_for_launch(self, node: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(spec.id == node for spec in self.launched), PATIENCE)


class Kept(list[Profile | Gap]):
    """A sink for profiles."""

    def keep(self, found: Profile | Gap) -> None:
        self.append(found)


class _Killed(BaseException):
    """The master ends here and now, as by kill -9."""


def all_of(orders: PsOrders) -> list[ReadySlots]:
    """What a target says that has all there is of its moves."""
    return [ReadySlots(move.move, move.slots) for move in orders.moves]


class Rig:
    """A running master and what talks to it."""

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
        brain: BrainLink | None = None,
        clock: Callable[[], float] = time.monotonic,
        **plan: Any,
    ) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.clock = clock
        self.mode = mode
        self.brain = brain
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
        )
        (tmp_path / "recipe.json").write_bytes(msgspec.json.encode(self.recipe))
        if beginning is not None:
            self.job.write_beginning(beginning)
        self.checkpoints = tmp_path / "checkpoints"
        self.backend = Backend()
        self.backend.refuses = refuses
        self.outcome: Outcome | None = None
        self.profiles = Kept()
        self.clients: dict[str, Client] = {}
        self.fleet = Fleet(Plan(RolePlan(ps, RESOURCES), RolePlan(workers, RESOURCES)), CAPACITY)
        self.shard_plan = ShardPlan(**{"samples": 40, "batch_size": 4, "epochs": 1, **plan})
        self.start(stopping=stopping)

    def start(self, *, stopping: bool = False) -> None:
        """A master over what an earlier one has left, if any."""
        self.endpoint = f"inproc://master-{next(_names)}"
        self.server = Server(self.endpoint, MasterRequests, context=self.context, remember_replies=True)
        self.stopping, self.killed = stopping, False
        ready = threading.Event()
        story = EventLog(lambda entries: stories.append(self.directory, entries), time.time)

        def run() -> None:  # a ledger belongs to the thread that opened it
            with suppress(_Killed):
                while self.outcome is None:
                    self._run_generation(story, ready)

        self.thread = threading.Thread(target=run)
        self.thread.start()
        assert ready.wait(PATIENCE)

    def _run_generation(self, story: EventLog, ready: threading.Event) -> None:
        begin_generation(
            self.job,
            self.shard_plan,
            self.fleet.plan,
            self.fleet.capacity,
            self.backend,
            story,
            wall_clock=time.time,
            clock=self.clock,
        )
        disk = FullDisk(
            clock=self.clock,
            free=lambda _: 4096,
            tell=lambda line: story.node("master", line),
            meanwhile=lambda _: False,
        )
        with LedgerStore(self.job.ledger()) as store:
            self.master = Master(
                "rig-1",
                self.recipe,
                ShardService(store, self.shard_plan, wait_seconds=0.01, story=story, insist=disk.insist),
                self.server,
                self.backend,
                self.fleet,
                export_directory=self.directory / "export",
                checkpoints="" if self.recipe.checkpoint == "off" else str(self.checkpoints),
                disk=disk,
                story=story,
                stop=self._stop,
                go_back=GoingBack(self.job, disk.insist),
                brain=self.brain,
                autoscaler=Autoscaler(job="rig-1", mode=self.mode),
                profiles=[self.profiles],
                clock=self.clock,
            )
            ready.set()
            self.outcome = self.master.run()

    def _stop(self) -> bool:
        if self.killed:
            raise _Killed
        return self.stopping

    def kill(self) -> None:
        """The master ends between two turns."""
        self.killed = True
        self.join_killed()

    def kill_before_the_answer(self, node: str, body: Any) -> int:
        """The master applies and commits what ``node`` asks, and ends before it can answer; returns the request's number."""

        def reply(*_: Any) -> None:
            raise _Killed

        self.server.reply = reply  # type: ignore[method-assign]
        sequence = self.client(node).send(body)
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
        owner, name = {
            "keep_slots": (self.master.servers, "_keep"),
            "keep_fleet": (self.master.reconciler, "_keep"),
            "launch": (self.master.reconciler, "_launch"),
        }[step]

        def die(*_: Any) -> None:
            raise _Killed

        setattr(owner, name, die)

    def join_killed(self) -> None:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        self.server.close()
        for client in self.clients.values():  # an inproc endpoint is not free again at once, so the next one is another
            client.close()
        self.clients.clear()

    def client(self, node: str) -> Client:
        if node not in self.clients:
            self.clients[node] = Client(self.endpoint, MasterReplies, context=self.context, peer="the master")
        return self.clients[node]

    def ask(self, node: str, body: Any) -> Any:
        """Of a master that is there to answer: one that may end meanwhile is to be asked with ``ask_while_it_runs``."""
        try:
            return (
                self.client(node)
                .call(body, deadline_seconds=PATIENCE, has_ended=lambda: not self.thread.is_alive())
                .body
            )
        except DeadlineExceeded as error:
            raise AssertionError(f"{error}: {self._what_it_does()}") from error

    def _what_it_does(self) -> str:
        """Of the master's thread, in words."""
        if not self.thread.is_alive():
            return f"the master has ended with {self.outcome}"
        frame = sys._current_frames().get(self.thread.ident or 0)
        return "".join(["the master is at\n", *traceback.format_stack(frame)])

    def ask_while_it_runs(self, node: str, body: Any) -> Any:
        """The answer, or None when the master has ended without one. Asked again meanwhile, as one that lets its nodes go answers few."""
        client = self.client(node)
        sequence = client.send(body)
        while self.thread.is_alive():
            reply = client.receive(0.05)
            if reply is None:
                client.send(body, sequence=sequence)
            elif reply.sequence == sequence:
                return reply.body
        return None

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
        end = time.monotonic() + PATIENCE
        while not until(status := self.ask("cli", StatusRequest())):
            assert time.monotonic() < end, status
            for node in nodes:
                known = orders.get(node)
                ready = [move.move for move in known.moves if move.target == node] if known and finish else []
                answer = self.report(node, orders=known, ready=ready)
                if isinstance(answer, PsOrders):
                    assert known is None or answer.version >= known.version
                    orders[node] = answer
        return status

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
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        assert self.outcome is not None
        return self.outcome

    def close(self) -> None:
        self.stopping = True
        self.killed = self.recipe.checkpoint != "off"  # rather than wait for a last checkpoint
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()  # or it would lose its sockets while it uses them
        for client in self.clients.values():
            client.close()
        if self.brain is not None:
            self.brain.close()
        self.server.close()
        self.context.destroy(linger=0)


def report_of(samples: int, **fields: Any) -> WorkReport:
    metrics = BinaryMetrics()
    metrics.add(np.linspace(-1, 1, samples), np.arange(samples) >= samples // 2)  # perfectly ordered: AUC 1
    return WorkReport(samples=samples, minibatches=samples // 4, metrics=metrics.to_bytes(), **fields)


def done(lease: Lease) -> dict[str, Any]:
    samples = 4 * (lease.stop - lease.start)
    return {"token": lease.token, "consumed": [(lease.start, lease.stop)], "report": report_of(samples)}
