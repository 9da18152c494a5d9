"""What a run has lost by its own pace, as ``bench/instability.py`` has it."""

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


def progress(runs: Any, monkeypatch: pytest.MonkeyPatch, *, stands: float, until: int) -> Any:
    """Of a run with 100 samples/s, looked at every second, that stands still for some seconds from the 40th on."""
    found, clock = runs.Progress(), iter(range(until))
    monkeypatch.setattr(runs, "time", SimpleNamespace(time=lambda: float(next(clock))))
    for second in range(until):
        lost = min(max(0.0, second - 40), stands)
        found.add(SimpleNamespace(samples=round(100 * (second - lost))))
    return found


@pytest.mark.parametrize("stands", [0.0, 3.0, 12.0])
def test_what_is_lost_is_how_long_it_stood_still(runs: Any, monkeypatch: pytest.MonkeyPatch, stands: float) -> None:
    assert progress(runs, monkeypatch, stands=stands, until=100).lost(40.0) == pytest.approx(stands)


def test_a_run_that_ends_too_soon_does_not_tell(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress(runs, monkeypatch, stands=3.0, until=80).lost(40.0) is None
    assert progress(runs, monkeypatch, stands=3.0, until=100).lost(10.0) is None
