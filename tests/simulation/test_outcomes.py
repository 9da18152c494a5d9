"""Metrics against what is worked out by hand, comparisons of runs that differ by a known factor, and plots."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.backends.sim.fluid.job import Usage
from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.units import GIB
from dlrover_lite.simulation.outcomes import plots
from dlrover_lite.simulation.outcomes.comparison import Interval, compare
from dlrover_lite.simulation.outcomes.metrics import Metrics, Prices, metrics_of, over_time
from dlrover_lite.simulation.outcomes.records import JobRecord, Run

USAGE = (Usage(10.0, 20.0, 2.0, 4.0, 1.0 * GIB, 2.0 * GIB), Usage(20.0, 40.0, 3.0, 4.0, 1.5 * GIB, 2.0 * GIB))


def ended(name: str, arrived: float, at: float, *, cores: float = 4.0, started: float | None = None) -> JobRecord:
    return JobRecord(
        name=name,
        asked_cores=cores,
        arrived_at=arrived,
        started_at=arrived if started is None else started,
        ended_at=at,
        end="succeeded",
    )


def run(*jobs: JobRecord, policy: str = "manual", seed: int = 0) -> Run:
    return Run(policy=policy, seed=seed, until=100.0, jobs=jobs)


def test_metrics_are_those_worked_out_by_hand() -> None:
    jobs = (
        msgspec.structs.replace(ended("a", 5.0, 40.0, started=10.0), usage=USAGE),
        ended("b", 0.0, 5.0, cores=20.0),
        ended("c", 0.0, 15.0, cores=20.0, started=3.0),
        JobRecord(name="d", asked_cores=100.0, arrived_at=0.0, started_at=0.0, ended_at=9.0, end="out of memory"),
        JobRecord(name="e", asked_cores=16.0, arrived_at=50.0),
    )
    assert metrics_of(run(*jobs), Prices(core_hour=3.6, gib_hour=7.2)) == Metrics(
        jobs=5,
        succeeded=3,
        out_of_memory=1,
        unfinished=1,
        completion_rate=0.6,
        completion_by_size={"small": 0.5, "medium": 1.0, "large": 0.0},
        mean_seconds=pytest.approx((35 + 5 + 15) / 3),
        median_seconds=15.0,
        p90_seconds=pytest.approx(31.0),  # 15 and 35, at 0.8 of the way
        p99_seconds=pytest.approx(34.6),
        mean_waited_seconds=pytest.approx((5 + 0 + 3 + 0) / 4),
        cpu_use=pytest.approx(80 / 120),
        memory_use=pytest.approx(40 / 60),
        core_hours=pytest.approx(120 / 3600),
        gib_hours=pytest.approx(60 / 3600),
        cost=pytest.approx(0.12 + 0.12),
    )


def test_a_run_without_jobs_that_ended_has_no_times() -> None:
    found = metrics_of(run(JobRecord(name="a", arrived_at=0.0)))
    assert (found.mean_seconds, found.cpu_use, found.completion_rate, found.cost) == (None, None, 0.0, 0.0)
    assert metrics_of(run()).completion_rate is None


def test_use_over_time_is_the_mean_of_each_interval() -> None:
    found = over_time(run(msgspec.structs.replace(ended("a", 0.0, 40.0), usage=USAGE)), 4)
    assert found.seconds == 10.0
    assert found.given_cores == pytest.approx([0.0, 4.0, 4.0, 4.0])
    assert found.used_cores == pytest.approx([0.0, 2.0, 3.0, 3.0])
    halves = over_time(run(msgspec.structs.replace(ended("a", 0.0, 40.0), usage=USAGE)), 2, until=50.0)
    assert halves.used_cores == pytest.approx([(10 * 2 + 5 * 3) / 25, 15 * 3 / 25])


USES = st.builds(
    lambda start, seconds, used, given: Usage(start, start + seconds, used, given, used, given),
    st.floats(0, 1e5),
    st.floats(1e-3, 1e4),
    st.floats(0, 100),
    st.floats(0, 100),
)


@given(st.lists(USES, min_size=1, max_size=6), st.integers(1, 40))
def test_no_use_gets_lost_over_time(uses: list[Usage], intervals: int) -> None:
    found = over_time(run(msgspec.structs.replace(ended("a", 0.0, 1.0), usage=tuple(uses))), intervals)
    for name in ("used_cores", "given_cores", "used_bytes", "given_bytes"):
        expected = sum((use.stop - use.start) * getattr(use, name) for use in uses)
        assert sum(getattr(found, name)) * found.seconds == pytest.approx(expected, rel=1e-6, abs=1e-6)


def pair(seed: int, factor: float) -> tuple[Run, Run]:
    """A run, and one in which jobs took so many times as long, and one of them ran out of memory."""
    jobs = [ended(f"j{at}", 10.0 * at, 10.0 * at + 100.0 * (at + 1) * (seed + 1)) for at in range(4)]
    slower = [
        msgspec.structs.replace(job, ended_at=job.arrived_at + factor * (job.seconds or 0.0)) for job in jobs[:-1]
    ]
    died = msgspec.structs.replace(jobs[-1], end="out of memory")
    return run(*jobs, seed=seed), run(*slower, died, policy="other", seed=seed)


def test_a_policy_that_takes_twice_as_long_is_told_to_whatever_the_seeds() -> None:
    base, other = zip(*(pair(seed, 2.0) for seed in range(5)), strict=True)
    found = compare(other, base)
    for interval in (found.mean_time, found.median_time, found.p90_time):
        assert interval is not None
        assert [interval.value, interval.lower, interval.upper] == pytest.approx([2.0, 2.0, 2.0])
    assert found.completion == Interval(-25.0, -25.0, -25.0)
    assert found.worst_time == pytest.approx(2.0)
    assert (found.policy, found.base, found.seeds, found.cpu_use) == ("other", "manual", 5, None)


def test_intervals_hold_the_mean_and_are_the_same_each_time() -> None:
    base, other = zip(*(pair(seed, 1.0 + 0.1 * seed) for seed in range(8)), strict=True)
    found = compare(other, base)
    assert found == compare(other[::-1], base)
    its = found.mean_time
    assert its is not None and its.lower is not None and its.upper is not None
    assert 1.0 < its.lower < its.value < its.upper < 1.7
    assert its.upper - its.lower > 0.1


def test_one_seed_says_nothing_of_others() -> None:
    base, other = pair(3, 0.5)
    assert compare([other], [base]).mean_time == Interval(pytest.approx(0.5))


def test_runs_with_different_seeds_are_not_compared() -> None:
    with pytest.raises(UsageError, match=r"seeds \[1\] can't be compared with seeds \[2\]"):
        compare([run(seed=1)], [run(seed=2)])


def test_plots_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one = run(msgspec.structs.replace(ended("a", 0.0, 40.0), usage=USAGE))
    plots.check_plots(tmp_path / "plots")
    written = plots.write_plots(tmp_path / "plots", {"manual": [one], "es": [run()]})
    assert sorted(path.name for path in written) == ["completion.png", "cpu.png", "memory.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_without_matplotlib_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        plots.check_plots(tmp_path)
    assert caught.value.hint == "pip install 'dlrover-lite[plots]'"
