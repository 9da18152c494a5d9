"""What a simulation does without: the part that is named is missing, and jobs still end."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlrover_lite.brain.healing.policies import HealthPolicy
from dlrover_lite.brain.policies import Policies
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.units import GIB
from dlrover_lite.simulation.ablations import ABLATIONS, WHOLE, Ablation
from dlrover_lite.simulation.brain_runs import BrainRun, simulate_with_brain
from dlrover_lite.simulation.traces.cluster import ClusterFile, MachineKind
from dlrover_lite.simulation.traces.trace import Trace
from tests.simulation.test_brain_runs import CLUSTER, job

TRACE = Trace.of([job("first", 0.0, 8e6), job("second", 400.0, 4e6)])


def decided(directory: Path, without: Ablation) -> dict[str, list[str]]:
    """Run two jobs one after the other; return what was decided of each, and why."""
    run = BrainRun(TRACE, CLUSTER, directory, without=without)
    run.run(3600.0)
    assert [one.end for one in run.records()] == ["succeeded"] * 2
    assert not run.world.said
    run.world.close()
    with ConfigStore(directory / "brain.sqlite") as store:
        return {
            name: [f"{one.decision.action}: {one.decision.reason}" for one in queries.decisions(store, name)]
            for name in ("job-00000", "job-00001")
        }


def test_with_everything_the_second_job_begins_by_the_first_one_and_plans_change(tmp_path: Path) -> None:
    found = decided(tmp_path, WHOLE)
    assert "warm start" in found["job-00001"][0]
    assert any(one.startswith(("change", "explore")) for one in found["job-00000"])


@pytest.mark.parametrize(
    ("name", "seen"), [("warm start", "cold start"), ("scaling", "warm start"), ("stage 3", "warm start")]
)
def test_what_is_missing_is_missing(tmp_path: Path, name: str, seen: str) -> None:
    found = decided(tmp_path, ABLATIONS[name])
    assert seen in found["job-00001"][0]
    changes = [one for its in found.values() for one in its if one.startswith(("change", "explore"))]
    assert bool(changes) == (name != "scaling")


def test_a_brain_that_can_not_decide_is_told_and_nothing_of_it_counts() -> None:
    broken = Ablation("", Policies(decide_seconds=60.0, health=HealthPolicy(slow_below=0.0)))  # it divides by that
    with pytest.raises(DlroverLiteError, match="ZeroDivisionError"):
        simulate_with_brain(Trace.of([job("one", 0.0, 6e6)]), CLUSTER, without=broken)


def test_even_shards_make_all_workers_as_slow_as_the_slowest(tmp_path: Path) -> None:
    cluster = ClusterFile(
        machines=[
            MachineKind(count=1, cores=4.0, memory=8 * GIB),
            MachineKind(count=1, cores=4.0, memory=8 * GIB, speed=0.25),
        ],
        startup=CLUSTER.startup,
    )
    ends = {}
    for name in ("", "dynamic shards"):
        directory = tmp_path / (name or "whole")
        directory.mkdir()
        run = BrainRun(Trace.of([job("one", 0.0, 8e6)]), cluster, directory, without=ABLATIONS.get(name, WHOLE))
        run.run(7200.0)
        (record,) = run.records()
        run.world.close()
        assert record.seconds is not None
        ends[name] = record.seconds
    assert ends["dynamic shards"] > 1.1 * ends[""]


def test_without_seamless_migration_each_change_takes_half_a_minute(tmp_path: Path) -> None:
    ends = []
    for name in ("", "seamless migration"):
        directory = tmp_path / (name or "whole")
        directory.mkdir()
        run = BrainRun(Trace.of([job("one", 0.0, 2e7)]), CLUSTER, directory, without=ABLATIONS.get(name, WHOLE))
        run.run(7200.0)
        (record,) = run.records()
        run.world.close()
        assert record.seconds is not None
        ends.append(record.seconds)
    assert ends[1] > ends[0] + 25.0
