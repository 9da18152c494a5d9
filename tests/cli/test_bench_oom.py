"""Courses of ids in the bench of memory: how many rows there are at each look."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def oom(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("oom", BENCH / "oom.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "oom", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("window", [1, 7, 40, 1000])
def test_courses_of_rows_with_and_without_eviction(oom: ModuleType, window: int) -> None:
    ids = np.random.default_rng(window).integers(0, 60, 200)
    looks = np.arange(10, 201, 10)
    kept, of_late = oom.rows_at(ids, looks), oom.rows_of_late(ids, looks, window)
    assert kept.tolist() == [len(set(ids[:look])) for look in looks]
    assert of_late.tolist() == [len(set(ids[max(0, look - window) : look])) for look in looks]


def test_courses_of_rows_over_several_epochs(oom: ModuleType) -> None:
    """Rows that stay are those of the first epoch; of those that are evicted there are as many in each."""
    told = {"samples": 6000, "epochs": 3, "shuffled": False, "seed": 0}
    stay = oom.course("every id its own", evicts=False, **told).rows[0]
    assert stay[19] == stay[-1] == 6000
    evicted = oom.course("every id its own", evicts=True, **told).rows[0]
    assert evicted.max() == evicted[-1] == int(oom.EVICT_AFTER * 6000)
