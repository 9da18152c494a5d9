"""Why a node ended, as its keeper's book has it."""

from __future__ import annotations

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


def test_a_node_that_cannot_be_followed_is_not_recorded() -> None:
    nodes = running()
    with pytest.raises(BackendError, match="has not ended"):
        nodes.launch(NodeSpec("ps-1", "ps", Resources(1.0, 1), "", "ps-0"))
    assert list(nodes.by_id) == ["ps-0"]
