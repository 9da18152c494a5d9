"""How a bench judges models: by plans that they weren't fitted to, from rows that it has kept in a file."""

from __future__ import annotations

import importlib
from pathlib import Path
from statistics import median
from types import ModuleType

import msgspec
import pytest

from dlrover_lite.brain.models.throughput_forms import ADDITIVE, BOTTLENECK
from dlrover_lite.brain.planning.plan_grid import Candidate
from tests.brain.simulated import Job
from tests.brain.test_shared_cores import measured

BENCH = Path(__file__).resolve().parents[2] / "bench"
PLANS = [Candidate(w, p, cores, 0.3) for w in (1, 2, 4) for p in (1, 2) for cores in (0.25, 0.5, 1.0)]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("_model_fit_rows")


def test_models_are_judged_by_plans_they_have_not_seen(bench: ModuleType, tmp_path: Path) -> None:
    rows = [bench.Row("m", 0, plan, True, Job(plan).window(), 0.0, 0.0) for plan in PLANS]
    over = Candidate(4, 2, 1.0, 0.5)
    rows.append(bench.Row("m", 0, over, False, Job(over, host_cores=2.0).window(), 0.0, 0.0))
    bench.save(tmp_path / "rows", rows)
    kept = bench.load(tmp_path / "rows")
    assert kept == rows
    found = bench.errors_of(kept, BOTTLENECK, splits=3)
    assert len(found.within) == 3 * (len(PLANS) - len(PLANS) // bench.PART)
    assert len(found.oversubscribed) == 3
    assert median(found.within) < 0.05 < median(bench.errors_of(kept, ADDITIVE, splits=3).within)
    assert 0 <= found.covered <= 1


def test_nodes_that_share_their_cores_are_judged_so(bench: ModuleType) -> None:
    """Another plan's cores count, not those of the plans that were fitted to."""
    rows = [bench.Row("m", 0, plan, True, measured(plan, seed=at), 0.0, 0.0) for at, plan in enumerate(PLANS)]
    assert median(bench.errors_of(rows, BOTTLENECK, splits=3).within) < 0.05


def test_predicted_plans_are_kept_from_the_fitted_model(bench: ModuleType) -> None:
    """Neither its throughput nor its CPU seconds."""
    rows = [bench.Row("m", 0, plan, True, Job(plan).window(), 0.0, 0.0) for plan in PLANS]
    (split,) = bench.predictions(rows, BOTTLENECK, splits=1)
    unseen = {one.row.plan for one in split}
    changed = [
        msgspec.structs.replace(row, profile=msgspec.structs.replace(row.profile, samples=7))
        if row.plan in unseen
        else row
        for row in rows
    ]
    (again,) = bench.predictions(changed, BOTTLENECK, splits=1)
    assert [one.predicted for one in again] == [one.predicted for one in split]
