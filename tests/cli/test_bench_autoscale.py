"""Which plans a bench takes for all that could be the best."""

from __future__ import annotations

import importlib
import math
from itertools import product
from pathlib import Path

import pytest

from dlrover_lite.brain.planning.plan_grid import Candidate

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.mark.parametrize("cores", [1.0, 2.0])
def test_tried_plans_cover_every_plan_within_the_ceiling(cores: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    bench = importlib.import_module("_autoscale_runs")
    found = bench.plans_within(cores)
    assert found
    assert len(set(found)) == len(found)
    assert all(plan.milli <= cores * 1000 for plan in found)
    sizes = [eighths / 8 for eighths in range(2, 16)]
    for w, p, of_worker, of_ps in product((1, 2, 3, 4), (1, 2), sizes, sizes[:7]):
        plan = Candidate(w, p, of_worker, of_ps)
        if w <= cores / 0.5 and p <= math.ceil(0.75 * cores) and of_worker < cores and plan.milli <= cores * 1000:
            assert any(
                (w, p) == (one.workers, one.servers) and one.worker_cores >= of_worker and one.ps_cores >= of_ps
                for one in found
            ), plan
