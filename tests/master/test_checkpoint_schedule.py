"""When cuts are taken and given up: the state machine, on a clock of the tests' own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dlrover_lite.master.checkpoints import checkpoint_schedule as machine
from dlrover_lite.master.checkpoints.checkpoint_schedule import (
    CheckpointSchedule,
    Commit,
    Drop,
    Hurry,
    Instruction,
    Open,
    Server,
    Take,
    Tell,
    View,
)
from dlrover_lite.protocol.messages import SnapshotReport

EVERY = 600.0
PAIR = ("ps-0", "ps-1")


def view(
    *,
    begun: bool = True,
    at_rest: bool = True,
    queued: bool = False,
    ready: tuple[str, ...] = PAIR,
    up: tuple[str, ...] = PAIR,
    **reports: SnapshotReport,
) -> View:
    """Reports by ``ps_0=…``."""
    servers = [Server(node, node in up, node in ready) for node in PAIR]
    return View(begun, at_rest, queued, servers, {name.replace("_", "-"): report for name, report in reports.items()})


def written(cut: int, rows: int = 5) -> SnapshotReport:
    return SnapshotReport(cut, "written", rows, 100 * rows, b"{}")


class Job:
    """What a master would keep: the state, and all that it was told to do."""

    def __init__(self, **state: Any) -> None:
        self.now = 0.0
        self.cuts = CheckpointSchedule(**{"every_seconds": EVERY, "due_at": EVERY, **state})
        self.done: list[Instruction] = []

    def take(self, following: CheckpointSchedule | tuple[CheckpointSchedule, list[Instruction]]) -> list[Instruction]:
        self.cuts, steps = (following, []) if isinstance(following, CheckpointSchedule) else following
        self.done += steps
        return steps

    def tick(self, seconds: float = 0.0, **seen: Any) -> list[Instruction]:
        self.now += seconds
        return self.take(self.cuts.tick(self.now, view(**seen)))

    def opened(self) -> None:
        self.take(self.cuts.opened(self.cuts.cut, self.now))

    def failed(self, why: str = "full") -> list[Instruction]:
        return self.take(self.cuts.failed(self.cuts.cut, why, "make room", self.now))

    def request(self) -> int:
        self.cuts, number = self.cuts.request(self.now)
        return number

    def taking(self) -> int:
        """As far as the orders for the next cut."""
        self.request()
        self.tick()
        self.opened()
        self.tick()
        assert self.cuts.phase == "taking"
        return self.cuts.cut

    def whole(self) -> int:
        """A cut, from beginning to end."""
        cut = self.taking()
        self.tick(ps_0=written(cut), ps_1=written(cut))
        self.take(self.cuts.committed(cut))
        return cut

    def told(self) -> list[str]:
        return [step.text for step in self.done if isinstance(step, Tell)]


def test_a_cut_from_beginning_to_end() -> None:
    job = Job()
    assert job.tick(EVERY - 1) == []
    assert job.tick(1) == [Open(1)]
    assert job.tick(1) == []
    job.opened()
    assert job.tick() == [Take(1, ["ps-0", "ps-1"], 0.8 * EVERY)]
    assert job.tick(1, ps_0=written(1), ps_1=SnapshotReport(1, "taking", 7, 700)) == []
    assert job.cuts.written[:2] == (12, 1200)
    parts = {"ps-0": written(1), "ps-1": written(1, 9)}
    assert job.tick(1, ps_0=parts["ps-0"], ps_1=parts["ps-1"]) == [Drop(), Commit(1, parts)]
    assert job.cuts.newest == 0
    job.take(job.cuts.committed(1))
    assert (job.cuts.newest, job.cuts.phase, job.cuts.problem) == (1, "idle", None)
    assert job.tick(EVERY - 5) == []
    assert job.tick(2) == []  # counted from when the last one was begun
    assert job.tick(1) == [Open(2)]


@pytest.mark.parametrize("waits", ["who asks", "a move", "the job's end", "nobody"])
def test_a_scheduled_cut_takes_its_time_until_somebody_waits(waits: str) -> None:
    job = Job()
    job.tick(EVERY)
    job.opened()
    assert job.tick() == [Take(1, ["ps-0", "ps-1"], 0.8 * EVERY)]
    assert job.tick(1) == []
    if waits == "who asks":
        assert job.request() == 2
    if waits == "the job's end":
        job.cuts = job.cuts.stop(job.now, begun=True)
    assert job.tick(1, queued=waits == "a move") == ([] if waits == "nobody" else [Hurry()])
    assert job.tick(1, queued=waits == "a move") == []
    job.tick(ps_0=written(1), ps_1=written(1))
    job.take(job.cuts.committed(1))
    job.tick(EVERY)
    job.opened()
    seconds = 0.8 * EVERY if waits in ("nobody", "a move") else 0.0
    assert job.tick() == [Take(2, ["ps-0", "ps-1"], seconds)]


def test_a_cut_in_place_of_a_failed_one_is_written_at_full_speed() -> None:
    job = Job()
    job.tick(EVERY)
    job.opened()
    job.tick()
    job.tick(1, ps_0=SnapshotReport(1, "failed", why="full"))
    job.tick(5)
    job.opened()
    assert job.tick() == [Take(2, ["ps-0", "ps-1"], 0.0)]


def test_no_scheduled_cut_before_training_has_begun() -> None:
    job = Job()
    job.request()
    assert job.tick(2 * EVERY, begun=False) == []
    assert job.tick() == [Open(1)]


@pytest.mark.parametrize("seen", [{"at_rest": False}, {"ready": ("ps-0",)}, {"up": ("ps-1",)}])
def test_a_cut_begins_when_all_servers_are_up_ready_and_at_rest(seen: dict[str, Any]) -> None:
    job = Job()
    job.request()
    job.tick()
    job.opened()
    assert job.tick(1, **seen) == []
    assert not job.cuts.holds_moves(job.now)
    assert job.tick(1, **seen) == []
    assert job.cuts.holds_moves(job.now)  # those under way end; no other begins
    assert job.tick(3600, **seen) == []
    assert job.tick() == [Take(1, ["ps-0", "ps-1"])]


def test_moves_wait_for_a_cut_only_for_so_long() -> None:
    job = Job()
    cut = job.taking()
    assert job.cuts.holds_moves(job.now)
    assert job.tick(100) == []
    assert job.tick(1, queued=True) == []
    assert job.tick(29, queued=True) == []
    assert job.tick(1, queued=True)[0] == Drop()
    assert not job.cuts.holds_moves(job.now)
    assert job.told() == [
        "checkpoint 1 is given up: moves of slots have waited for it for 30 s; another one is tried in 5 s"
    ]
    assert job.tick(4) == []
    assert job.tick(1) == [Open(cut + 1)]


def test_a_cut_that_waits_for_a_slow_move_lets_queued_moves_go_in_time() -> None:
    job = Job()
    job.request()
    job.tick()
    job.opened()
    job.tick(2, at_rest=False, queued=True)
    job.tick(29, at_rest=False, queued=True)
    assert job.cuts.phase == "waiting"
    job.tick(1, at_rest=False, queued=True)
    assert job.cuts.phase == "idle"


def test_a_cut_is_dropped_when_a_ps_ends() -> None:
    job = Job()
    job.taking()
    assert job.tick(1, up=("ps-0",))[0] == Drop()
    assert job.cuts.problem is not None
    assert (job.cuts.problem.why, job.cuts.problem.failures) == ("ps-1 has ended", 0)
    assert job.tick() == [Open(2)]


def test_a_cut_is_committed_though_a_ps_ends_after_writing_its_part() -> None:
    job = Job()
    job.taking()
    job.tick(1, ps_1=written(1))
    assert job.tick(1, up=("ps-0",), ps_0=written(1))[-1] == Commit(1, {"ps-0": written(1), "ps-1": written(1)})


def test_a_cut_that_fails_on_a_ps_is_dropped_and_taken_anew() -> None:
    job = Job()
    job.taking()
    full = SnapshotReport(1, "failed", why="the disk is full", hint="make room")
    assert job.tick(1, ps_1=full)[0] == Drop()
    problem = job.cuts.problem
    assert problem is not None
    assert (problem.why, problem.hint, problem.failures) == ("ps-1: the disk is full", "make room", 1)
    assert job.tick(4.9, ps_1=full) == []
    assert job.tick(0.1, ps_1=full) == [Open(2)]
    job.opened()
    job.tick(ps_1=full)
    assert job.tick(ps_1=full) == []  # that was about the last one
    assert job.cuts.phase == "taking"


def test_reports_of_other_cuts_are_ignored() -> None:
    job = Job()
    job.whole()
    cut = job.taking()
    assert job.tick(1, ps_0=written(cut - 1), ps_1=written(cut - 1)) == []
    assert job.cuts.parts == {}


def test_a_destination_that_fails_is_tried_less_and_less_often() -> None:
    job, begun = Job(every_seconds=30.0), []
    job.request()
    for _ in range(5):
        while not job.tick(1):
            pass
        begun.append(job.now)
        job.failed()
    assert [later - earlier for earlier, later in pairwise(begun)] == [5, 10, 20, 30]
    assert job.request() == 6  # somebody who asks is answered at once
    assert job.tick() == [Open(6)]
    job.opened()
    job.tick()
    job.tick(ps_0=written(6), ps_1=written(6))
    job.take(job.cuts.committed(6))
    assert job.cuts.failures == 0
    job.request()
    job.tick()
    job.failed()
    assert job.cuts.not_before == job.now + 5


def test_a_cut_whose_manifest_cannot_be_written_is_given_up() -> None:
    job = Job()
    job.taking()
    job.tick(ps_0=written(1), ps_1=written(1))
    assert not job.cuts.holds_moves(job.now)
    (told,) = job.failed("gone")
    assert told == Tell("checkpoint 1 is given up: gone; another one is tried in 5 s")
    job.take(job.cuts.committed(1))  # too late
    assert job.cuts.newest == 0


def test_a_destination_that_hangs_is_told_of_once_and_waited_for() -> None:
    job = Job()
    job.request()
    job.tick()
    assert job.tick(59) == []
    assert job.tick(1) == [Tell("checkpoint 1 waits: the destination hasn't answered for 60 s")]
    assert job.tick(10_000) == []
    assert not job.cuts.holds_moves(job.now)
    job.opened()
    assert job.tick() == [Take(1, ["ps-0", "ps-1"])]


def test_a_cut_whose_parts_are_never_written_is_given_up() -> None:
    job = Job()
    job.taking()
    for rows in range(10):
        assert job.tick(299, ps_0=written(1), ps_1=SnapshotReport(1, "taking", rows)) == []
    assert job.tick(302, ps_0=written(1), ps_1=SnapshotReport(1, "taking", 9))[0] == Drop()
    assert job.told() == [
        "checkpoint 1 is given up: nothing has been written for 300 s by ps-1; another one is tried in 5 s"
    ]


def test_requests_for_cuts_coalesce() -> None:
    job = Job()
    assert [job.request(), job.request()] == [1, 1]
    job.tick()
    assert job.request() == 1  # nothing is noted yet
    job.opened()
    assert job.request() == 1
    job.tick()
    assert [job.request(), job.request(), job.request()] == [2, 2, 2]
    job.tick(ps_0=written(1), ps_1=written(1))
    assert job.request() == 2
    job.take(job.cuts.committed(1))
    assert job.tick() == [Open(2)]
    job.opened()
    job.tick()
    job.tick(ps_0=written(2), ps_1=written(2))
    job.take(job.cuts.committed(2))
    assert job.tick() == []


def test_numbers_of_existing_cuts_are_passed_over() -> None:
    job = Job()
    job.request()
    job.tick()
    job.take(job.cuts.refused(1, 7))
    assert job.tick() == [Open(8)]
    job = Job()
    job.take(job.cuts.found(3, 5))
    assert (job.cuts.newest, job.request()) == (3, 6)


def test_a_last_cut_is_waited_for_up_to_a_minute_when_stopping() -> None:
    job = Job()
    job.whole()
    job.take(job.cuts.stop(job.now, begun=True))
    job.take(job.cuts.stop(job.now + 50, begun=True))
    assert not job.cuts.may_stop(job.now)
    job.tick()
    job.opened()
    job.tick()
    job.tick(ps_0=written(2), ps_1=written(2))
    assert not job.cuts.may_stop(job.now + 59)
    assert job.cuts.may_stop(job.now + 60)
    job.take(job.cuts.committed(2))
    assert job.cuts.may_stop(job.now)


def test_stopping_while_a_cut_is_taken_waits_for_the_next() -> None:
    job = Job()
    job.taking()
    job.take(job.cuts.stop(job.now, begun=True))
    job.tick(ps_0=written(1), ps_1=written(1))
    job.take(job.cuts.committed(1))
    assert not job.cuts.may_stop(job.now)
    assert job.tick() == [Open(2)]


def test_stopping_needs_no_cut_before_training_or_after_two_failures() -> None:
    job = Job()
    job.take(job.cuts.stop(0.0, begun=False))
    assert job.cuts.may_stop(0.0)
    job = Job()
    job.take(job.cuts.stop(0.0, begun=True))
    job.tick()
    job.failed()
    assert not job.cuts.may_stop(job.now)  # once may be chance
    job.tick(5)
    job.failed()
    assert job.cuts.may_stop(job.now)


def test_end_of_the_job_drops_the_cut_under_way() -> None:
    job = Job()
    job.taking()
    assert job.take(job.cuts.end())[0] == Drop()
    assert not job.cuts.holds_moves(job.now)
    assert job.take(job.cuts.end()) == []
    assert job.tick(1e6) == []
    job = Job()
    assert job.take(job.cuts.end()) == []


# --- whatever the order of events ----------------------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """A job in which anything may happen at any time, also what was due to an earlier cut."""

    def __init__(self) -> None:
        super().__init__()
        self.job = Job(every_seconds=50.0, due_at=50.0)
        self.begun: list[int] = []
        self.complete: list[int] = []
        self.taking: set[str] = set()
        self.is_slow = False
        """They were told that there is time."""
        self.reports: dict[str, SnapshotReport] = {}
        self.promised: list[int] = []
        self.up = set(PAIR)
        self.queued = False
        self.held_since: float | None = None
        """While a move waited all the time."""

    def follow(self, steps: list[Instruction]) -> None:
        for step in steps:
            match step:
                case Open(cut):
                    assert not self.taking
                    assert cut > max(self.begun, default=0)
                    self.begun.append(cut)
                case Take(cut, servers):
                    assert cut == self.begun[-1]
                    assert set(servers) == set(PAIR) == self.up
                    self.taking = set(servers)
                    self.is_slow = step.seconds > 0
                case Hurry():
                    assert self.taking
                    assert self.is_slow
                    self.is_slow = False
                case Drop():
                    self.taking = set()
                case Commit(cut, parts):
                    assert cut == self.begun[-1]
                    assert sorted(parts) == sorted(PAIR)
                    assert all(part.cut == cut and part.state == "written" for part in parts.values())

    def look(self, ready: bool, at_rest: bool) -> None:
        job = self.job
        servers = [Server(node, node in self.up, ready) for node in PAIR]
        seen = View(True, at_rest, self.queued, servers, dict(self.reports))
        self.follow(job.take(job.cuts.tick(job.now, seen)))
        held = self.queued and job.cuts.holds_moves(job.now)
        self.held_since = (job.now if self.held_since is None else self.held_since) if held else None

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 4.0]), ready=st.booleans(), at_rest=st.booleans())
    def time_passes(self, seconds: float, ready: bool, at_rest: bool) -> None:
        self.job.now += seconds
        self.look(ready, at_rest)

    @rule()
    def asks(self) -> None:
        number = self.job.request()
        assert number > max(self.complete, default=0)
        self.promised.append(number)

    @rule(node=st.sampled_from(PAIR), state=st.sampled_from(["taking", "written", "failed"]), late=st.booleans())
    def ps_says(self, node: str, state: Any, late: bool) -> None:
        if self.begun:
            self.reports[node] = SnapshotReport(self.begun[-2 if late else -1] if len(self.begun) > 1 else 1, state)

    @rule(node=st.sampled_from(PAIR))
    def ps_ends_or_comes_back(self, node: str) -> None:
        self.up ^= {node}

    @rule()
    def moves_are_wanted_or_not(self) -> None:
        self.queued = not self.queued

    @precondition(lambda self: bool(self.begun))
    @rule(which=st.sampled_from(["opened", "committed", "failed", "refused"]), back=st.integers(0, 1))
    def destination_says(self, which: str, back: int) -> None:
        cut, job = self.begun[-1 - back] if len(self.begun) > back else self.begun[-1], self.job
        before = job.cuts.newest
        match which:
            case "opened":
                job.take(job.cuts.opened(cut, job.now))
            case "committed":
                job.take(job.cuts.committed(cut))
            case "failed":
                self.follow(job.take(job.cuts.failed(cut, "why", "", job.now)))
            case _:
                job.take(job.cuts.refused(cut, cut + 1))
        if job.cuts.newest != before:
            assert job.cuts.newest == self.begun[-1] == cut
            self.complete.append(cut)

    @invariant()
    def moves_wait_while_parts_are_written(self) -> None:
        assert not self.taking or self.job.cuts.holds_moves(self.job.now)
        assert bool(self.taking) == (self.job.cuts.phase == "taking")

    @invariant()
    def and_not_for_ever(self) -> None:
        longest = machine.MOVES_WAIT_SECONDS + 5.0  # looked at every few seconds here
        assert self.held_since is None or self.job.now - self.held_since <= longest

    def teardown(self) -> None:
        """Once everything works, all that was promised is kept."""
        job = self.job
        self.up, self.queued = set(PAIR), False
        for _ in range(60):
            job.now += 10.0
            self.reports = {node: written(job.cuts.cut) for node in PAIR}
            self.look(ready=True, at_rest=True)
            if job.cuts.phase == "opening":
                job.opened()
            elif job.cuts.phase == "committing":
                job.take(job.cuts.committed(job.cuts.cut))
        assert job.cuts.newest >= max(self.promised, default=1)


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
test_any_order = AnyOrder.TestCase
