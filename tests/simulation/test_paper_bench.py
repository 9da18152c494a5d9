"""What ``bench/paper.py`` makes of runs: figures by hand-made runs, and the page that tells them."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dlrover_lite.backends.sim.fluid.job import Usage
from dlrover_lite.core.units import GIB
from dlrover_lite.simulation.ablations import ABLATIONS
from dlrover_lite.simulation.outcomes.records import JobRecord, Run

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module
    for name in ("common", "paper", "_paper_runs", "_paper_page"):
        sys.modules.pop(name, None)


def made(policy: str, seed: int, seconds: Sequence[float | None], cores: float = 4.0) -> Run:
    usage = (Usage(0.0, 10.0, 2.0, cores, GIB / 2, float(GIB)),)
    jobs = tuple(
        JobRecord(
            name=f"job-{at}",
            asked_cores=4.0,
            arrived_at=0.0,
            ended_at=its,
            end="out of memory" if its is None else "succeeded",
            usage=usage,
        )
        for at, its in enumerate(seconds)
    )
    return Run(policy=policy, seed=seed, until=100.0, jobs=jobs)


def all_runs(runs_of: Any) -> dict[str, list[Run]]:
    """Return runs by all their names: under the brain jobs take half as long, and none of them fails."""
    fast, slow = [50.0, 100.0, 40.0], [100.0, 200.0, None]
    labels = {*runs_of.FLUIDS, *runs_of.BY_PAPER, *(f"manual, {factor:g}x" for factor in runs_of.SWEEP)}
    found = {label: [made(label, seed, slow) for seed in (1, 2)] for label in labels}
    ours = {runs_of.OURS, runs_of.WITHIN, *(f"without {name}" for name in ABLATIONS)}
    ours.add(runs_of.ASKED_WELL)
    return found | {label: [made(label, seed, fast, 2.5) for seed in (1, 2)] for label in ours}


def test_figures_are_gains_over_users_plans_and_ratios_to_other_policies(bench: Any) -> None:
    found = {one.figure: one for one in bench("paper").figures_of(all_runs(bench("_paper_runs")))}
    assert found["paper.jct_gain"].value == pytest.approx(50.0)
    assert found["paper.completion_gain_pp"].value == pytest.approx(100 / 3)
    assert found["paper.cpu_gain_pp"].value == pytest.approx(30.0)
    assert found["paper.memory_gain_pp"].value == pytest.approx(0.0)
    assert found["paper.jct_vs_tuned"].value == pytest.approx(0.5)
    assert found["paper.worst_well_asked"].value == pytest.approx(0.5)


def test_a_job_that_fails_where_it_did_not_under_its_users_plan_is_infinitely_worse_off(bench: Any) -> None:
    worst = bench("paper").worst_of([made("dlrover", 1, [50.0, None])], [made("manual", 1, [100.0, 200.0])])
    assert (worst.value, worst.jobs, worst.slower) == (math.inf, 2, 1)


def test_each_case_is_called_otherwise_and_quotas_keep_jobs_within_what_was_asked(bench: Any) -> None:
    its = bench("_paper_runs")
    cases = its.cases_of(its.Size(compared=1, ablated=1, swept=1), [1])
    labels = [case.label(policy) for case in cases for policy in case.policies]
    assert len(labels) == len(set(labels))
    assert set(labels) == set(all_runs(its))
    (within,) = [case for case in cases if case.within]
    assert all(job.most_cores == job.asked_cores for job in within.trace.jobs)
    (twice,) = [case for case in cases if case.over_asking == 2.0]
    once, _ = [case for case in cases if case.over_asking == 1.0]
    for much, well in zip(twice.trace.jobs, once.trace.jobs, strict=True):
        assert much.worker_cores == pytest.approx(min(16.0, 2 * well.worker_cores), abs=0.01)


def test_the_page_has_all_figures_policies_ablations_and_factors(bench: Any) -> None:
    runs = all_runs(bench("_paper_runs"))
    text = bench("_paper_page").page(runs, bench("paper").figures_of(runs))
    for words in ("paper.jct_gain", "tuned", *ABLATIONS, "0.5x", "0.50x (0.50 to 0.50)", "+30.0 pp"):
        assert words in text
