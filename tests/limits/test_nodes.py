"""Why a node ended, as its keeper's book has it."""

from __future__ import annotations

import signal

import pytest

from dlrover_lite.backends.keeper.nodes import Nodes
from dlrover_lite.backends.limits.base import OverMemory
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.nodes import NodeSpec

OVER = OverMemory("over its memory limit of 64 MiB (peak 64 MiB)")


def running() -> Nodes:
    nodes = Nodes()
    nodes.launch(NodeSpec("ps-0", "ps", Resources(1.0, 1), ""))
    nodes.started("ps-0", 17, now=0.0, at=0.0)
    return nodes


def end(nodes: Nodes, exit_code: int | None, over: OverMemory | None = None) -> tuple[str | None, str]:
    nodes.ended("ps-0", exit_code, at=1.0, over_memory=over)
    seen = nodes.by_id["ps-0"].observed
    return seen.reason, seen.detail


@pytest.mark.parametrize(
    ("exit_code", "over", "reason", "detail"),
    [
        (-9, OVER, "OOMKilled", OVER.detail),
        (-9, None, "Killed", "SIGKILL, sent by the system or another process"),
        (137, None, "Unknown", "exit code 137; see ps-0.log"),
        (1, OVER, "Unknown", f"exit code 1; see ps-0.log; a process it had started was killed: {OVER.detail}"),
        (3, None, "UserError", "exit code 3; see ps-0.log"),
        (0, OVER, "Succeeded", ""),
        (-15, None, "Preempted", "SIGTERM, sent by the system or another process"),
        (143, None, "Preempted", "SIGTERM, sent by the system or another process"),
        (-11, OVER, "Killed", "SIGSEGV, sent by the system or another process"),
        (None, None, "Unknown", "never started"),
    ],
)
def test_reason_of_an_end_that_nobody_asked_for(
    exit_code: int | None, over: OverMemory | None, reason: str, detail: str
) -> None:
    assert end(running(), exit_code, over) == (reason, detail)


@pytest.mark.parametrize("exit_code", [-15, 143])
def test_reason_of_an_end_on_request_is_killed(exit_code: int) -> None:
    nodes = running()
    nodes.terminate("ps-0", 10.0, now=0.0)
    assert end(nodes, exit_code) == ("Killed", "ended on request (SIGTERM)")


def test_running_out_of_memory_during_the_grace_period_is_oomkilled() -> None:
    nodes = running()
    nodes.terminate("ps-0", 10.0, now=0.0)
    assert end(nodes, -9, OVER) == ("OOMKilled", OVER.detail)


def test_our_own_kill_is_not_taken_for_an_oom_kill() -> None:
    nodes = running()
    nodes.terminate("ps-0", 0.0, now=0.0)
    assert end(nodes, -9, OVER) == ("Killed", "killed on request")


@pytest.mark.parametrize("exit_code", [-15, 143, -9])
def test_a_node_whose_pod_ends_is_preempted(exit_code: int) -> None:
    nodes = running()
    (sent,) = nodes.preempt("the pod ends", 5.0, now=1.0)
    assert sent.number == signal.SIGTERM
    assert [due.number for due in nodes.due(6.0)] == [signal.SIGKILL]
    assert end(nodes, exit_code) == ("Preempted", "the pod ends")


def test_a_node_that_ends_by_itself_while_its_pod_ends_has_its_own_reason() -> None:
    for exit_code, over, reason in ((0, None, "Succeeded"), (3, None, "UserError"), (-9, OVER, "OOMKilled")):
        nodes = running()
        nodes.preempt("the pod ends", 5.0, now=1.0)
        assert end(nodes, exit_code, over)[0] == reason


def test_a_node_that_was_asked_to_end_before_its_pod_was_is_killed_on_request() -> None:
    nodes = running()
    nodes.terminate("ps-0", 5.0, now=1.0)
    assert nodes.preempt("the pod ends", 20.0, now=2.0) == []
    assert end(nodes, -15) == ("Killed", "ended on request (SIGTERM)")


def test_nodes_that_wait_for_a_template_are_not_taken_along_by_the_one_before() -> None:
    nodes = running()
    nodes.launch(NodeSpec("ps-1", "ps", Resources(1.0, 1), ""))
    nodes.taken_along(["ps-1"])
    assert end(nodes, -9)[0] == "Preempted"
    nodes.started("ps-1", 18, now=1.0, at=1.0)
    nodes.ended("ps-1", -9, at=2.0)
    assert nodes.by_id["ps-1"].observed.reason == "Killed"


def test_a_node_that_cannot_be_followed_is_not_recorded() -> None:
    nodes = running()
    with pytest.raises(BackendError, match="has not ended"):
        nodes.launch(NodeSpec("ps-1", "ps", Resources(1.0, 1), "", "ps-0"))
    assert list(nodes.by_id) == ["ps-0"]


def test_one_that_follows_a_node_of_elsewhere_is_started_only_where_not_all_are() -> None:
    follower = NodeSpec("ps-1", "ps", Resources(1.0, 1), "", follows="ps-0")
    with pytest.raises(BackendError, match="No node 'ps-0' was ever launched"):
        Nodes().launch(follower)
    nodes = Nodes(has_all=False)
    assert nodes.launch(follower) and nodes.by_id["ps-1"].spec.follows == "ps-0"
    with pytest.raises(BackendError, match="can't follow ps-1 yet"):
        nodes.launch(NodeSpec("ps-2", "ps", Resources(1.0, 1), "", follows="ps-1"))
