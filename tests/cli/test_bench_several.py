"""The jobs of ``bench/several.py``, how the policies divide the cores among them, and what is made of their ends."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.demands import autoscale_of
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import ResourceLimits

BENCH = Path(__file__).resolve().parents[2] / "bench"
ROUNDING = 0.002
"""Cores of each node are rounded to thousandths."""


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("_several_schedule")


@pytest.fixture
def runs(schedule: ModuleType) -> ModuleType:
    return importlib.import_module("_several_runs")


@pytest.fixture
def bench(schedule: ModuleType) -> ModuleType:
    return importlib.import_module("several")


# --- the schedule ---------------------------------------------------------------------------------------------------------


def test_the_schedule_has_the_jobs_that_the_bench_is_about(schedule: ModuleType) -> None:
    jobs = schedule.SCHEDULE
    assert 3 <= len(jobs) <= 6
    assert len({job.name for job in jobs}) == len(jobs)
    assert [job.arrives for job in jobs] == sorted(job.arrives for job in jobs)
    assert jobs[0].arrives == 0.0
    assert sum(job.fixed for job in jobs) == 1
    assert sum(not job.counts for job in jobs) == 1
    assert sum(job.priority >= 2 for job in jobs) == 1
    assert all(job.asked.cores > schedule.CORES for job in jobs if not job.fixed)
    assert all(job.asked.cores < schedule.CORES for job in jobs if job.fixed)


def test_policies_differ_in_nothing_but_resources(schedule: ModuleType, tmp_path: Path) -> None:
    (tmp_path / schedule.MODEL_FILE).write_text((BENCH / "_several_model.py").read_text())
    machine = Resources(schedule.CORES, 8 << 30)
    for job in schedule.SCHEDULE:
        recipes = {
            policy: parse_recipe(job.recipe(tmp_path, policy, job.form.plan(1.0)), machine=machine)
            for policy in schedule.POLICIES
        }
        wanted = dict.fromkeys(schedule.BASELINES, "off") | {"brain": "off" if job.fixed else "on"}
        assert {policy: autoscale_of(recipe) for policy, recipe in recipes.items()} == wanted
        plain = [replace(one, resources=ResourceLimits(), autoscale="auto") for one in recipes.values()]
        assert all(one == plain[0] for one in plain), job.name


@pytest.mark.parametrize("factor", [0.1, 0.4, 1.0, 2.5])
def test_a_scaled_schedule_has_whole_minibatches(schedule: ModuleType, factor: float) -> None:
    for before, after in zip(schedule.SCHEDULE, schedule.scaled(schedule.SCHEDULE, factor), strict=True):
        assert after.samples % after.batch_size == 0
        assert after.samples == pytest.approx(before.samples * factor, rel=0.01)
        assert after.arrives == pytest.approx(before.arrives * factor)
        assert (after.name, after.asked, after.model) == (before.name, before.asked, before.model)


# --- who has what ---------------------------------------------------------------------------------------------------------

presence = st.lists(st.booleans(), min_size=6, max_size=6)
fixture_is_safe = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def those(schedule: ModuleType, which: list[bool]) -> list[Any]:
    return [job for job, there in zip(schedule.SCHEDULE, which, strict=True) if there]


@fixture_is_safe
@given(workers=st.integers(1, 6), servers=st.integers(1, 3), share=st.floats(0.1, 0.6), cores=st.floats(1.0, 8.0))
def test_a_form_gives_all_cores_away(
    schedule: ModuleType, workers: int, servers: int, share: float, cores: float
) -> None:
    plan = schedule.Form(workers, servers, share).plan(cores)
    assert (plan.workers, plan.servers) == (workers, servers)
    assert plan.cores == pytest.approx(cores, abs=ROUNDING * (workers + servers))


@fixture_is_safe
@given(which=presence)
def test_equal_shares_leave_a_fixed_job_its_plan_and_no_core_unused(schedule: ModuleType, which: list[bool]) -> None:
    present = those(schedule, which)
    found = schedule.shares("equal", present)
    assert found.keys() == {job.name for job in present}
    rest = [found[job.name].cores for job in present if not job.fixed]
    assert all(found[job.name] == job.asked for job in present if job.fixed)
    if rest:
        assert max(rest) - min(rest) <= 4 * ROUNDING
        assert sum(plan.cores for plan in found.values()) == pytest.approx(schedule.CORES, abs=20 * ROUNDING)


@fixture_is_safe
@given(which=presence)
def test_first_come_first_served_gives_no_core_twice_and_lets_nobody_pass(
    schedule: ModuleType, which: list[bool]
) -> None:
    present = those(schedule, which)
    found = schedule.shares("fcfs", present)
    assert list(found) == [job.name for job in present[: len(found)]]
    cores = sum(plan.cores for plan in found.values())
    assert cores <= schedule.CORES + 10 * ROUNDING
    if any(not job.fixed for job in present):
        waiting = present[len(found) :]
        assert cores >= schedule.CORES - 10 * ROUNDING or waiting[0].fixed
    assert all(found[job.name] == job.asked for job in present if job.fixed and job.name in found)


def test_whoever_comes_first_has_the_whole_machine(schedule: ModuleType) -> None:
    first, second, *_ = schedule.SCHEDULE
    assert schedule.shares("fcfs", [first, second]) == {first.name: first.form.plan(schedule.CORES)}


def test_what_a_fixed_job_leaves_goes_to_the_next_in_line(schedule: ModuleType) -> None:
    (fixed,) = (job for job in schedule.SCHEDULE if job.fixed)
    after = schedule.SCHEDULE[-1]
    found = schedule.shares("fcfs", [fixed, after])
    assert found[after.name] == after.form.plan(schedule.CORES - fixed.asked.cores)


def test_users_have_what_they_ask_for_however_many_there_are(schedule: ModuleType) -> None:
    assert schedule.shares("static", schedule.SCHEDULE) == {job.name: job.asked for job in schedule.SCHEDULE}
    with pytest.raises(ValueError, match="brain"):
        schedule.shares("brain", schedule.SCHEDULE)


# --- a run ----------------------------------------------------------------------------------------------------------------


class Handle:
    """A job with a PS and two workers that takes what it is told at the next look."""

    def __init__(self, *, refuses: int = 0) -> None:
        self.nodes = dict.fromkeys(("ps-0", "worker-0", "worker-1"), 1.0)
        self.wanted: dict[str, float] = {}
        self.told: list[str] = []
        self.refuses = refuses

    def status(self) -> Any:
        nodes = [
            SimpleNamespace(
                id=name, role=name.partition("-")[0], state="up", cores=cores, wanted_cores=self.wanted.get(name)
            )
            for name, cores in self.nodes.items()
        ]
        self.nodes |= self.wanted
        self.wanted = {}
        return SimpleNamespace(nodes=nodes)

    def resize(self, node: str, *, cores: float) -> None:
        if self.refuses:
            self.refuses -= 1
            raise JobError("it is just starting")
        self.told.append(node)
        self.wanted[node] = cores


def test_nodes_are_told_until_they_have_their_cores(runs: ModuleType, schedule: ModuleType, tmp_path: Path) -> None:
    handle = Handle(refuses=1)
    job = runs._Job(schedule.SCHEDULE[0], plan=Candidate(2, 1, 0.4, 0.2), handle=handle)
    these = runs._Run("equal", schedule.SCHEDULE, tmp_path)
    looks = 0
    while job.has != job.plan:
        these._resize(job)
        looks += 1
        assert looks < 10
    assert handle.nodes == {"ps-0": 0.2, "worker-0": 0.4, "worker-1": 0.4}
    assert sorted(handle.told) == ["ps-0", "worker-0", "worker-1"]
    assert len(job.told) == 1
    these._resize(job)
    assert len(handle.told) == 3, "who has what it is to have is left alone"


def a_result(state: str = "succeeded", *, message: str = "", **status: Any) -> Any:
    return SimpleNamespace(
        state=state, ok=state == "succeeded", message=message, hint="", traceback="", status=status, ended_at=0.0
    )


def test_a_job_that_ends_otherwise_than_it_is_to_ends_the_bench(runs: ModuleType, schedule: ModuleType) -> None:
    good, (bad,) = schedule.SCHEDULE[0], [job for job in schedule.SCHEDULE if not job.counts]
    runs._check("fcfs", good, a_result(samples=good.samples, quarantined=0))
    runs._check("fcfs", bad, a_result("failed", message=f"RuntimeError: {schedule.WITH_ERROR}"))
    for job, result, words in (
        (good, a_result("failed", message="no memory"), "has failed: no memory"),
        (good, a_result(samples=good.samples - 1), "instead of"),
        (good, a_result(samples=good.samples, quarantined=1), "instead of"),
        (bad, a_result(samples=bad.samples), "was to fail"),
        (bad, a_result("failed", message="no memory"), "was to fail"),
    ):
        with pytest.raises(SystemExit, match=words):
            runs._check("fcfs", job, result)


# --- figures --------------------------------------------------------------------------------------------------------------

SECONDS: Mapping[str, tuple[float, ...]] = {
    "brain": (40.0, 60.0, 500.0),
    "static": (90.0, 70.0, 10.0),
    "equal": (100.0, 100.0, 10.0),
    "fcfs": (50.0, 150.0, 10.0),
}
"""Completion times; the last is that of a job that fails."""


def a_round(bench: ModuleType, *, why: str = "") -> Any:
    runs = importlib.import_module("_several_runs")
    found = {}
    for policy, seconds in SECONDS.items():
        completions = tuple(
            runs.Completion(name=f"job-{at}", job="", seconds=each, waited=0.0, counts=at < len(seconds) - 1)
            for at, each in enumerate(seconds)
        )
        outcome = runs.Outcome(policy, completions, makespan=sum(seconds))
        found[policy] = bench.Round(outcome, 1.0, 0.0, 0.0, why if policy == "equal" else "")
    return found


def test_the_brain_is_compared_with_the_best_of_the_others_in_each_respect(bench: ModuleType) -> None:
    found = {figure.figure: figure for figure in bench.figures_of([a_round(bench)], heed=True)}
    assert found["several.mean_jct_ratio"].value == pytest.approx(50 / 80)
    assert found["several.worst_jct_ratio"].value == pytest.approx(60 / 90)
    assert found["several.makespan_ratio"].value == pytest.approx(600 / 170)
    assert found["several.mean_jct_ratio"].detail["fcfs"]["mean_jct_s"] == [100.0]


def test_a_round_counts_only_if_all_of_its_runs_were_quiet(
    bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    disturbed = a_round(bench, why="others took 9% of the CPU")
    assert not bench.figures_of([disturbed], heed=True)
    assert "no round counts (equal: others took 9% of the CPU)" in capsys.readouterr().err
    figures = bench.figures_of([disturbed, a_round(bench)], heed=True)
    assert [figure.detail["disturbed_rounds"] for figure in figures] == [1, 1, 1]
