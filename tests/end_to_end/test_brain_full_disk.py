"""A real job under a brain whose disk is full for a while: it trains on, that is said, and the history goes on when there is room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server import brain_process
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.cli.main import cli
from dlrover_lite.client.handle import JobHandle
from tests.backends.support import until
from tests.end_to_end.support import succeeded, until_trained
from tests.end_to_end.test_faults import assert_exactly_once
from tests.end_to_end.test_nodes import SAMPLES, census
from tests.small_disk import SmallDisk, small_disk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    """Of the brain alone."""
    monkeypatch.setenv("DLROVER_LITE_BRAIN", "daemon")
    monkeypatch.setenv("DLROVER_LITE_PROFILE_SECONDS", "1")
    BrainFiles().make()
    with small_disk(BrainFiles().directory) as disk:
        yield disk
        brain_process.stop(kill=True)


def told(handle: JobHandle, start: str) -> list[str]:
    return [entry.text for entry in handle.story("master").entries if entry.text.startswith(start)]


def registered() -> list[str]:
    with ConfigStore(BrainFiles().database) as store:
        return [job.id for job in queries.jobs(store)]


def test_a_job_trains_on_while_its_brain_can_write_nothing(tmp_path: Path, disk: SmallDisk) -> None:
    handle = census(tmp_path)
    until_trained(handle, 100)
    until(lambda: handle.id in registered(), "the job in the history")
    disk.fill()
    full = f"The disk of {disk.directory} is full: brain.sqlite can't be written"
    until(lambda: told(handle, f"the brain can't keep what it is told: {full}"), "the word about the full disk")
    shown = CliRunner().invoke(cli, ["brain", "status"])
    assert f"problem    {full}" in shown.output and "Free some space" in shown.output
    samples = handle.status().samples
    until_trained(handle, samples + 64)
    disk.free()
    until(lambda: told(handle, "the brain is there"), "the brain that can write again")
    status = succeeded(handle)
    assert_exactly_once(handle, samples=SAMPLES, batch_size=16, epochs=2)
    assert "problem" not in CliRunner().invoke(cli, ["brain", "status"]).output
    with ConfigStore(BrainFiles().database) as store:
        (job,) = queries.jobs(store)
        assert (job.state, job.samples) == ("succeeded", status["samples"])
        assert queries.profiles(store, handle.id)
        assert store.db.conn.execute("pragma integrity_check").fetchall() == [("ok",)]
