"""What profiling costs is told from the moments at which minibatches are read, in slots with it and without."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("profiling")


@pytest.mark.parametrize("cost", [0.0, 0.02, 0.1])
def test_overhead_is_found_though_the_machines_speed_changes(bench: Any, cost: float) -> None:
    times, at, random = [], 1000.0, np.random.default_rng(0)
    while at < 1200.0:
        profiled = int(at / bench.SLOT_SECONDS) % 2 == 0
        usual = 0.02 * (1.0 + 0.3 * np.sin(at / 40))  # seconds for a minibatch
        at += usual * (1 + cost * profiled) * random.uniform(0.9, 1.1)
        times.append(at)
    found = bench.compared(times)
    assert found.ratio == pytest.approx(1 / (1 + cost), abs=max(3 * found.error, 0.004))
    assert found.error < 0.005
    assert found.pairs == pytest.approx(195 / bench.SLOT_SECONDS, abs=3)


def test_too_short_a_job_is_refused(bench: Any) -> None:
    with pytest.raises(SystemExit, match="too short"):
        bench.compared([0.0, 1.0, 5.5])
