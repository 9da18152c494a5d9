"""When a master measures its job, and when it doesn't."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dlrover_lite.core.errors import JobError, RemoteError
from dlrover_lite.jobs.profiles import Gap
from dlrover_lite.master.profiling.profile_intervals import Profiling, Usual
from dlrover_lite.protocol.messages import PsCounters, PsReport
from dlrover_lite.protocol.nodes import Enforcement
from dlrover_lite.protocol.profiles import Profile
from dlrover_lite.protocol.questions import DrainRequest, ScaleRequest
from tests.master.rig import Rig, done


@pytest.fixture
def rig(make: Any) -> Rig:
    made: Rig = make(workers=1, samples=40_000)
    return made


def until(rig: Rig, text: str) -> None:
    for _ in rig.statuses():
        if rig.master.profiling.profiler.disturbed == text:
            return
        if rig.master.servers.state.version:
            rig.report("ps-0", version=rig.master.servers.state.version)


def test_no_interval_before_all_nodes_train_or_while_nodes_change(rig: Rig) -> None:
    until(rig, "the parameter servers aren't ready")
    rig.up("ps-0")
    rig.follow("ps-0", until=lambda status: status.slots_settled and status.slot_map_version)
    until(rig, "worker-0 is started")
    rig.up("worker-0")
    until(rig, "worker-0 has not begun to train")
    rig.lease("worker-0", **done(rig.lease("worker-0")))
    until(rig, "")
    rig.ask("cli", ScaleRequest(workers=2))
    until(rig, "worker-1 is started")
    rig.up("worker-1")
    rig.lease("worker-1", **done(rig.lease("worker-1")))
    until(rig, "")
    rig.backend.ends("worker-1")
    until(rig, "worker-2 is started")
    rig.ask("cli", DrainRequest("worker-2"))
    rig.backend.ends("worker-2")


def test_a_killed_master_leaves_a_gap_in_the_profile(rig: Rig) -> None:
    rig.up("ps-0", "worker-0")
    rig.kill()
    rig.start()
    (gap,) = rig.profiles
    assert isinstance(gap, Gap)
    assert (gap.seconds, gap.why) == (None, "the master was killed")


def test_impossible_counters_are_refused_as_messages(rig: Rig) -> None:
    rig.up("ps-0")
    with pytest.raises(RemoteError, match="makes no sense"):
        rig.ask("ps-0", PsReport("ps-0", 0, 0, 0, counters=PsCounters(math.nan, 0.0, 0, 0)))
    assert rig.server.malformed


def test_a_failing_profile_sink_does_not_stop_the_others(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    class Full:
        def keep(self, found: Profile | Gap) -> None:
            raise JobError("the disk is full")

    profiling = Profiling(
        "rig-1",
        rig.recipe,
        rig.master.shards,
        [Full(), rig.profiles],
        clock=rig.clock,
        wall_clock=rig.wall_clock,
        enforcement=Enforcement("nothing"),
    )
    profiling.taken_over("why")
    profiling.taken_over("why")
    assert len(rig.profiles) == 2
    assert capsys.readouterr().out == "a profile is lost: the disk is full\n"


def disturbed_seconds(usual: Usual, *, every: float, lasts: float, seconds: float, trains: bool = True) -> list[int]:
    """Seconds in which evaluations of so many seconds, one every so many, keep training from being measured."""
    return [at for at in range(int(seconds)) if usual.disturbs(float(at), under_way=at % every < lasts, trains=trains)]


def test_a_rare_evaluation_is_not_measured() -> None:
    assert disturbed_seconds(Usual(7.0), every=60, lasts=10, seconds=180) == [
        *range(10),
        *range(60, 70),
        *range(120, 130),
    ]


def test_evaluations_in_close_succession_count_as_training() -> None:
    usual = Usual(7.0)
    disturbed = disturbed_seconds(usual, every=5, lasts=2, seconds=100)
    assert disturbed == [0, 1, 5, 6, 10, 11]
    # also when the plan changes, until there is a stretch without them
    assert not usual.disturbs(100.0, under_way=False, trains=False)
    assert not usual.disturbs(101.0, under_way=True, trains=True)
    assert not usual.disturbs(109.0, under_way=False, trains=True)
    assert usual.disturbs(110.0, under_way=True, trains=True)


def test_one_long_evaluation_counts_as_training_in_the_end() -> None:
    assert disturbed_seconds(Usual(7.0), every=1000, lasts=1000, seconds=60) == [*range(15)]
