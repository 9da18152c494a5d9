"""What is known of a job that is asked about, out of the history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.explain.what_if import Asked, foresee, known_job
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry, profile_record
from dlrover_lite.core.units import GIB, MIB
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.profiles import HostUse
from dlrover_lite.protocol.records import PlanRecord
from tests.brain.advised import FEATURES, demand, plan_of
from tests.brain.simulated import START, Job

FIRST, LAST = Candidate(1, 1, 1.0, 0.5), Candidate(3, 2, 1.0, 0.5)
MANY = 300
"""Intervals with the last plan: more than the newest that are looked at."""
KEPT = {**msgspec.to_builtins(FEATURES), "demand": msgspec.to_builtins(demand())}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfigStore]:
    """A job that had a plan for four intervals, and another one for hundreds."""
    job = Job(FIRST, name="ads-1", host_cores=8.0)
    with ConfigStore(tmp_path_factory.mktemp("history") / "brain.sqlite") as store:
        store.put_job(entry())
        for plan, copies in ((FIRST, 1), (LAST, MANY // 4)):
            job.plan = plan
            store.add_plan(PlanRecord(job="ads-1", at=job.at, kind="granted", plan=plan_of(job)))
            others = (HostUse("a", 8.0, 3.0),)
            windows = [msgspec.structs.replace(one, hosts=others) for one in job.windows(4)]
            for number in range(copies):
                job.at = windows[-1].at + 20.0 * number
                for one in windows:
                    store.add_profile(profile_record(msgspec.structs.replace(one, at=one.at + 20.0 * number)))
        store.commit()
        yield store


def entry(**fields: Any) -> JobEntry:
    return JobEntry(
        **{"id": "ads-1", "name": "ads", "state": "running", "created_at": START, "features": KEPT, **fields}
    )


def test_plans_of_long_ago_count_as_well(store: ConfigStore) -> None:
    known = known_job(store, entry(), at=START + 1e4)
    assert [one.plan for one in known.view.measured_before] == [FIRST]
    assert (known.present, known.measured.plans) == (Asked(LAST, GIB, GIB), 2)
    assert len(known.held_out) == 2
    assert known.free_cores == {"a": 5.0}  # as others left it
    found = foresee(known, [Asked(FIRST), Asked(Candidate(2, 1, 1.0, 0.5))])
    assert [one.measured for one in found.plans] == [True, False]
    assert found.plans[0].saves_seconds is not None and found.plans[0].saves_seconds.upper < 0


def test_what_is_left_counts_while_a_job_runs_and_all_of_it_after_its_end(store: ConfigStore) -> None:
    total, so_far = 4e7, 10_000_000
    running = known_job(store, entry(samples=so_far), at=START)
    assert (running.samples, running.whole, running.runs) == (total - so_far, False, True)
    ended = known_job(store, entry(state="stopped", samples=so_far), at=START)
    assert (ended.samples, ended.whole, ended.runs) == (total, True, False)
    assert known_job(store, entry(samples=so_far), at=START, whole=True).samples == total
    assert known_job(store, entry(samples=so_far), at=START, samples=500.0).samples == 500.0
    unknown = {**KEPT, "demand": {**KEPT["demand"], "total_samples": None}}
    assert known_job(store, entry(features=unknown), at=START).samples is None


def test_memory_is_that_at_the_end_of_what_is_asked_for(store: ConfigStore) -> None:
    """Tables grow with samples; workers don't."""
    soon, late = (
        foresee(known_job(store, entry(), at=START, samples=samples, worker_peak=500 * MIB), [Asked(LAST)]).plans[0]
        for samples in (1e5, 3e7)
    )
    assert soon.ps_memory is not None and late.ps_memory is not None
    assert soon.ps_memory.expected < late.ps_memory.expected < late.ps_memory.limit
    assert soon.worker_memory == late.worker_memory
    near, far = (
        foresee(known_job(store, entry(samples=8_000_000), at=START, samples=samples), [Asked(LAST)]).plans[0]
        for samples in (1e5, 8e6)
    )
    assert near.ps_memory is not None and far.ps_memory is not None
    assert near.ps_memory.expected < far.ps_memory.expected  # beside those that it has trained on
    told = known_job(store, entry(outcome=JobOutcome(peak_memory={"worker": 700 * MIB})), at=START)
    assert told.worker_peak == 700 * MIB
