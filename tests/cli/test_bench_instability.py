"""What runs have lost, as ``bench/instability.py`` has it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import _instability_runs

    return _instability_runs


@pytest.fixture
def bench(runs: Any) -> Any:
    import instability

    return instability


def progress(runs: Any, monkeypatch: pytest.MonkeyPatch, *, stands: float, until: int) -> Any:
    """Of a run with 100 samples/s, looked at every second, that stands still for some seconds from the 40th on."""
    found, clock = runs.Progress(), iter(range(until))
    monkeypatch.setattr(runs, "time", SimpleNamespace(time=lambda: float(next(clock))))
    for second in range(until):
        lost = min(max(0.0, second - 40), stands)
        found.add(SimpleNamespace(samples=round(100 * (second - lost))))
    return found


@pytest.mark.parametrize("stands", [0.0, 3.0, 12.0])
def test_lost_time_is_how_long_training_stood_still(runs: Any, monkeypatch: pytest.MonkeyPatch, stands: float) -> None:
    assert progress(runs, monkeypatch, stands=stands, until=100).lost(40.0) == pytest.approx(stands)


def test_a_run_that_ends_too_soon_gives_no_loss(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress(runs, monkeypatch, stands=3.0, until=80).lost(40.0) is None
    assert progress(runs, monkeypatch, stands=3.0, until=100).lost(10.0) is None


def test_a_job_is_compared_with_what_its_twin_did_meanwhile(runs: Any) -> None:
    jobs = runs.JobAndTwin.__new__(runs.JobAndTwin)
    jobs.progress = {"job": runs.Progress(), "twin": runs.Progress()}
    job, twin = jobs.progress["job"], jobs.progress["twin"]
    # the twin was there ten seconds before; the machine is half as fast from the 60th second on
    for second in range(100):
        both = 100 * (min(second, 60) + max(0, second - 60) / 2)
        twin.at.append(float(second))
        twin.samples.append(round(1000 + both))
        if second < 70:
            job.at.append(float(second))
            job.samples.append(round(both - 100 * min(max(0, second - 40), 3)))  # stands still for three seconds
    assert jobs.end_times(6500, 40.0) is None, "the job hasn't trained on so many yet"
    job.at.extend([76.0, 80.0])
    job.samples.extend([6500, 6700])
    ended, twin_ended = jobs.end_times(6500, 40.0)
    assert (ended, twin_ended) == (pytest.approx(76.0), pytest.approx(70.0)), "three seconds' work takes six by then"
    assert job.when(6500) == 76.0 and job.when(6600) == pytest.approx(78.0)


LOST_SECONDS = {"none": 20.0, "ours": 2.0, "restart": 10.0}


def a_round(bench: Any, why: str = "", **differs: float) -> dict[str, Any]:
    """``why``: the last of its runs was disturbed. ``differs``: seconds that a run lost, other than those above."""
    named = {how: LOST_SECONDS[how] + differs.get(how, 0.0) for how in bench.HOWS["hot_ps"]}
    values = {how: bench.Round(bench.Run(how, 100.0, lost), 100.0, 0.0, 0.0) for how, lost in named.items()}
    last = values["ours"]
    return {**values, "ours": bench.Round(last.value, last.seconds, 0.0, 0.0, why)}


def losses(bench: Any, rounds: list[dict[str, Any]], *, heed: bool = True) -> dict[str, Any]:
    figures = bench.figures_of(bench.CASES["hot_ps"], rounds, heed=heed)
    return {figure.figure.removeprefix("hot_ps."): figure for figure in figures}


def test_losses_are_compared_by_the_means_of_all_rounds(bench: Any) -> None:
    found = losses(bench, [a_round(bench, ours=-4.0, restart=-10.0), a_round(bench, ours=8.0)])
    assert found["lost_vs_none"].value == pytest.approx((-2 + 10) / 40)
    assert found["lost_vs_restart"].value == pytest.approx((-2 + 10) / 10), "a restart that lost nothing counts, too"
    assert found["lost_vs_restart"].detail["rounds"] == [None, pytest.approx(1.0)]
    assert found["lost_vs_none"].detail["standard_error"] == pytest.approx(0.3)  # of -0.1 and 0.5


def test_a_single_round_has_no_error_and_a_disturbed_one_does_not_count(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = [a_round(bench), a_round(bench, "others took 9% of the CPU", ours=9.0)]
    found = losses(bench, rounds)["lost_vs_none"]
    assert (found.value, found.detail["standard_error"]) == (pytest.approx(0.1), None)
    assert found.detail["disturbed_rounds"] == 1
    assert losses(bench, rounds, heed=False)["lost_vs_none"].value == pytest.approx(13 / 40)
    assert not losses(bench, rounds[1:])
    assert "no round counts (others took 9% of the CPU)" in capsys.readouterr().err


def test_a_ratio_to_a_loss_of_nothing_is_left_out(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert "lost_vs_restart" not in losses(bench, [a_round(bench, restart=-11.0)])
    assert "hot_ps.lost_vs_restart is left out: restart lost nothing (-1.0 s)" in capsys.readouterr().err


def test_rounds_are_enough_once_each_error_is_a_third_of_its_target(bench: Any) -> None:
    case = bench.CASES["hot_ps"]
    alike = [a_round(bench, ours=more) for more in (0.0, 0.5, 1.0)]
    assert bench.sure(case, alike, heed=True)
    assert not bench.sure(case, alike[:1], heed=True), "a single round doesn't tell"
    apart = [a_round(bench, ours=more, none=20.0) for more in (0.0, 4.0, -1.0)]
    assert not bench.sure(case, apart, heed=True), "the loss over a restart's isn't known well enough"
    assert bench.sure(bench.CASES["straggler"], apart, heed=True), "the loss over that without intervention is"
    disturbed = [a_round(bench, "others took 9% of the CPU") for _ in alike]
    assert not bench.sure(case, [alike[0], *disturbed], heed=True)
    assert bench.sure(case, [alike[0], *disturbed], heed=False)
