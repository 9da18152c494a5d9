"""The keeper's book of fences, over fences that do as told."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from dlrover_lite.backends.limits.base import Enter, Fence, OverMemory
from dlrover_lite.backends.limits.node_limits import NodeLimits
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.protocol.nodes import Enforcement, NodeSpec, Role, Usage

SMALL, LARGE = Resources(1.0, 64 * MIB), Resources(1.0, 128 * MIB)
OVER = OverMemory("over its memory limit")


@dataclass
class FakeFence:
    node: str
    resources: Resources
    inhabited: int = 0
    """So many kills until it is empty."""
    over: OverMemory | None = None
    done: list[str] = field(default_factory=list)
    of_limiter: list[str] = field(default_factory=list)

    @property
    def enter(self) -> Enter:
        return Enter(groups=[self.node])

    def started(self, pid: int) -> None:
        self.done.append(f"started {pid}")

    def resize(self, resources: Resources) -> None:
        if resources.memory < 64 * MIB:
            raise BackendError("too small")
        self.resources = resources
        self.of_limiter.append(f"{self.node} {resources.cores:g}")

    def take_over(self, node: str, resources: Resources) -> None:
        self.resize(resources)
        self.node = node

    def usage(self) -> Usage | None:
        return Usage(1.0, MIB, MIB)

    def over_memory(self) -> OverMemory | None:
        return self.over

    def watch(self) -> None:
        self.done.append("watched")

    def kill(self) -> bool:
        self.done.append("killed")
        self.inhabited -= 1
        return self.inhabited < 0

    def remove(self) -> bool:
        if self.inhabited <= 0:
            self.done.append("removed")
        return self.inhabited <= 0


class FakeLimiter:
    def __init__(self, watch_seconds: float | None = None) -> None:
        self.watch_seconds = watch_seconds
        self.made: list[FakeFence] = []
        self.closed = False
        self.refuses = False
        """It sets no limit for all nodes together."""
        self.done: list[str] = []
        """What was done with limits, in order."""

    def enforcement(self) -> Enforcement:
        return Enforcement("fake")

    def create(self, node: str, resources: Resources) -> Fence:
        if resources.memory < 64 * MIB:
            raise BackendError("too small")
        self.made.append(FakeFence(node, resources, of_limiter=self.done))
        self.done.append(f"{node} {resources.cores:g}")
        return self.made[-1]

    def limit_together(self, cores: float) -> None:
        if self.refuses:
            raise BackendError(f"no {cores:g} cores together", hint="Try it again.")
        self.done.append(f"all {cores:g}")

    def remove_all(self) -> None:
        self.closed = True


def spec(node: str, follows: str = "", resources: Resources = SMALL) -> NodeSpec:
    role: Role = "ps" if node.startswith("ps") else "worker"
    return NodeSpec(node, role, resources, "", follows)


def start(fences: NodeLimits, node: str, follows: str = "", resources: Resources = SMALL) -> None:
    fences.create(spec(node, follows, resources))
    fences.started(node, 17)


def test_usage_is_that_of_running_nodes() -> None:
    fences = NodeLimits(FakeLimiter())
    assert fences.usage("worker-0") is None
    fences.create(spec("worker-0"))
    assert fences.usage("worker-0") is None
    fences.started("worker-0", 17)
    assert fences.usage("worker-0") == Usage(1.0, MIB, MIB)
    fences.ended("worker-0", now=0.0)
    assert fences.usage("worker-0") is None


def test_leftovers_of_a_node_are_killed_until_its_fence_is_removed() -> None:
    limiter = FakeLimiter()
    fences = NodeLimits(limiter)
    start(fences, "worker-0")
    (fence,) = limiter.made
    fence.inhabited, fence.over = 3, OVER
    assert fences.ended("worker-0", now=10.0) == OVER
    assert fences.ended("worker-0", now=10.0) is None  # once
    times = []
    while (due := fences.next_due()) is not None:
        times.append(due)
        fences.act(due)
    assert fence.done == ["started 17", "killed", "killed", "killed", "removed"]
    assert 10.0 < times[0] < times[1] < 10.1
    start(fences, "worker-1", follows="worker-0")
    assert len(limiter.made) == 2


def test_the_fence_of_an_ended_ps_waits_for_its_follower() -> None:
    limiter = FakeLimiter()
    fences = NodeLimits(limiter)
    start(fences, "ps-0")
    fences.ended("ps-0", now=0.0)
    fences.act(1000.0)
    assert fences.next_due() is None or fences.next_due() == 0.0
    (fence,) = limiter.made
    assert "removed" not in fence.done
    fences.resize("ps-0", LARGE)
    assert fence.resources == LARGE
    assert fences.create(spec("ps-1", "ps-0", LARGE)) == Enter(groups=["ps-1"])
    assert limiter.made == [fence]
    fences.resize("ps-0", SMALL)  # its limits are another's now
    assert fence.resources == LARGE


def test_a_follower_that_does_not_fit_changes_nothing() -> None:
    limiter = FakeLimiter()
    fences = NodeLimits(limiter)
    start(fences, "ps-0")
    fences.ended("ps-0", now=0.0)
    with pytest.raises(BackendError, match="too small"):
        fences.create(spec("ps-1", "ps-0", Resources(1.0, MIB)))
    fences.create(spec("ps-1", "ps-0"))
    assert len(limiter.made) == 1


def test_fences_are_looked_at_while_their_nodes_run() -> None:
    limiter = FakeLimiter(watch_seconds=0.1)
    fences = NodeLimits(limiter)
    assert fences.next_due() is None
    start(fences, "ps-0")
    fences.create(spec("ps-1"))
    fences.act(5.0)
    assert fences.next_due() == pytest.approx(5.1)
    fences.act(5.05)
    fences.act(5.2)
    running, starting = limiter.made
    assert running.done.count("watched") == 2
    assert "watched" not in starting.done
    fences.ended("ps-0", now=6.0)
    fences.act(7.0)
    assert running.done.count("watched") == 2


def test_closing_removes_all_fences() -> None:
    limiter = FakeLimiter()
    fences = NodeLimits(limiter)
    start(fences, "ps-0")
    fences.close()
    assert limiter.closed
    assert fences.usage("ps-0") is None


# --- what all nodes have together ---------------------------------------------------------------------------------------


def cores(number: float, memory: int = 64 * MIB) -> Resources:
    return Resources(number, memory)


def test_what_all_have_together_is_raised_before_a_node_gets_more_and_lowered_after() -> None:
    limiter = FakeLimiter()
    fences = NodeLimits(limiter)
    start(fences, "ps-0", resources=cores(0.5))
    start(fences, "worker-0", resources=cores(1.0))
    assert limiter.done == ["all 0.5", "ps-0 0.5", "all 1.5", "worker-0 1"]
    limiter.done.clear()
    fences.resize("worker-0", cores(2.0))
    fences.resize("worker-0", cores(2.0, 128 * MIB))
    fences.resize("worker-0", cores(0.25))
    assert limiter.done == ["all 2.5", "worker-0 2", "worker-0 2", "worker-0 0.25", "all 0.75"]
    assert fences.next_due() is None


def test_an_ended_node_has_no_cores_though_its_fence_stays() -> None:
    limiter = FakeLimiter()
    fences = NodeLimits(limiter)
    start(fences, "ps-0", resources=cores(0.5))
    start(fences, "worker-0", resources=cores(1.0))
    limiter.made[0].inhabited = limiter.made[1].inhabited = 1
    limiter.done.clear()
    fences.ended("ps-0", now=1.0)
    fences.ended("ps-0", now=1.0)
    assert limiter.done == ["all 1"]
    fences.resize("ps-0", cores(0.75))  # what a follower is to have
    assert limiter.done == ["all 1", "ps-0 0.75"]
    start(fences, "ps-1", follows="ps-0", resources=cores(0.75))
    assert limiter.done[2:] == ["all 1.75", "ps-0 0.75"]
    fences.ended("worker-0", now=2.0)
    assert limiter.done[4:] == ["all 0.75"]
    fences.ended("ps-1", now=3.0)  # the last one: no limit of nothing
    fences.act(10.0)
    assert limiter.done[5:] == []
    start(fences, "ps-2", resources=cores(0.75))
    assert limiter.done[5:] == ["ps-2 0.75"]


def test_a_node_that_never_started_has_no_cores_either() -> None:
    limiter = FakeLimiter()
    fences = NodeLimits(limiter)
    start(fences, "ps-0", resources=cores(0.5))
    fences.create(spec("worker-0", resources=cores(1.0)))
    fences.ended("worker-0", now=1.0)
    assert limiter.done[-1] == "all 0.5"


def test_what_is_refused_to_a_node_is_not_left_to_all() -> None:
    limiter = FakeLimiter()
    fences = NodeLimits(limiter)
    start(fences, "ps-0", resources=cores(0.5))
    limiter.done.clear()
    with pytest.raises(BackendError, match="too small"):
        fences.create(spec("worker-0", resources=cores(1.0, MIB)))
    with pytest.raises(BackendError, match="too small"):
        fences.resize("ps-0", cores(2.0, MIB))
    with pytest.raises(BackendError, match="too small"):
        fences.resize("ps-0", cores(0.1, MIB))
    assert limiter.done == ["all 1.5", "all 0.5", "all 2", "all 0.5"]


def test_a_node_for_which_the_limit_cannot_be_raised_is_refused() -> None:
    limiter = FakeLimiter()
    fences = NodeLimits(limiter)
    start(fences, "ps-0", resources=cores(0.5))
    limiter.refuses = True
    with pytest.raises(BackendError, match=r"no 1\.5 cores together"):
        fences.create(spec("worker-0", resources=cores(1.0)))
    with pytest.raises(BackendError, match="no 1 cores together"):
        fences.resize("ps-0", cores(1.0))
    assert limiter.done == ["all 0.5", "ps-0 0.5"]
    assert fences.next_due() is None


def test_a_limit_that_cannot_be_lowered_is_logged_once_and_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    limiter = FakeLimiter()
    fences = NodeLimits(limiter)
    start(fences, "ps-0", resources=cores(0.5))
    start(fences, "worker-0", resources=cores(1.0))
    limiter.done.clear()
    limiter.refuses = True
    fences.ended("worker-0", now=10.0)
    due = fences.next_due()
    assert due == pytest.approx(11.0)
    fences.act(10.5)
    fences.act(11.0)
    assert fences.next_due() == pytest.approx(12.0)
    assert capsys.readouterr().out.count("no 0.5 cores together. Try it again.") == 1
    limiter.refuses = False
    fences.act(12.0)
    assert limiter.done == ["all 0.5"]
    assert fences.next_due() is None
    limiter.refuses = True
    with pytest.raises(BackendError, match=r"no 0\.25 cores together"):
        fences.resize("ps-0", cores(0.25))
    limiter.refuses = False
    fences.act(13.0)
    assert limiter.done == ["all 0.5", "ps-0 0.25", "all 0.25"]


def test_the_sum_does_not_drift_however_often_nodes_come_and_go() -> None:
    limiter = FakeLimiter()
    fences = NodeLimits(limiter)
    start(fences, "ps-0", resources=cores(0.1))
    for number in range(20):
        start(fences, f"worker-{number}", resources=cores(0.2 + number / 7))
        fences.ended(f"worker-{number}", now=float(number))
    assert fences.next_due() is None
    assert limiter.done[-1] == "all 0.1"
    limiter.done.clear()
    fences.resize("ps-0", cores(0.1))
    assert limiter.done == ["ps-0 0.1"]
