"""A master and those that talk to it: a job from its start to its end, and what goes wrong on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dlrover_lite.core.errors import RemoteError
from dlrover_lite.data.index_store import index_file
from dlrover_lite.master.nodes.unknown_nodes import UNKNOWN_NODE
from dlrover_lite.master.outcome import Outcome
from dlrover_lite.protocol.messages import (
    Ack,
    Export,
    Exported,
    Finished,
    Heartbeat,
    Hello,
    IndexPiece,
    IndexRequest,
    Lease,
    LeaseRequest,
    NodeFailed,
    PsReport,
    Topology,
    TopologyRequest,
    UnknownIds,
    WorkReport,
)
from dlrover_lite.protocol.questions import ShardsStatus, Status, StatusRequest, StopRequest, StoryRequest
from tests.master.rig import PATIENCE, Rig, done, report_of


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


def test_evaluations_take_place_during_training(make: Any) -> None:
    rig = make(eval_samples=8, epochs=4, evaluate_every=50, export="none")
    rig.up("ps-0", "worker-0")
    rig.work("worker-0")
    assert rig.ended().state == "succeeded"
    at = [evaluation.at_samples for evaluation in rig.master.evaluations.results]
    assert at == sorted(at)
    assert at[-1] == 160
    assert len(at) >= 2
    assert all(e.samples == 8 for e in rig.master.evaluations.results)


def test_export_has_the_unknown_ids_of_an_evaluation_that_ends_with_the_same_request(make: Any) -> None:
    """Whoever reports the last evaluation's last minibatches is told at once to write the model."""
    rig = make(eval_samples=20)
    rig.up("ps-0", "worker-0")
    answer = rig.lease("worker-0")
    while isinstance(answer, Lease):
        report = done(answer)
        if answer.kind == "eval":
            unknown = UnknownIds("C1", "C1", answer.stop - answer.start, 100)  # in one of four samples
            report["report"] = msgspec.structs.replace(report["report"], unknown_ids=[unknown])
        answer = rig.lease("worker-0", **report)
    assert isinstance(answer, Export)
    assert answer.unknown_ids == {"C1": 0.25}


def test_workers_get_the_topology_when_all_servers_are_up(make: Any) -> None:
    rig = make(ps=2)
    rig.up("ps-0", "worker-0", "worker-1")
    early = [rig.client(node) for node in ("worker-0", "worker-1")]
    for client in early:
        client.send(TopologyRequest("worker-0"))
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


def test_the_export_goes_to_another_worker_when_its_worker_dies(rig: Rig) -> None:
    rig.up("ps-0", "worker-0", "worker-1")
    assert isinstance(rig.work("worker-0"), Export)
    assert isinstance(rig.lease("worker-0"), Export)  # asked again by the same: the same answer
    rig.backend.ends("worker-0")
    rig.up("worker-2")
    assert isinstance(rig.lease("worker-2"), Export)
    assert isinstance(rig.lease("worker-1"), Finished)
    rig.ask("worker-2", Exported("worker-2", 1, 1))
    assert rig.ended().state == "succeeded"


def test_a_new_worker_exports_when_all_others_have_left(rig: Rig) -> None:
    rig.up("ps-0", "worker-0", "worker-1")
    assert isinstance(rig.work("worker-0"), Export)
    rig.backend.ends("worker-1", "Succeeded")
    rig.backend.ends("worker-0", "Succeeded")  # without having exported
    rig.up("worker-2")
    assert isinstance(rig.lease("worker-2"), Export)
    rig.ask("worker-2", Exported("worker-2", 1, 1))
    assert rig.ended().state == "succeeded"


def test_a_worker_that_exits_with_0_in_the_middle_is_a_user_error(rig: Rig) -> None:
    """As by ``os._exit(0)`` in the model: nobody has told it that there is nothing left to do."""
    rig.up("ps-0", "worker-0", "worker-1")
    assert isinstance(rig.lease("worker-0"), Lease)
    rig.client("worker-0").send(Heartbeat("worker-0", "minibatch 1 of epoch 0", 0.1))
    rig.ask("worker-0", TopologyRequest("worker-0"))  # by now it has been heard
    rig.backend.ends("worker-0", "Succeeded")
    outcome = rig.ended()
    assert outcome.state == "failed"
    assert outcome.message.startswith(
        "worker-0 ended in the middle of its work, without an error message (exit code 0 without having been told to "
        "leave, in minibatch 1 of epoch 0)"
    )
    assert "os._exit" in outcome.hint
    assert [spec.id for spec in rig.backend.launched] == ["ps-0", "worker-0", "worker-1"]


def test_a_report_that_asks_for_no_work_does_not_end_its_worker(make: Any) -> None:
    """Who reports the last minibatch while it may not ask yet would else leave, and nobody would export."""
    rig = make(workers=1, samples=4)
    rig.up("ps-0", "worker-0")
    lease = rig.lease("worker-0")
    assert rig.ask("worker-0", LeaseRequest("worker-0", want=False, **done(lease))) == Ack()
    assert isinstance(rig.lease("worker-0"), Export)


def test_leases_of_a_dead_worker_are_leased_again(rig: Rig) -> None:
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


def test_a_server_ending_with_a_user_error_fails_the_job(rig: Rig) -> None:
    rig.up("ps-0", "worker-0")
    rig.lease("worker-0")
    rig.backend.ends("ps-0", "UserError")
    outcome = rig.ended()
    assert outcome.state == "failed"
    assert "ps-0 has ended (UserError) and its parameters are lost" in outcome.message
    assert {"worker-0", "worker-1"} <= set(rig.backend.terminated)


def test_a_user_error_fails_the_job_with_its_traceback(rig: Rig) -> None:
    rig.up("ps-0", "worker-0")
    failed = NodeFailed("worker-0", True, "MyModel can't be built: no\nLook here.", "Traceback: my_model.py")
    assert rig.ask("worker-0", failed) == Ack()
    assert rig.ended() == Outcome("failed", "MyModel can't be built: no", "Look here.", "Traceback: my_model.py")


def test_a_failing_node_is_named_in_the_outcome(rig: Rig) -> None:
    rig.up("ps-0", "worker-0")
    rig.ask("worker-0", NodeFailed("worker-0", False, "the disk is full", "Traceback"))
    outcome = rig.ended()
    assert (outcome.state, outcome.message) == ("failed", "worker-0: the disk is full")


def test_failures_on_different_minibatches_before_any_success_fail_the_job(rig: Rig) -> None:
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
def test_stopping_ends_all_nodes_and_the_job(rig: Rig, how: str) -> None:
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


def test_stopping_before_any_node_is_launched(make: Any) -> None:
    rig = make(refuses=True, stopping=True)
    outcome = rig.ended()
    assert (outcome.state, outcome.message) == ("stopped", "stopped by request")
    assert rig.backend.launched == rig.backend.terminated == []


def test_metrics_reported_twice_count_once(make: Any) -> None:
    rig = make(workers=1, samples=400, batch_size=4)
    rig.up("ps-0", "worker-0")
    lease = rig.lease("worker-0")
    report = done(lease)
    rig.ask("worker-0", LeaseRequest("worker-0", want=False, **report))
    rig.ask("worker-0", LeaseRequest("worker-0", want=False, **report))  # told again, under a new number
    assert rig.master.progress.recent().samples == 4 * (lease.stop - lease.start)


def test_malformed_metrics_are_dropped_with_their_report(make: Any) -> None:
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


def test_status_tells_rows_staleness_and_usage(rig: Rig) -> None:
    rig.up("ps-0", "worker-0")
    rig.ask("ps-0", PsReport("ps-0", 123, 4567, 8))
    lease = rig.lease("worker-0")
    report = report_of(4, staleness={0: 98, 3: 1, 9: 1})
    done = [(lease.start, lease.start + 1)]
    rig.ask("worker-0", LeaseRequest("worker-0", lease.token, done, want=False, report=report, holding=[lease.token]))
    left = lease.stop - lease.start - 1
    status = rig.ask("cli", StatusRequest())
    assert isinstance(status, Status)
    assert (status.rows, status.staleness_p99, status.staleness_max) == (123, 3, 9)
    assert (status.state, status.samples, status.loss is None) == ("training", 4, False)
    assert {node.id: node.state for node in status.nodes}["worker-0"] == "up"
    assert status.shards == ShardsStatus(1, left, 10 - 1 - left, 0, {"worker-0": left})


STRANGE = [
    LeaseRequest("worker-7"),
    LeaseRequest("ps-0", 0, failed=0, error="no"),
    Exported("worker-7", 1, 1),
    NodeFailed("worker-7", True, "the end", "Traceback"),
    NodeFailed("", False, "lost", because="lost"),
    PsReport("ps-7", 1, 1, 1),
    PsReport("worker-0", 1, 1, 1),
    Hello("worker-7", "worker"),
    Hello("worker-0", "ps", "inproc://nowhere"),
    TopologyRequest("worker-7"),
    IndexRequest("worker-7", "0" * 32, 0),
]


def test_a_worker_is_given_an_index_that_the_master_has_built(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path))
    kept = index_file("0" * 32)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"offsets")
    rig.up("ps-0", "worker-0")
    assert rig.ask("worker-0", IndexRequest("worker-0", "0" * 32, 3)) == IndexPiece(7, b"sets")
    assert rig.ask("worker-0", IndexRequest("worker-0", "1" * 32, 0)) == IndexPiece()


def test_unknown_nodes_get_no_work_and_are_not_believed(rig: Rig) -> None:
    rig.up("ps-0", "worker-0")
    for body in STRANGE:
        with pytest.raises(RemoteError) as refused:
            rig.ask("stranger", body)
        assert refused.value.code == UNKNOWN_NODE
    rig.client("stranger").send(Heartbeat("worker-7"))
    status = rig.ask("cli", StatusRequest())
    assert (status.state, status.shards.leased, status.shards.quarantined) == ("starting", 0, 0)
    assert [node.id for node in status.nodes] == ["ps-0", "worker-0", "worker-1"]
    told = [entry.text for entry in rig.ask("cli", StoryRequest("master")).entries]
    assert sum("refuses" in line for line in told) == 5, told  # each name once
    assert "refuses LeaseRequest of 'worker-7': no such node was ever launched" in told
    assert "refuses PsReport of 'worker-0': it is a worker" in told
    assert isinstance(rig.work("worker-0"), Export)


def test_a_node_that_has_ended_says_no_hello(rig: Rig) -> None:
    rig.up("ps-0", "worker-0", "worker-1")
    rig.backend.ends("worker-1")
    rig.up("worker-2")
    with pytest.raises(RemoteError, match="it has ended"):
        rig.ask("worker-1", Hello("worker-1", "worker"))
    lease = rig.lease("worker-0")
    rig.backend.ends("worker-0")
    rig.up("worker-3")
    answer = rig.ask("worker-0", LeaseRequest("worker-0", **done(lease)))  # believed about the past
    assert isinstance(answer, Finished)
    assert rig.ask("cli", StatusRequest()).samples == 4 * (lease.stop - lease.start)
