"""What jobs that have ended leave to those to come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.job_history import past_jobs, remember
from dlrover_lite.brain.job_tracker import RegisteredJob
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import FitRecord, JobEntry
from dlrover_lite.core.units import MIB
from dlrover_lite.protocol.outcomes import JobOutcome
from tests.brain.advised import FEATURES, demand
from tests.brain.simulated import START, Job

OUTCOME = JobOutcome(seconds=60.0, peak_memory={"worker": 400 * MIB})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConfigStore]:
    with ConfigStore(tmp_path / "brain.sqlite") as store:
        yield store


def entry(job: str, **fields: Any) -> JobEntry:
    known = {"id": job, "name": "ads", "state": "succeeded", "created_at": START}
    return JobEntry(**{**known, "features": msgspec.to_builtins(FEATURES), **fields})


def ended(store: ConfigStore, name: str, *, windows: int = 3, at: float = START, outcome: JobOutcome = OUTCOME) -> Job:
    """A job that was trained, and is over."""
    job = Job(Candidate(2, 1, 1.0, 0.5), name=name)
    known = RegisteredJob(job=name, features=FEATURES, demand=demand(), began=at)
    for profile in job.windows(windows):
        known.add(profile)
    store.put_job(entry(name, created_at=at, ended_at=at))
    remember(store, known, outcome, at)
    store.commit()
    return job


def test_fit_and_memory_of_a_past_job_are_read_again(store: ConfigStore) -> None:
    job = ended(store, "ads-1")
    (past,) = past_jobs(store, at=START + 60)
    assert (past.job, past.features, past.age_seconds) == ("ads-1", FEATURES, 60.0)
    assert past.fit.form == "bottleneck" and past.fit.observations == 3
    memory = past.memory
    assert memory is not None
    assert len(memory.samples) == len(memory.rows) == 3
    assert memory.samples[-1] == int(job.samples) and memory.rows[-1] == int(job.rows())
    assert (memory.worker, memory.base) == (400 * MIB, job.base)
    assert memory.bytes_per_row > job.row_bytes  # the index counts, too


def test_past_jobs_come_oldest_first_without_the_job_itself(store: ConfigStore) -> None:
    for number in (2, 1, 3):
        ended(store, f"ads-{number}", windows=1, at=START + number)
    assert [past.job for past in past_jobs(store, at=START)] == ["ads-1", "ads-2", "ads-3"]
    assert [past.job for past in past_jobs(store, at=START, without="ads-2")] == ["ads-1", "ads-3"]
    assert [past.age_seconds for past in past_jobs(store, at=START + 2)] == [1.0, 0.0, 0.0]  # clocks go back, too


def test_a_job_that_was_not_measured_is_no_past_job(store: ConfigStore) -> None:
    ended(store, "ads-1", windows=0)
    assert past_jobs(store, at=START) == []
    assert queries.fitted_jobs(store, "bottleneck") == []


def test_a_past_job_without_known_memory_keeps_its_speed(store: ConfigStore) -> None:
    ended(store, "ads-1", outcome=JobOutcome())
    (past,) = past_jobs(store, at=START)
    assert past.memory is None and past.fit.observations == 3


def test_rows_lost_by_going_back_to_a_checkpoint_are_no_growth(store: ConfigStore) -> None:
    """A job that went back to a checkpoint."""
    job = Job(Candidate(2, 1, 1.0, 0.5), name="ads-1")
    known = RegisteredJob(job="ads-1", features=FEATURES, demand=demand(), began=START)
    first, second = job.windows(2)
    job.samples = first.samples_so_far
    for profile in (first, second, *job.windows(2)):
        known.add(profile)
    store.put_job(
        JobEntry(
            id="ads-1",
            name="ads",
            state="failed",
            created_at=START,
            ended_at=START,
            features=msgspec.to_builtins(FEATURES),
        )
    )
    remember(store, known, OUTCOME, START)
    store.commit()
    (past,) = past_jobs(store, at=START)
    assert past.memory is not None
    assert list(past.memory.rows) == sorted(past.memory.rows)
    assert list(past.memory.samples) == sorted(set(past.memory.samples))


def test_past_fits_stored_by_another_version_are_left_out(store: ConfigStore) -> None:
    ended(store, "ads-1")
    ended(store, "ads-2")
    store.add_fit(FitRecord(job="ads-1", at=START + 1, kind="bottleneck", error=0.0, windows=3, data={"form": "new"}))
    store.commit()
    assert [past.job for past in past_jobs(store, at=START)] == ["ads-2"]


def test_a_running_job_is_not_a_past_job(store: ConfigStore) -> None:
    ended(store, "ads-1")
    store.put_job(entry("ads-1", state="running"))
    store.commit()
    assert past_jobs(store, at=START) == []
