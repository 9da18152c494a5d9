"""What a job would get if it were started now: nothing is stored, and others that run count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry, profile_record
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.client import dry_run as foresight
from dlrover_lite.client.dry_run import FirstPlan, first_plan, foresee
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.core.units import GIB, Resources, format_bytes
from dlrover_lite.protocol.demands import demand_of
from dlrover_lite.protocol.features import features_of
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.plans import Plan, RolePlan, initial_plan
from dlrover_lite.protocol.questions import AutoscaleStatus
from dlrover_lite.protocol.records import PlanRecord
from dlrover_lite.recipe.schema import Model, Recipe, ResourceLimits, RoleResources, SyntheticData
from tests.brain import simulated

MACHINE = Resources(4.0, 8 * GIB)
HERE = [Host("here", MACHINE)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(foresight, "these_hosts", lambda: HERE)


def recipe(**sections: Any) -> Recipe:
    known = {"version": 1, "name": "ads", "model": Model(use="dcn"), "data": SyntheticData(samples=1000)}
    return Recipe(**{**known, **sections})


def runs(job: str, *, workers: int = 1, cores: float = 1.0, directory: str = "", samples: int = 100_000_000) -> None:
    """A job that the brain knows, with these workers and a PS."""
    one = recipe()
    features = {
        **msgspec.to_builtins(features_of(one, rows=samples)),
        "demand": msgspec.to_builtins(demand_of(one, HERE, samples=samples)),
    }
    files = BrainFiles()
    files.make()
    with ConfigStore(files.database) as store:
        store.put_job(
            JobEntry(id=job, name="ads", state="running", created_at=1.0, features=features, directory=directory)
        )
        plan = Plan(ps=RolePlan(1, Resources(cores, GIB)), worker=RolePlan(workers, Resources(cores, GIB)))
        store.add_plan(PlanRecord(job=job, at=2.0, kind="granted", plan=plan))
        store.commit()


def test_foreseen_plan_fits_the_machine_and_is_not_stored() -> None:
    found = foresee(recipe(), 1000)
    assert found.decision.action == "start" and found.decision.choice is not None
    assert found.decision.choice.cores <= MACHINE.cores and found.inputs.capacity == MACHINE
    with ConfigStore(BrainFiles().database) as store:
        assert queries.jobs(store) == [] and queries.decisions(store, "ads") == []


def test_first_plan_is_the_one_the_brain_would_choose() -> None:
    found = first_plan(recipe(), 1000)
    assert found.by_brain and found.plan == foresee(recipe(), 1000).plan


def test_first_plan_by_rule_when_the_brain_has_nothing_to_decide() -> None:
    role = RoleResources(count=1, cores=0.5, memory=GIB)
    fixed = ResourceLimits(ps=role, worker=role)
    assert first_plan(recipe(resources=fixed), 1000) == FirstPlan(initial_plan(fixed, HERE), False)
    rule = initial_plan(ResourceLimits(), HERE)
    assert first_plan(recipe(autoscale="off"), 1000) == FirstPlan(rule, False)
    assert first_plan(recipe(), None) == FirstPlan(rule, False, "the number of samples isn't known yet")
    half = first_plan(recipe(resources=ResourceLimits(worker=role)), 1000)
    assert half.by_brain and half.plan.worker == RolePlan(1, Resources(0.5, GIB))


def test_index_of_a_foreseen_plan_changes_with_its_inputs() -> None:
    index = foresee(recipe(), 1000).decision.index
    assert index and foresee(recipe(), 1000).decision.index == index
    assert foresee(recipe(), 2000).decision.index != index
    runs("ads-1")
    assert foresee(recipe(), 1000).decision.index != index


def test_resources_of_running_jobs_are_not_given_away() -> None:
    role = RoleResources(count=1, cores=1.0, memory=GIB)
    fixed = recipe(
        resources=ResourceLimits(ps=role, worker=RoleResources(count=3, cores=1.0, memory=GIB)), autoscale="on"
    )
    assert foresee(fixed, 1000).decision.action == "start"
    runs("other-1")
    waits = foresee(fixed, 1000).decision
    assert (waits.action, waits.plan) == ("queue", None)


@pytest.mark.parametrize(
    ("paused", "samples", "action", "why"),
    [
        ("", 100_000_000, "start", "it starts with"),
        (
            "by hand",
            100_000_000,
            "queue",
            "doesn't fit beside what the others need at the least (other-1: 4 cores of 4",
        ),
        ("", 1000, "queue", "doesn't fit beside what the others need at the least (other-1: 4 cores of 4"),
    ],
    ids=["may shrink", "paused", "ends at once"],
)
def test_a_running_job_may_shrink_for_a_foreseen_one(
    paused: str, samples: int, action: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That has all cores there are: what the other one is to begin with is what it would give up."""
    monkeypatch.setattr(foresight, "look_at", lambda _: None)
    monkeypatch.setattr(foresight.JobHandle, "autoscale", lambda _: AutoscaleStatus("on", paused=paused))
    runs("other-1", workers=3, samples=samples)
    with ConfigStore(BrainFiles().database) as store:
        store.add_profile(profile_record(simulated.Job(Candidate(3, 1, 1.0, 1.0), name="other-1").window()))
        store.commit()
    found = foresee(recipe(), 1000).decision
    assert found.action == action and why in found.reason


def test_a_job_that_ended_silently_counts_no_more(tmp_path: Path) -> None:
    index = foresee(recipe(), 1000).decision.index
    runs("gone-1", directory=str(tmp_path / "removed"))
    assert foresee(recipe(), 1000).decision.index == index


def test_a_recipe_may_be_called_as_a_job_is() -> None:
    runs("ads-1", cores=0.25)
    found = foresee(recipe(name="ads-1"), 1000)
    assert found.decision.action == "start"
    assert len(found.inputs.jobs) == 2


def test_a_recipe_that_is_too_large_is_refused_in_words() -> None:
    large = RoleResources(count=9, cores=1.0, memory=GIB)
    found = foresee(recipe(resources=ResourceLimits(worker=large), autoscale="on"), 1000)
    assert found.decision.action == "refuse" and "9.125 cores" in found.decision.reason


@pytest.mark.parametrize("asked", ["ps", "worker"])
def test_all_weighed_plans_have_the_memory_fixed_by_the_recipe(asked: str) -> None:
    each = RoleResources(count=2, cores=0.5, memory=int(1.75 * GIB))
    found = foresee(recipe(resources=ResourceLimits(**{asked: each})), 1000)
    table, plan = found.decision.candidates, found.plan
    assert table is not None and plan is not None
    assert getattr(plan, asked).each.memory == each.memory
    memory = sum(role.count * role.each.memory for role in (plan.ps, plan.worker))
    assert table.memory[table.chosen] == memory
    assert min(table.memory) > 2 * each.memory
    chosen = next(line for line in found.text(0.0).splitlines() if line.startswith("*"))
    assert format_bytes(memory) in chosen


def test_a_damaged_history_is_reported() -> None:
    files = BrainFiles()
    files.make()
    files.database.write_bytes(b"no database at all" * 100)
    with pytest.raises(HistoryError, match="damaged or no database"):
        foresee(recipe(), 1000)
