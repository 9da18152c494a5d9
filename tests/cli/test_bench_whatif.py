"""What ``bench/whatif.py`` makes of plans that were foreseen, and the jobs that it draws."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from dlrover_lite.brain.planning.plan_grid import Candidate
from tests.repository.sources import ROOT


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("whatif")


def test_coverage_is_the_share_of_runs_within_their_bands(bench: ModuleType) -> None:
    def run(measured: float, doublings: float = 0.0) -> Any:
        return bench.Foreseen(Candidate(2, 1, 1.0, 0.5), 100.0, 80.0, 120.0, measured, doublings)

    jobs = [
        bench.JobResult(0, True, 0.0, 1, 4, [run(100.0), run(80.0), run(79.0, 3.0)], run(50.0)),
        bench.JobResult(1, False, 0.06, 3, 9, [run(125.0)], run(100.0)),
    ]
    coverage, error = bench.figures_of(jobs)
    assert (coverage.figure, coverage.value, coverage.ok) == ("whatif.coverage", 0.5, False)
    assert error.value == pytest.approx((0.2 + 0.25) / 2)  # of 0, 0.2, 0.25 and 0.27
    assert coverage.detail["farther"]["coverage"] == 0.0
    assert coverage.detail["1 plan measured"]["runs"] == 3


@pytest.mark.parametrize("seed", range(6))
def test_the_same_seed_draws_the_same_job_whose_plans_have_a_place(bench: ModuleType, seed: int) -> None:
    job = bench.draw(seed)
    assert job == bench.draw(seed)
    assert len(job.windows) == len(job.plans) >= 1
    for plan in job.plans:
        nodes = bench.placed(plan, job.machines)
        assert len(nodes.hosts) == plan.workers + plan.servers
        assert sum(nodes.shares) == pytest.approx(1.0)
