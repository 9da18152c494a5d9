from __future__ import annotations

import array
from pathlib import Path

import msgspec

from dlrover_lite.jobs.final_status import starting
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.messages import Topology
from dlrover_lite.protocol.news import NodeNews
from dlrover_lite.protocol.questions import (
    CheckpointProblem,
    CheckpointsStatus,
    CheckpointStatus,
    CheckpointUnderWay,
    EvaluationResult,
    HotSlot,
    NextLook,
    NodeStatus,
    PsSlots,
    ShardsStatus,
    SlotsReport,
    Status,
)
from dlrover_lite.tui.model import Evaluated, NodeRow
from dlrover_lite.tui.pages.detail import NodesFold, checkpoints_of, evaluated_of, shards_of, strips_of
from dlrover_lite.tui.pages.job_page import describe_node
from dlrover_lite.tui.text import plain


def _status(*nodes: NodeStatus, **fields: object) -> Status:
    return msgspec.structs.replace(starting(Job(Path("a-job"))), nodes=list(nodes), **fields)


def _worker(name: str, cpu: float = 0.0, rate: float = 0.0, state: str = "up") -> NodeStatus:
    return NodeStatus(name, "worker", state, 1.0, 100, rate, cpu)


PS = NodeStatus("ps-0", "ps", "up", 1.0, 100, slots=4096)


def _by_id(fold: NodesFold) -> dict[str, NodeRow]:
    return {row.id: row for row in fold.rows}


def test_used_cores_are_those_since_the_last_count() -> None:
    fold = NodesFold()
    for elapsed, cpu in ((10.0, 5.0), (11.0, 5.0), (12.0, 6.0), (12.5, 6.0)):
        fold.put(_status(_worker("worker-0", cpu), elapsed_seconds=elapsed))
    assert _by_id(fold)["worker-0"].used_cores == 0.5


def test_a_node_may_use_more_than_its_cores_where_nodes_share_them() -> None:
    """And all that run are throttled together: an idle one's share is that of the busy one."""
    idle = msgspec.structs.replace(PS, cpu_seconds=1.0, throttled_seconds=6.0)
    ended = msgspec.structs.replace(PS, id="ps-1", state="ended (Killed)", cpu_seconds=9.0, throttled_seconds=9.0)
    for shared, shares, words in (
        (True, {"ps-0": 0.3, "ps-1": None, "worker-0": 0.3}, ("what others leave", "the CPU limit of all nodes")),
        (False, {"ps-0": 0.857, "ps-1": 0.5, "worker-0": 0.316}, ("of those given", "of the time by its CPU limit")),
    ):
        fold = NodesFold()
        for elapsed in (10.0, 20.0):
            busy = msgspec.structs.replace(_worker("worker-0", 1.3 * (elapsed - 10.0)), throttled_seconds=6.0)
            fold.put(_status(idle, busy, ended, elapsed_seconds=elapsed, shared_cores=shared))
        rows = _by_id(fold)
        assert {node: row.throttled for node, row in rows.items()} == shares
        assert (rows["worker-0"].used_cores, rows["worker-0"].cores) == (1.3, 1.0)
        lines = {plain(one) for one in describe_node(rows["worker-0"], 80)}
        assert all(any(one.endswith(phrase) for one in lines) for phrase in words)


def test_rows_that_have_not_changed_stay_the_same_objects() -> None:
    fold = NodesFold()
    fold.put(_status(PS, _worker("worker-0", rate=10.0)))
    rows = fold.rows
    fold.put(_status(PS, _worker("worker-0", rate=10.0)))
    assert fold.rows is rows
    fold.put(_status(PS, _worker("worker-0", rate=11.0)))
    assert fold.rows[0] is rows[0]
    assert fold.rows[1] is not rows[1]


def test_nodes_are_listed_servers_first_and_ended_ones_last() -> None:
    fold = NodesFold()
    fold.put(_status(_worker("worker-0", state="ended (Killed)"), _worker("worker-1"), PS))
    assert [row.id for row in fold.rows] == ["ps-0", "worker-1", "worker-0"]


def test_restarts_of_a_node_count_its_predecessors() -> None:
    fold = NodesFold()
    fold.happened(
        [
            NodeNews(1.0, "worker-1", "launched", follows="worker-0"),
            NodeNews(2.0, "worker-2", "launched", follows="worker-1"),
        ]
    )
    fold.put(_status(_worker("worker-2"), _worker("worker-9")))
    assert {row.id: row.restarts for row in fold.rows} == {"worker-2": 2, "worker-9": 0}


def test_workers_are_shown_with_share_and_leases() -> None:
    fold = NodesFold()
    shards = ShardsStatus(1, 5, 2, workers={"worker-0": 5})
    status = _status(PS, _worker("worker-0", rate=30.0), _worker("worker-1", rate=10.0), shards=shards)
    fold.put(status)
    rows = _by_id(fold)
    assert [(rows[name].share, rows[name].leased) for name in ("worker-0", "worker-1", "ps-0")] == [
        (0.75, 5),
        (0.25, 0),
        (None, None),
    ]
    found = shards_of(status)
    assert found is not None
    assert (found.done, found.leased, found.left) == (1, 5, 2)


def test_checkpoints_are_put_in_words() -> None:
    newest = CheckpointStatus(3, 10.0, 100, 5, 2048, 1.5)
    known = CheckpointsStatus(newest, CheckpointUnderWay(4, "taking", 1, 1024), CheckpointProblem(2, 5.0, "no room"))
    checkpoints = checkpoints_of(_status(checkpoints=known))
    assert checkpoints is not None
    assert (checkpoints.newest and checkpoints.newest.number, checkpoints.under_way, checkpoints.problem) == (
        3,
        "checkpoint 4 taking, 1 KiB written",
        "",
    )
    later = CheckpointsStatus(newest, None, CheckpointProblem(4, 5.0, "no room"))
    checkpoints = checkpoints_of(_status(checkpoints=later))
    assert checkpoints is not None
    assert checkpoints.problem == "checkpoint 4: no room"
    assert checkpoints_of(_status()) is None
    assert checkpoints_of(None) is None


def test_strips_show_where_slots_are_and_how_busy() -> None:
    owners = array.array("H", [0] * 2048 + [1] * 2048).tobytes()
    topology = Topology(3, [("ps-0", ""), ("ps-2", "")], owners)
    servers = [PsSlots("ps-0", 2048, busy=0.5), PsSlots("ps-2", 2048)]
    report = SlotsReport(3, servers, [HotSlot(0, "ps-0", 1.0, 1.0, 0.4, 1), HotSlot(4095, "ps-2", 1.0, 1.0, 0.1, 1)])
    one, two = strips_of(report, topology)
    assert (one.node, one.busy, two.node, two.busy) == ("ps-0", 0.5, "ps-2", None)
    assert one.heat[0] == 1.0
    assert one.heat[1] == two.heat[64]
    assert 0 < one.heat[1] < 0.1
    assert two.heat[0] == 0.0
    assert two.heat[-1] == 0.25
    assert strips_of(report, Topology(0)) == ()


def test_row_has_the_time_of_the_brains_next_look() -> None:
    from dlrover_lite.tui.model import Look
    from dlrover_lite.tui.pages.detail import status_of_master

    assert status_of_master(_status(next_look=NextLook(7.0, "why"))).next_look == Look(7.0, "why")
    assert status_of_master(_status()).next_look is None


def test_detail_has_how_long_a_cut_held_training_up() -> None:
    newest = CheckpointStatus(3, 10.0, 100, 5, 2048, 1.5, 0.014, 0.011)
    checkpoints = checkpoints_of(_status(checkpoints=CheckpointsStatus(newest)))
    assert checkpoints is not None and checkpoints.newest is not None
    assert (checkpoints.newest.held_up, checkpoints.newest.usual) == (0.014, 0.011)


def test_detail_has_the_newest_evaluation() -> None:
    assert evaluated_of(None) is None and evaluated_of(_status()) is None
    before = EvaluationResult(100, 50, 0.5, 0.6, {"user": 0.9}, {"user": None})
    last = EvaluationResult(200, 50, None, 0.7, {"user": 0.92, "item": 0.01}, {"user": 0.04})
    found = evaluated_of(_status(evaluations=[before, last]))
    assert isinstance(found, Evaluated)
    assert (found.at_samples, found.auc, found.loss, found.unknown) == (200, 0.7, None, "user 92%, item 1%")
    (warning,) = found.warnings
    assert warning.startswith("92% of the ids evaluated in column 'user' were never trained, where 4% are usual")
