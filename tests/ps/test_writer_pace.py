"""The persister's pace: it follows a straight line to its end, in small turns, and rests at least for so long."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.ps.snapshots.snapshot_writer import waits_of_this_process
from dlrover_lite.ps.snapshots.writer_pace import LEAST_BYTES_PER_SECOND, MOST_REST_SECONDS, Leftover, Pace

STEPS = 1000


def written_in(seconds: float, total_bytes: int, step_seconds: float, hurried_at: float = 2.0) -> tuple[float, float]:
    """Seconds that a part takes, and those of work within any 0.1 of them, at most. Hurried when so much of 1 is done."""
    now, began = 0.0, 0.0
    pace = Pace(seconds, total_bytes, began, Leftover(3.0, 1.0, 9.0))
    works: list[float] = []
    for step in range(1, STEPS + 1):
        works.append(now)
        now += step_seconds
        now += pace.rest(step_seconds)
        if step / STEPS >= hurried_at:
            pace.hurry()
        while wait := pace.wait(now, step / STEPS):
            assert wait <= MOST_REST_SECONDS
            now += wait
    most = max(sum(start <= other < start + 0.1 for other in works) for start in works)
    return now, most * step_seconds


@given(seconds=st.floats(5.0, 100.0), share=st.floats(0.01, 0.2))
def test_a_part_is_written_in_its_time_with_work_spread(seconds: float, share: float) -> None:
    """``share``: of the time, that it works."""
    took, most = written_in(seconds, 1 << 50, share * seconds / STEPS)
    assert seconds * 0.99 <= took <= seconds * 1.01
    assert most <= 0.1 * share * 1.5 + 2 * share * seconds / STEPS


def test_a_small_part_takes_no_longer_than_its_bytes_need() -> None:
    took, _ = written_in(480.0, int(LEAST_BYTES_PER_SECOND), 1e-5)
    assert 0.9 <= took <= 1.1


def test_without_a_given_time_writing_rests_thrice_its_work() -> None:
    took, _ = written_in(0.0, 1 << 50, 0.001)
    assert 3.9 <= took <= 4.1


def test_writing_that_needs_more_than_its_time_still_rests() -> None:
    took, _ = written_in(2.0, 1 << 50, 0.001)
    assert 3.9 <= took <= 4.1


def test_a_hurried_part_is_finished_without_spreading() -> None:
    took, _ = written_in(100.0, 1 << 50, 0.001, hurried_at=0.5)
    assert 51.0 <= took <= 53.0


# --- what the CPUs leave over -----------------------------------------------------------------------------------------


def shares_of_time(left_over: list[float]) -> list[float]:
    """Of the time, for which the persister works, when so much of a CPU is left over, a value for each second; whoever wants more than that
    waits for it."""
    leftover, worked, waited, found = Leftover(3.0, 1.0, 9.0), 0.0, 0.0, []
    leftover.look(0.0, 0.0)
    for left in left_over:
        for _ in range(20):
            wanted = 0.05 / (1 + leftover.pause)
            got = min(wanted, 0.05 * left)
            worked, waited = worked + got, waited + wanted - got
            leftover.look(worked, waited)
        found.append(1 / (1 + leftover.pause))
    return found


def test_writing_takes_half_of_an_idle_cpu_and_a_tenth_of_a_busy_one() -> None:
    assert shares_of_time([1.0] * 60)[-1] == 0.5
    assert abs(shares_of_time([0.01] * 60)[-1] - 0.1) < 1e-9


def test_writing_yields_to_others_at_once_and_returns_slowly() -> None:
    shares = shares_of_time([1.0] * 60 + [0.01] * 60 + [1.0] * 60)
    falls = next(i for i, share in enumerate(shares[60:]) if share < 0.12)
    rises = next(i for i, share in enumerate(shares[120:]) if share > 0.48)
    assert falls < rises < 60


def test_work_before_the_first_look_does_not_change_the_pace() -> None:
    leftover = Leftover(3.0, 1.0, 9.0)
    leftover.look(100.0, 900.0)
    assert leftover.pause == 3.0


def test_work_and_waiting_are_read_from_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text("1500000000 250000000 42\n")
    assert waits_of_this_process(path) == (1.5, 0.25)
    path.write_text("what is this")
    assert waits_of_this_process(path) is None
    assert waits_of_this_process(tmp_path / "none") is None
