"""Which plans a bench takes for all that could be the best, which one for the best, and what it tells of what it has measured."""

from __future__ import annotations

import importlib
import math
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlrover_lite.brain.planning.observed_job import candidate_of
from dlrover_lite.brain.planning.plan_grid import Candidate
from tests.brain.service_rig import profile

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


def test_the_oracle_is_the_plan_that_ends_first_in_rounds_that_count_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    bench, quiet = importlib.import_module("autoscale"), importlib.import_module("_quiet")

    def rounds(*seconds: float, disturbed: int = 0) -> list[object]:
        """``disturbed``: number of the last rounds that don't count."""
        whys = ["" if at < len(seconds) - disturbed else "others took 9% of the CPU" for at in range(len(seconds))]
        values = [SimpleNamespace(seconds=one) for one in seconds]
        return [quiet.Round(value, value.seconds, 0.0, 0.0, why) for value, why in zip(values, whys, strict=True)]

    # the machine gets slower: of the second plan only the round counts that was before
    assert bench.first_to_end({"a": rounds(184, 222, 267), "b": rounds(203, 273, 295, disturbed=2)}) == "a"
    assert bench.first_to_end({"a": rounds(184, 222, 267), "b": rounds(190, 200, 250)}) == "b"
    none_counts = {"a": rounds(184, 222, disturbed=1), "b": rounds(180, 200, disturbed=2)}
    assert bench.first_to_end(none_counts) == "b"


def test_figures_are_the_same_of_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    bench, quiet = importlib.import_module("autoscale"), importlib.import_module("_quiet")
    measured = profile(at=20.0)
    plan = candidate_of(measured)

    def run(seconds: float) -> object:
        value = bench.FullRun(seconds, ["1 s: 1 x 1"], plan, "warm start", 0.9, 0.7, [measured], 0.79, [0.04])
        return quiet.Round(value, seconds, 0.01, 0.02)

    full = {"oracle? 1 x 1": [run(100.0)], "cold": [run(104.0)], "warm": [run(102.0)]}
    users = {
        name: [quiet.Round(seconds, seconds, 0.0, 0.0)]
        for name, seconds in zip(bench.USERS, (150.0, 250.0), strict=True)
    }
    found = bench.Found(full, users, {"oracle? 1 x 1": plan})
    bench.save(tmp_path / "found.json", found)
    figures = bench.figures_of(bench.load(tmp_path / "found.json"), heed=True)
    assert figures == bench.figures_of(found, heed=True)
    assert {figure.figure.removeprefix("autoscale."): round(figure.value, 3) for figure in figures} == {
        "cold_ratio": 1.04,
        "warm_ratio": 1.02,
        "warm_over_cold": round(102 / 104, 3),
        "user_ratio": round((1.5 * 2.5) ** 0.5, 3),
        "first_plan_ratio": 1.0,
        "cpu_used": 0.9,
        "memory_used": 0.7,
        "auc_difference": 0.0,
        "median_miss": 0.04,
    }
