"""The brain's database on a full disk: what can't be written isn't acknowledged, it is said why, and all goes on when there is room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import profile_of
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.brain_messages import UNWRITTEN, BrainAck, BrainStatusRequest, EndJob, Report
from dlrover_lite.transport.frames import Failure
from tests.brain.advised import Office
from tests.brain.service_rig import Rig, profile, registration
from tests.brain.simulated import Costs
from tests.brain.test_adviser import OUTCOME
from tests.small_disk import SmallDisk, small_disk

FULL = "The disk of {} is full: brain.sqlite can't be written"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


def check_whole(path: Path) -> None:
    with ConfigStore(path) as store:
        assert store.db.conn.execute("pragma integrity_check").fetchall() == [("ok",)]


def test_unwritten_reports_are_kept_by_masters_until_there_is_room(disk: SmallDisk) -> None:
    path = disk.directory / "brain.sqlite"
    full = FULL.format(disk.directory)
    rig = Rig(path)
    try:
        rig.ask(registration())
        disk.fill()
        untold = [Report("ads-1", at, [profile(float(at))]) for at in (1, 2)]
        bodies = [*untold, registration("ads-2"), EndJob("ads-1", "failed", 9.0, 2)]
        for body in bodies:
            answer = rig.ask(body)
            assert isinstance(answer, Failure) and (answer.code, answer.message) == (UNWRITTEN, full)
            assert "Free some space" in answer.hint
        rig.passes(3600.0)  # old rows are to be removed, which takes room too
        told = rig.ask(BrainStatusRequest())
        assert told.problem == full and [job.job for job in told.jobs] == ["ads-1"]
        assert sum(line.startswith(full) for line in rig.said) == 1
        with ConfigStore(path) as other:  # what is there can be read by all
            assert [job.state for job in queries.jobs(other)] == ["running"]
        disk.free()
        assert [rig.ask(body) for body in bodies] == [BrainAck()] * len(bodies)
        assert rig.ask(BrainStatusRequest()).problem == ""
        assert "the database can be written again" in rig.said
        assert [profile_of(one) for one in queries.profiles(rig.store, "ads-1")] == [profile(1.0), profile(2.0)]
        assert {job.id: job.state for job in queries.jobs(rig.store)} == {"ads-1": "failed", "ads-2": "running"}
    finally:
        rig.close()
    check_whole(path)


def test_opening_a_database_on_a_full_disk_says_that_it_is_full(disk: SmallDisk) -> None:
    """SQLite itself calls it an I/O error."""
    path = disk.directory / "brain.sqlite"
    with ConfigStore(path) as store:
        store.db.conn.execute("pragma user_version = 7")
    disk.fill()
    with pytest.raises(HistoryError) as error:
        ConfigStore(path)
    assert error.value.message == FULL.format(disk.directory)
    assert "Free some space" in error.value.hint
    disk.free()
    check_whole(path)


def test_an_ended_jobs_fit_is_stored_once_there_is_room_again(disk: SmallDisk) -> None:
    office = Office(disk.directory)
    try:
        office.arrives()
        office.turn()
        office.begins(costs=Costs(worker=0.03))
        office.trains(windows=3)
        disk.fill()
        with pytest.raises(HistoryError, match="is full"):
            office.adviser.ended("ads-1", OUTCOME, office.now)
        with pytest.raises(HistoryError, match="is full"):
            office.turn()
        assert fits(office) == 0
        disk.free()
        office.turn()
        assert fits(office) > 0
    finally:
        office.close()
    check_whole(office.path)


def fits(office: Office) -> int:
    with ConfigStore(office.path) as other:
        return int(other.db.conn.execute("select count(*) from fits").fetchone()[0])
