"""The thread that decides: it answers later, and neither nonsense nor trouble with the database ends it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import FitRecord, JobEntry
from dlrover_lite.brain_server.decision_thread import DecisionThread
from dlrover_lite.protocol.brain_messages import EndJob, RegisterJob, Report
from dlrover_lite.protocol.outcomes import JobOutcome
from tests.backends.support import until
from tests.brain.advised import FEATURES, demand
from tests.brain.service_rig import registration

Make = Callable[..., DecisionThread]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "brain.sqlite"
    with ConfigStore(found):
        return found


@pytest.fixture
def thinking(path: Path, said: list[str]) -> Iterator[DecisionThread]:
    thinking = DecisionThread(path, say=said.append, wall_clock=lambda: 100.0)
    yield thinking
    thinking.close()


def comes(job: str = "ads-1", **changes: Any) -> RegisterJob:
    return registration(job, **{"features": msgspec.to_builtins(FEATURES), "demand": demand(), **changes})


def test_a_job_is_told_its_plan_a_little_later(thinking: DecisionThread, path: Path, said: list[str]) -> None:
    assert thinking.advice("ads-1") is None
    thinking.told(comes())
    until(lambda: thinking.advice("ads-1"), "a plan")
    advice = thinking.advice("ads-1")
    assert advice is not None and (advice.number, advice.decision["action"]) == (1, "start")
    with ConfigStore(path) as store:  # who was told may rely on it
        (stored,) = queries.decisions(store, "ads-1")
    assert msgspec.to_builtins(stored.decision) == advice.decision
    thinking.told(EndJob("ads-1", "stopped", 90.0, 0))
    until(lambda: thinking.advice("ads-1") is None, "nothing to tell any more")
    assert said == []


def test_a_job_that_wants_no_advice_gets_none(thinking: DecisionThread, path: Path) -> None:
    thinking.told(comes("ads-1", demand=None))
    thinking.told(comes("ads-2"))
    until(lambda: thinking.advice("ads-2"), "a plan for the other")
    assert thinking.advice("ads-1") is None


def test_reports_of_unknown_jobs_change_nothing(thinking: DecisionThread) -> None:
    thinking.told(Report("ads-9", 5))
    thinking.told(EndJob("ads-9", "failed", 90.0, 5, outcome=JobOutcome(seconds=1.0)))
    thinking.told(comes())
    until(lambda: thinking.advice("ads-1"), "a plan")


def test_invalid_features_are_reported_and_other_jobs_get_their_plans(
    thinking: DecisionThread, said: list[str]
) -> None:
    thinking.told(comes("odd-1", features={"tables": "many"}))
    thinking.told(comes())
    until(lambda: thinking.advice("ads-1"), "a plan")
    assert len(said) == 1 and "What odd-1 says of itself can't be understood" in said[0]


def test_a_job_that_came_while_the_history_could_not_be_read_is_taken_later(
    thinking: DecisionThread, path: Path, said: list[str]
) -> None:
    with ConfigStore(path) as store:
        store.put_job(JobEntry(id="old-1", name="old", state="succeeded", created_at=1.0, ended_at=2.0))
        store.add_fit(FitRecord(job="old-1", at=2.0, kind="bottleneck", error=0.0, windows=1, data={}))
        store.commit()
        with store.transaction():
            store.db.conn.execute("update fits set data = '{'")
    thinking.told(comes())
    until(lambda: said, "why there is no plan")
    assert "can't be understood" in said[0] and thinking.advice("ads-1") is None
    other = sqlite3.connect(path)
    other.execute("delete from fits")
    other.commit()
    other.close()
    until(lambda: thinking.advice("ads-1"), "a plan")
    assert len(said) == 1


def test_a_damaged_database_is_reported_once_and_no_reports_pile_up(tmp_path: Path, said: list[str]) -> None:
    path = tmp_path / "brain.sqlite"
    path.write_bytes(b"no database at all" * 100)
    thinking = DecisionThread(path, say=said.append)
    thinking.told(comes())
    assert thinking._thread is not None
    thinking._thread.join(20.0)
    assert not thinking._thread.is_alive()
    assert len(said) == 1 and said[0].startswith("no more decisions:") and "damaged or no database" in said[0]
    before = thinking._told.qsize()
    thinking.told(Report("ads-1", 5))
    assert thinking._told.qsize() == before and thinking.advice("ads-1") is None
    thinking.close()


def test_a_database_that_is_locked_at_first_is_waited_for(path: Path, said: list[str]) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("pragma locking_mode = exclusive")
    other.execute("begin exclusive")
    thinking = DecisionThread(path, say=said.append, busy_seconds=0.01)
    try:
        thinking.told(comes())
        until(lambda: said, "why there is no plan")
        assert "is locked by another process" in said[0]
        other.execute("rollback")
        other.close()
        until(lambda: thinking.advice("ads-1"), "a plan")
    finally:
        thinking.close()
    assert len(said) == 1


def test_waiting_for_a_database_ends_with_the_brain(path: Path, said: list[str]) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("pragma locking_mode = exclusive")
    other.execute("begin exclusive")
    thinking = DecisionThread(path, say=said.append, busy_seconds=0.01)
    thinking.told(comes())
    until(lambda: said, "why there is no plan")
    thinking.close()
    other.close()
    assert thinking._thread is not None and not thinking._thread.is_alive()


def test_an_unused_decision_thread_ends_at_once(path: Path) -> None:
    DecisionThread(path, say=lambda _: None).close()
