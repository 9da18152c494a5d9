"""What is foreseen of a job's memory follows what the brain tells, and is made again only when that is new."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.explain.explanation_data import MemoryCurve
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.history import History
from dlrover_lite.brain.store.records import JobEntry, ProfileRecord, profile_record
from dlrover_lite.brain.store.watch import JobWatch
from dlrover_lite.core.units import GIB, MIB
from dlrover_lite.protocol.records import NodeRecord
from dlrover_lite.tui.sources.live_memory import LiveMemory
from tests.brain.advised import FEATURES, demand
from tests.brain.asked import WAYS, opened
from tests.brain.simulated import START, Job


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConfigStore]:
    with ConfigStore(tmp_path / "brain.sqlite") as store:
        yield store


class Live:
    """A job's memory, and the watch that tells what is new of it."""

    def __init__(self, history: History) -> None:
        self.watch = JobWatch(history, "ads-1")
        self.memory = LiveMemory(history, "ads-1")

    def look(self) -> MemoryCurve | None:
        self.memory.take(self.watch.look())
        return self.memory.look()


@pytest.fixture(params=WAYS)
def live(request: pytest.FixtureRequest, store: ConfigStore) -> Iterator[Live]:
    with opened(request.param, store.path) as history:
        yield Live(history)


def begins(store: ConfigStore, **features: Any) -> Job:
    known = {**msgspec.to_builtins(FEATURES), "demand": msgspec.to_builtins(demand()), **features}
    store.put_job(JobEntry(id="ads-1", name="ads", state="running", created_at=START, features=known))
    for node in ("ps-0", "ps-1"):
        event = NodeRecord(job="ads-1", at=START, node=node, event="launched", data={"cores": 0.5, "memory": GIB})
        store.add_node_event(event)
    store.commit()
    return Job(Candidate(2, 2, 1.0, 0.5), name="ads-1", shares=[0.3, 0.7])


def trains(store: ConfigStore, job: Job, windows: int) -> None:
    for profile in job.windows(windows):
        store.add_profile(profile_record(profile))
    store.commit()


def test_memory_curve_follows_new_profiles(store: ConfigStore, live: Live) -> None:
    job = begins(store)
    assert live.look() is None
    trains(store, job, 4)
    one = live.look()
    assert one is not None
    assert (one.node, len(one.used), one.limit) == ("ps-1", 4, GIB)  # it has more of the rows
    assert one.used[-1].bytes == job.used("ps-1")
    assert one.to_the_end and one.most is not None and one.most.expected > one.now
    assert live.look() is one
    trains(store, job, 1)
    two = live.look()
    assert two is not None and len(two.used) == 5


def test_memory_limits_are_steps_at_resizes(store: ConfigStore, live: Live) -> None:
    job = begins(store)
    trains(store, job, 3)
    more = NodeRecord(job="ads-1", at=job.at + 1, node="ps-1", event="resized", data={"memory": GIB + 100 * MIB})
    store.add_node_event(more)
    store.commit()
    one = live.look()
    assert one is not None
    assert [step.bytes for step in one.limits] == [GIB, GIB + 100 * MIB]


def test_a_memory_limit_that_will_be_exceeded_is_told_before(store: ConfigStore, live: Live) -> None:
    job = begins(store)
    trains(store, job, 3)
    less = NodeRecord(job="ads-1", at=job.at, node="ps-1", event="resized", data={"memory": job.used("ps-1") + MIB})
    store.add_node_event(less)
    store.commit()
    one = live.look()
    assert one is not None and one.full_at is not None
    assert one.used[-1].at < one.full_at <= one.ahead[-1].at


def test_memory_is_foreseen_for_an_hour_if_the_jobs_length_is_unknown(store: ConfigStore, live: Live) -> None:
    job = begins(store, demand=None)
    trains(store, job, 3)
    one = live.look()
    assert one is not None and not one.to_the_end
    assert one.ahead[-1].at == pytest.approx(one.used[-1].at + 3600.0, abs=1.0)


def test_unreadable_records_are_passed_over(store: ConfigStore, live: Live) -> None:
    job = begins(store, demand={"capacity": "none"})
    odd = ProfileRecord(job="ads-1", at=START + 1, seconds=10.0, samples_per_second=1.0, workers=1, servers=1)
    store.add_profile(odd)
    trains(store, job, 3)
    one = live.look()
    assert one is not None and len(one.used) == 3


@pytest.mark.parametrize("way", WAYS)
def test_no_memory_curve_without_a_database(tmp_path: Path, way: str) -> None:
    with opened(way, tmp_path / "brain.sqlite") as history:
        assert Live(history).look() is None
