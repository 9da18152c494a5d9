"""The master over an in-memory backend and a real server, its clients scripted, its loop in a thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from dlrover_lite.backends.base import NodeEvent, NodeSpec, Usage
from dlrover_lite.brain.plan import Plan, RolePlan
from dlrover_lite.errors import BackendError
from dlrover_lite.master.ledger_store import LedgerStore
from dlrover_lite.master.lifecycle import Nodes
from dlrover_lite.master.service import Master, Outcome
from dlrover_lite.master.shards import ShardPlan, ShardService
from dlrover_lite.metrics import BinaryMetrics
from dlrover_lite.recipe import schema
from dlrover_lite.units import Resources
from dlrover_lite.wire.client import Client
from dlrover_lite.wire.messages import (
    Ack,
    Export,
    Exported,
    Finished,
    Hello,
    Lease,
    LeaseRequest,
    MasterReplies,
    MasterRequests,
    NodeFailed,
    PsReport,
    Status,
    StatusRequest,
    StopRequest,
    Topology,
    TopologyRequest,
    Wait,
    Welcome,
    WorkReport,
)
from dlrover_lite.wire.server import Server

PATIENCE = 20.0
_names = itertools.count()
RESOURCES = Resources(1.0, 1 << 30)


class Backend:
    """Nodes exist in a list of events. ``terminate`` ends them at once; ``ends`` lets one end by itself; one that
    ``refuses`` starts none."""

    def __init__(self) -> None:
        self.launched: list[NodeSpec] = []
        self.terminated: list[str] = []
        self.refuses = False
        self._events: list[NodeEvent] = []
        self._changed = threading.Condition()

    def capacity(self) -> Resources:
        return RESOURCES

    def launch(self, spec: NodeSpec) -> None:
        if self.refuses:
            raise BackendError(f"{spec.id} can't be launched any more")
        with self._changed:
            self.launched.append(spec)
            self._add(spec.id, "started")

    def terminate(self, node: str, *, grace_seconds: float) -> None:
        self.terminated.append(node)
        self.ends(node, "Succeeded")

    def ends(self, node: str, reason: str = "Killed") -> None:
        with self._changed:
            self._add(node, "exited", reason)

    def _add(self, node: str, kind: Any, reason: Any = None) -> None:
        self._events.append(NodeEvent(len(self._events) + 1, node, kind, 0.0, reason))
        self._changed.notify_all()

    def events(self, after: int, *, timeout_seconds: float = 0.0) -> list[NodeEvent]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._events) > after, timeout_seconds)
            return self._events[after:]

    def usage(self, node: str) -> Usage | None:
        return Usage(1.5, 1000, 2000)

    def logs(self, node: str) -> str:
        return ""

    def wait_for_launch(self, node: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(spec.id == node for spec in self.launched), PATIENCE)


class Rig:
    """A running master and what talks to it."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        ps: int = 1,
        workers: int = 2,
        export: str = "npz",
        refuses: bool = False,
        stopping: bool = False,
        **plan: Any,
    ) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        recipe = schema.Recipe(
            version=1,
            name="rig",
            model=schema.Model(use="wide_deep"),
            data=schema.CsvData(train=["x"], label="y", max_bad_share=0.01),
            export=schema.Export(format=export),  # type: ignore[arg-type]
        )
        self.server = Server(
            f"inproc://master-{next(_names)}", MasterRequests, context=self.context, remember_replies=True
        )
        self.backend = Backend()
        self.backend.refuses = refuses
        self.stopping = stopping
        self.outcome: Outcome | None = None
        self.clients: dict[str, Client] = {}
        nodes = Nodes(Plan(RolePlan(ps, RESOURCES), RolePlan(workers, RESOURCES)))
        shard_plan = ShardPlan(**{"samples": 40, "batch_size": 4, "epochs": 1, **plan})
        ready = threading.Event()

        def run() -> None:  # a ledger belongs to the thread that opened it
            with LedgerStore(tmp_path / "ledger.sqlite") as store:
                self.master = Master(
                    "rig-1",
                    recipe,
                    ShardService(store, shard_plan, wait_seconds=0.01),
                    self.server,
                    self.backend,
                    nodes,
                    export_directory=tmp_path / "export",
                    stop=lambda: self.stopping,
                )
                ready.set()
                self.outcome = self.master.run()

        self.thread = threading.Thread(target=run)
        self.thread.start()
        assert ready.wait(PATIENCE)

    def client(self, node: str) -> Client:
        if node not in self.clients:
            self.clients[node] = Client(self.server.endpoint, MasterReplies, context=self.context, peer="the master")
        return self.clients[node]

    def ask(self, node: str, body: Any) -> Any:
        return self.client(node).call(body, deadline_seconds=PATIENCE).body

    def up(self, *nodes: str) -> None:
        for node in nodes:
            self.backend.wait_for_launch(node)
            role = "ps" if node.startswith("ps") else "worker"
            assert isinstance(self.ask(node, Hello(node, role, f"inproc://{node}")), Welcome)  # type: ignore[arg-type]

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
        self.thread.join(PATIENCE)
        for client in self.clients.values():
            client.close()
        self.server.close()
        self.context.destroy(linger=0)


def report_of(samples: int, **fields: Any) -> WorkReport:
    metrics = BinaryMetrics()
    metrics.add(np.linspace(-1, 1, samples), np.arange(samples) >= samples // 2)  # perfectly ordered: AUC 1
    return WorkReport(samples=samples, minibatches=samples // 4, metrics=metrics.to_bytes(), **fields)


def done(lease: Lease) -> dict[str, Any]:
    samples = 4 * (lease.stop - lease.start)
    return {"token": lease.token, "consumed": [(lease.start, lease.stop)], "report": report_of(samples)}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[Rig] = []

    def make(**options: Any) -> Rig:
        made.append(Rig(tmp_path, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def test_a_job_from_start_to_end(make: Any) -> None:
    rig = make(eval_samples=20, epochs=2)
    rig.up("ps-0", "worker-0", "worker-1")
    answer = rig.work("worker-0", until=Export)
    assert isinstance(answer, Export)
    assert (Path(answer.destination).name, answer.format) == ("export", "npz")
    status = rig.ask("cli", StatusRequest())
    assert (status.state, status.samples, status.total_samples, status.auc) == ("exporting", 80, 80, 1.0)
    (evaluation,) = status.evaluations
    assert (evaluation.at_samples, evaluation.samples, evaluation.auc) == (80, 20, 1.0)
    assert isinstance(rig.lease("worker-1"), Finished)  # the export is in good hands
    assert rig.ask("worker-0", Exported("worker-0", 10, 1000)) == Ack()
    assert rig.ended() == Outcome("succeeded")
    assert sorted(rig.backend.terminated) == ["ps-0", "worker-0", "worker-1"]
    assert rig.backend.terminated[-1] == "ps-0"  # workers may still need it


def test_evaluations_on_the_way(make: Any) -> None:
    rig = make(eval_samples=8, epochs=4, evaluate_every=50, export="none")
    rig.up("ps-0", "worker-0")
    rig.work("worker-0")
    assert rig.ended().state == "succeeded"
    at = [evaluation.at_samples for evaluation in rig.master.evaluations.results]
    assert at == sorted(at)
    assert at[-1] == 160
    assert len(at) >= 2
    assert all(e.samples == 8 for e in rig.master.evaluations.results)


def test_workers_get_the_topology_when_all_servers_are_up(make: Any) -> None:
    rig = make(ps=2)
    rig.up("ps-0", "worker-0", "worker-1")
    early = [rig.client(node) for node in ("worker-0", "worker-1")]
    for client in early:
        client.send(TopologyRequest("worker"))
    assert rig.ask("cli", StatusRequest()).message == "waiting for the parameter servers"
    assert all(client.receive(0.05) is None for client in early)
    rig.up("ps-1")
    for client in early:
        reply = client.receive(PATIENCE)
        assert reply is not None
        topology = reply.body
        assert isinstance(topology, Topology)
        assert topology.ps == [("ps-0", "inproc://ps-0"), ("ps-1", "inproc://ps-1")]
        owners = np.frombuffer(topology.slots, np.uint16)
        assert np.bincount(owners).tolist() == [2048, 2048]
    assert rig.ask("worker-0", TopologyRequest("worker-0")).version == 1


def test_the_export_goes_to_another_when_its_worker_dies(rig: Rig) -> None:
    rig.up("ps-0", "worker-0", "worker-1")
    assert isinstance(rig.work("worker-0"), Export)
    assert isinstance(rig.lease("worker-0"), Export)  # asked again by the same: the same answer
    rig.backend.ends("worker-0")
    rig.up("worker-2")
    assert isinstance(rig.lease("worker-2"), Export)
    assert isinstance(rig.lease("worker-1"), Finished)
    rig.ask("worker-2", Exported("worker-2", 1, 1))
    assert rig.ended().state == "succeeded"


def test_when_all_workers_left_one_more_exports(rig: Rig) -> None:
    rig.up("ps-0", "worker-0", "worker-1")
    assert isinstance(rig.work("worker-0"), Export)
    rig.backend.ends("worker-1", "Succeeded")
    rig.backend.ends("worker-0", "Succeeded")  # without having exported
    rig.up("worker-2")
    assert isinstance(rig.lease("worker-2"), Export)
    rig.ask("worker-2", Exported("worker-2", 1, 1))
    assert rig.ended().state == "succeeded"


def test_when_all_workers_left_in_the_middle_one_more_goes_on(rig: Rig) -> None:
    rig.up("ps-0", "worker-0", "worker-1")
    assert isinstance(rig.lease("worker-0"), Lease)
    rig.backend.ends("worker-0", "Succeeded")
    rig.backend.ends("worker-1", "Succeeded")
    rig.up("worker-2")
    assert isinstance(rig.work("worker-2"), Export)


def test_a_report_without_a_wish_sends_nobody_away(make: Any) -> None:
    """Who reports the last minibatch while it may not ask yet would else leave, and nobody would export."""
    rig = make(workers=1, samples=4)
    rig.up("ps-0", "worker-0")
    lease = rig.lease("worker-0")
    assert rig.ask("worker-0", LeaseRequest("worker-0", want=False, **done(lease))) == Ack()
    assert isinstance(rig.lease("worker-0"), Export)


def test_what_a_dead_worker_had_is_leased_again(rig: Rig) -> None:
    rig.up("ps-0", "worker-0", "worker-1")
    lost = rig.lease("worker-1")
    rig.backend.ends("worker-1")
    rig.up("worker-2")
    done_by_others = set()
    answer = rig.lease("worker-0")
    while isinstance(answer, Lease):
        done_by_others |= set(range(answer.start, answer.stop))
        answer = rig.lease("worker-0", **done(answer))
    assert set(range(lost.start, lost.stop)) <= done_by_others
    assert done_by_others == set(range(10))
    status = rig.ask("cli", StatusRequest())
    assert status.samples == 40
    ends = {node.id: node.state for node in status.nodes}
    assert ends["worker-1"] == "ended (Killed)"
    assert isinstance(rig.ask("worker-1", LeaseRequest("worker-1")), Finished)  # its ghost


def test_a_server_that_dies_fails_the_job(rig: Rig) -> None:
    rig.up("ps-0", "worker-0")
    rig.lease("worker-0")
    rig.backend.ends("ps-0", "OOMKilled")
    outcome = rig.ended()
    assert outcome.state == "failed"
    assert "ps-0 has ended (OOMKilled)" in outcome.message
    assert {"worker-0", "worker-1"} <= set(rig.backend.terminated)


def test_the_persons_error_fails_the_job_with_its_traceback(rig: Rig) -> None:
    rig.up("ps-0", "worker-0")
    failed = NodeFailed("worker-0", True, "MyModel can't be built: no\nLook here.", "Traceback: my_model.py")
    assert rig.ask("worker-0", failed) == Ack()
    assert rig.ended() == Outcome("failed", "MyModel can't be built: no", "Look here.", "Traceback: my_model.py")


def test_a_node_that_cannot_go_on_is_named(rig: Rig) -> None:
    rig.up("ps-0", "worker-0")
    rig.ask("worker-0", NodeFailed("worker-0", False, "the disk is full", "Traceback"))
    outcome = rig.ended()
    assert (outcome.state, outcome.message) == ("failed", "worker-0: the disk is full")


def test_failures_on_different_minibatches_before_any_success(rig: Rig) -> None:
    rig.up("ps-0", "worker-0", "worker-1")
    for i in range(3):
        lease = rig.lease("worker-0")
        rig.ask(
            "worker-0",
            LeaseRequest(
                "worker-0", lease.token, failed=lease.start, error=f"KeyError: {i}", give_back=True, want=False
            ),
        )
    outcome = rig.ended()
    assert outcome.state == "failed"
    assert "3 different minibatches failed before any succeeded" in outcome.message
    assert "KeyError: 2" in outcome.message


def test_bad_lines_fail_the_job(make: Any) -> None:
    rig = make(samples=4000, batch_size=4)
    rig.up("ps-0", "worker-0")
    lease = rig.lease("worker-0")
    report = report_of(1200, bad_lines=100, bad_examples=["a.csv:3: no"])
    rig.ask(
        "worker-0", LeaseRequest("worker-0", lease.token, [(lease.start, lease.start + 1)], want=False, report=report)
    )
    outcome = rig.ended()
    assert outcome.state == "failed"
    assert "a.csv:3: no" in outcome.message


@pytest.mark.parametrize("how", ["signal", "request"])
def test_stop(rig: Rig, how: str) -> None:
    rig.up("ps-0", "worker-0")
    rig.lease("worker-0")
    if how == "signal":
        rig.stopping = True
    else:
        assert rig.ask("cli", StopRequest("had enough")) == Ack()
    outcome = rig.ended()
    assert outcome.state == "stopped"
    assert outcome.message == ("stopped by request" if how == "signal" else "had enough")
    assert sorted(rig.backend.terminated) == ["ps-0", "worker-0", "worker-1"]


def test_stopped_before_its_nodes_are_launched(make: Any) -> None:
    rig = make(refuses=True, stopping=True)
    outcome = rig.ended()
    assert (outcome.state, outcome.message) == ("stopped", "stopped by request")
    assert rig.backend.launched == rig.backend.terminated == []


def test_metrics_count_once_however_often_they_are_told(make: Any) -> None:
    rig = make(workers=1, samples=400, batch_size=4)
    rig.up("ps-0", "worker-0")
    lease = rig.lease("worker-0")
    report = done(lease)
    rig.ask("worker-0", LeaseRequest("worker-0", want=False, **report))
    rig.ask("worker-0", LeaseRequest("worker-0", want=False, **report))  # told again, under a new number
    assert rig.master.progress.recent().samples == 4 * (lease.stop - lease.start)


def test_metrics_that_are_none_are_dropped_with_their_report(make: Any) -> None:
    rig = make(workers=1)
    rig.up("ps-0", "worker-0")
    lease = rig.lease("worker-0")
    client = rig.client("worker-0")
    body = LeaseRequest("worker-0", lease.token, [(0, 1)], report=WorkReport(samples=4, metrics=b"no metrics"))
    client.send(body)
    assert client.receive(0.2) is None
    status = rig.ask("cli", StatusRequest())
    assert (status.state, status.samples) == ("starting", 0)
    assert rig.server.malformed == 1


def test_what_servers_and_nodes_use_is_in_the_status(rig: Rig) -> None:
    rig.up("ps-0", "worker-0")
    rig.ask("ps-0", PsReport("ps-0", 123, 4567, 8))
    lease = rig.lease("worker-0")
    report = report_of(4, staleness={0: 98, 3: 1, 9: 1})
    rig.ask(
        "worker-0", LeaseRequest("worker-0", lease.token, [(lease.start, lease.start + 1)], want=False, report=report)
    )
    status = rig.ask("cli", StatusRequest())
    assert isinstance(status, Status)
    assert (status.rows, status.staleness_p99, status.staleness_max) == (123, 3, 9)
    assert (status.state, status.samples, status.loss is None) == ("training", 4, False)
    assert {node.id: node.state for node in status.nodes}["worker-0"] == "up"
