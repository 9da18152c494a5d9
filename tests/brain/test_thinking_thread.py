"""The thread that decides: what it knows when it begins, and that nobody waits for one that has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.store import preferences
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry
from dlrover_lite.brain_server.decision_thread import DecisionThread
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.brain_messages import RegisterJob
from dlrover_lite.protocol.demands import Demand
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.records import PlanRecord
from tests.backends.support import until
from tests.brain.simulated import hosts

FEATURES = msgspec.to_builtins(
    JobFeatures(model="dcn", tables=26, dims=416, batch_size=64, rows=1000, optimizer="adam", owner="ada", name="ads")
)
DEMAND = Demand(hosts=hosts(a=Resources(4.0, 8 * GIB)), total_samples=1e6, epoch_samples=1e6, checkpoints=True)
PLAN = Plan(ps=RolePlan(1, Resources(0.25, GIB)), worker=RolePlan(1, Resources(0.25, GIB)))


def entry(job: str, **changes: Any) -> JobEntry:
    known = {
        "id": job,
        "name": job,
        "owner": "ada",
        "model": "dcn",
        "state": "running",
        "created_at": 5.0,
        "directory": f"/jobs/{job}",
        "features": {**FEATURES, "demand": msgspec.to_builtins(DEMAND)},
    }
    return JobEntry(**{**known, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A database in which one job runs and another one has ended; what there is is just enough for one."""
    path = tmp_path / "brain.sqlite"
    with ConfigStore(path) as store:
        preferences.change(store, {"capacity_cores": 0.5, "capacity_gib": 8.0})
        for name, state in (("runs", "running"), ("over", "succeeded"), ("new", "queued")):
            store.put_job(entry(name, state=state))
            store.add_plan(PlanRecord(job=name, at=6.0, kind="granted", plan=PLAN))
        store.commit()
    yield path


@pytest.mark.parametrize(("runs", "action"), [(True, "queue"), (False, "start")])
def test_resources_of_jobs_of_an_earlier_brain_are_not_given_away(path: Path, runs: bool, action: str) -> None:
    looked: list[str] = []

    def look(directory: str) -> bool:
        looked.append(directory)
        return runs

    thinking = DecisionThread(path, say=lambda _: None, runs=look)
    thinking.begin()
    try:
        thinking.told(RegisterJob("new", "new", "ada", "dcn", "/jobs/new", 7.0, 7.0, FEATURES, demand=DEMAND))
        until(lambda: thinking.advice("new"), "advice")
        advice = thinking.advice("new")
        assert advice is not None and advice.decision["action"] == action
        assert looked == ["/jobs/runs"]
    finally:
        thinking.close()
    assert thinking.advice("new") is None  # who still waits for another word begins by itself
