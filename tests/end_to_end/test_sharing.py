"""Jobs that leave their resources open, on one machine, under one brain: they wait for room, shrink and give way for want of it,
and go on by themselves; and no sample is lost.

What there is is set by the brain's preferences, and so small or large that there is only one thing to do, whatever is measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import dlrover_lite
from dlrover_lite.brain.store import preferences, queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import StoredDecision
from dlrover_lite.brain_server import brain_process
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.cli.main import cli
from dlrover_lite.client.handle import JobHandle, resume
from tests.backends.support import until
from tests.end_to_end.support import HERE, end, succeeded, until_trained, write_csv
from tests.end_to_end.test_faults import CENSUS, SGD, assert_exactly_once
from tests.end_to_end.test_nodes import kill_master

SAMPLES, EPOCHS = 6_000, 2
ROOM_FOR_ONE, ROOM_FOR_TWO = 0.25, 1.5
"""Cores: the smallest plan has 0.25. With an eighth more it would depend on what was measured whether a job takes that."""


@pytest.fixture(autouse=True)
def brain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DLROVER_LITE_BRAIN", "daemon")
    monkeypatch.setenv("DLROVER_LITE_PROFILE_SECONDS", "1")
    prefer(capacity_cores=ROOM_FOR_TWO, capacity_gib=8.0, decide_seconds=0.2)
    yield
    brain_process.stop(kill=True)


def prefer(**liked: float) -> None:
    BrainFiles().make()
    with ConfigStore(BrainFiles().database) as store:
        preferences.change(store, liked)


def open_job(name: str, directory: Path) -> JobHandle:
    """It doesn't come to its end before its gate is opened."""
    directory.mkdir()
    return dlrover_lite.run(
        {
            "version": 1,
            "name": name,
            "model": {"use": CENSUS, "options": {"directory": str(directory), "gate": str(directory / "gate")}},
            "data": write_csv(directory / "numbers.csv", SAMPLES),
            "training": {"batch_size": 16, "epochs": EPOCHS, "optimizer": SGD},
            "directory": str(HERE),
        }
    )


def decided(handle: JobHandle, action: str) -> list[StoredDecision]:
    with ConfigStore(BrainFiles().database) as store:
        return [one for one in queries.decisions(store, handle.id) if one.decision.action == action]


def cores(handle: JobHandle) -> float:
    """That its nodes have."""
    return sum(node.cores for node in handle.status().nodes if not node.state.startswith("ended"))


def settled(jobs: list[JobHandle]) -> tuple[JobHandle, JobHandle] | None:
    """The one of two that waits, without a node, and the one that trains with all there is."""
    for waits, trains in (jobs, jobs[::-1]):
        states = waits.status().state, trains.status().state
        if states == ("queued", "training") and (cores(waits), cores(trains)) == (0, ROOM_FOR_ONE):
            return waits, trains
    return None


def ended_exactly(handle: JobHandle) -> list[str]:
    """What its master has told."""
    succeeded(handle)
    assert_exactly_once(handle, samples=SAMPLES, batch_size=16, epochs=EPOCHS)
    return [entry.text for entry in handle.story("master").entries]


def test_jobs_share_a_machine_that_has_room_for_two_and_then_for_one(tmp_path: Path) -> None:
    first = open_job("first", tmp_path / "first")
    until_trained(first, 100)
    assert first.status().plan.startswith("begins with 1 ps x 0.5 cores, 2 worker x 0.5 cores (decision 1: cold start")

    second = open_job("second", tmp_path / "second")  # the first one has all there is, and shrinks
    until_trained(second, 100)
    # a worker that has to leave for it does so after its minibatch: the second one may be up sooner
    until(lambda: cores(first) + cores(second) <= ROOM_FOR_TWO, "room for both")
    (shrank, *_) = decided(first, "change")
    assert "others need what it had more" in shrank.decision.reason
    explained = CliRunner().invoke(cli, ["explain", first.id, str(shrank.number)])
    assert explained.exit_code == 0 and shrank.decision.reason[1:] in explained.output

    prefer(capacity_cores=ROOM_FOR_ONE)
    both = [first, second]
    until(lambda: any(decided(job, "preempt") for job in both), "the decision that one gives way")
    brain_process.stop(kill=True)  # amid that
    brain_process.ensure()
    waits, stays = until(lambda: settled(both), "one that gives way, and one that trains on")
    assert waits.status().samples > 0
    assert "queued" in CliRunner().invoke(cli, ["jobs"]).output
    kill_master(waits)  # who follows it waits on
    assert waits.status().state == "queued"
    stays.stop()
    assert end(stays).state == "stopped"

    until(lambda: waits.status().state == "training", "room for the one that waited")
    again = resume(stays.id)
    until(lambda: again.status().state == "queued", "the queue, for one that is resumed, too")
    until(
        lambda: re.search(
            r"number 1 in the queue: its smallest plan \(0.25 cores, .*\) doesn't fit", again.status().message
        ),
        "why",
    )
    told = ended_exactly(waits)
    last = waits.status().generation  # a brain that has just come may have had the other one give way first
    assert any(text.startswith(f"lets its nodes go, to go on from checkpoint {last} later: it gives") for text in told)
    assert any(text.startswith(f"goes on from checkpoint {last} (it gives way, and waits: there is") for text in told)
    assert any("goes on with" in text and "decision" in text for text in ended_exactly(again))
