"""When a round of a bench counts, and what is made of those that do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from bench._quiet import Moment, Quiet, Round, machine_seconds, of_rounds, share_of_others, spread, verdict

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_share_of_others_is_the_cpu_time_beside_our_own() -> None:
    before, after = Moment(10.0, 100.0, 40.0), Moment(20.0, 115.0, 54.0)
    assert share_of_others(before, after, cores=2) == pytest.approx(0.05)


class Times(NamedTuple):
    user: float = 70.0
    nice: float = 10.0
    system: float = 20.0
    idle: float = 900.0
    irq: float = 1.0
    softirq: float = 2.0
    steal: float = 4.0


def test_exact_process_times_are_preferred_to_clock_ticks() -> None:
    """Interrupts, and what the hypervisor takes, are nobody's."""
    assert machine_seconds(Times(), None) == 107.0
    assert machine_seconds(Times(), 94.0) == 101.0


def test_share_of_others_is_never_negative() -> None:
    assert share_of_others(Moment(0.0, 0.0, 0.0), Moment(1.0, 0.99, 1.0), cores=2) == 0.0


@pytest.mark.parametrize(
    ("others", "off", "words"),
    [
        (0.0, 0.0, ""),
        (0.029, 0.1, ""),
        (0.03, 0.0, "others took 3%"),
        (0.5, 0.5, "50%"),
        (0.0, 0.2, "20% longer"),
        (0.0, -0.2, "20% less"),
    ],
)
def test_verdict_says_why_a_round_is_disturbed(others: float, off: float, words: str) -> None:
    found = verdict(others, off)
    assert words in found
    assert bool(found) is bool(words)


def takes(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Have calibration runs take so long, and do nothing meanwhile."""
    left = iter(seconds)
    monkeypatch.setattr("bench._quiet._WARM_SORTS", 0)
    monkeypatch.setattr("bench._quiet._timed", lambda work: next(left))


def test_a_lasting_slowdown_becomes_the_usual_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    takes(monkeypatch, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 1.0)
    quiet = Quiet()
    assert [quiet.calibrate() for _ in range(8)] == pytest.approx([0, 0, 0, 1.0, 1.0, 1 / 3, 0, -1 / 3])


@pytest.mark.parametrize(
    ("paces", "again", "runs", "counts"),
    [
        ([1.0, 1.0], 1, 1, True),
        ([1.0, 2.0, 1.0, 1.0], 1, 2, True),
        ([1.0, 2.0, 2.0, 1.0, 1.0, 1.0], 1, 2, False),
        ([1.0, 2.0, 2.0, 1.0, 1.0, 1.0], 2, 3, True),
        ([1.0, 2.0], 0, 1, False),
    ],
)
def test_a_disturbed_run_is_repeated_until_one_is_quiet(
    paces: list[float], again: int, runs: int, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, *[1.0] * 9, *paces)
    monkeypatch.setattr("bench._quiet.share_of_others", lambda *_: 0.0)
    quiet, values = Quiet(), iter(range(9))
    for _ in range(9):
        quiet.calibrate()
    found = list(quiet.attempts("a run", lambda: next(values), again=again))
    assert [one.value for one in found] == list(range(runs))
    assert [not one.why for one in found] == [False] * (runs - 1) + [counts]


def test_disturbed_rounds_are_not_averaged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    rounds = [Round(value, 1.0, 0.0, 0.0, why) for value, why in ((1.0, ""), (9.0, "others took 50%"), (3.0, ""))]
    figure = of_rounds("a.b", rounds, "x", "<= 2", detail={"more": 1})
    assert figure is not None
    found = json.loads(figure.as_json())
    assert (found["value"], found["ok"]) == (2.0, True)
    assert found["detail"] == {"rounds": [1.0, 3.0], "spread": spread([1.0, 3.0]), "disturbed_rounds": 1, "more": 1}


def test_disturbed_rounds_count_unless_heeded_and_the_figure_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    rounds = [Round(value, 1.0, 0.0, 0.0, "others took 50%") for value in (1.0, float("nan"), 3.0)]
    figure = of_rounds("a.b", rounds, "x", heed=False)
    assert figure is not None
    assert figure.value == 2.0
    assert figure.detail["disturbed_rounds_count"]


def test_a_figure_without_a_round_that_counts_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    assert of_rounds("a.b", [Round(1.0, 1.0, 0.5, 0.0, "others took 50%")], "x") is None
    assert "a.b is left out: no round counts (others took 50%)" in capsys.readouterr().err


def test_spread_gives_median_least_most_and_relative_width() -> None:
    assert spread([2.0, 4.0, 3.0]) == {"median": 3.0, "least": 2.0, "most": 4.0, "relative": pytest.approx(2 / 3)}
