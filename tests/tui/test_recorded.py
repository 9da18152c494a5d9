from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dlrover_lite.errors import HistoryError
from dlrover_lite.tui.model import JobDetail
from dlrover_lite.tui.recorded import RecordedSource, Recorder
from tests.tui.fixed import ADS, DETAIL, FEED, OLD, VIEW, FixedSource


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Three moments: all jobs; after 10 s more samples, and a look at a job; after 20 s one job less."""
    path, clock, source = tmp_path / "a.jsonl", Clock(), FixedSource()
    recorder = Recorder(source, path, clock=clock)
    recorder.jobs()
    clock.now += 10
    source.change(ADS.id, samples=5_000_000)
    recorder.jobs()
    recorder.job(ADS.id)
    clock.now += 10
    source.view = msgspec.structs.replace(source.view, jobs={k: v for k, v in source.view.jobs.items() if k != OLD.id})
    recorder.jobs()
    recorder.close()
    assert source.closed
    return path


def test_what_was_shown_is_shown_again(recording: Path) -> None:
    clock = Clock()
    source = RecordedSource(recording, clock=clock)
    assert source.seconds == 20
    assert source.jobs().jobs == VIEW.jobs
    assert list(source.jobs().jobs) == list(VIEW.jobs)
    assert source.job(ADS.id) == JobDetail(row=ADS)
    clock.now += 10
    assert source.jobs().jobs[ADS.id].samples == 5_000_000
    assert source.job(ADS.id) == DETAIL
    clock.now += 1000
    assert OLD.id not in source.jobs().jobs
    assert source.job(OLD.id) is None
    assert source.position == 20


def test_what_has_not_changed_is_the_same_object(recording: Path) -> None:
    source = RecordedSource(recording, speed=0)
    first = source.jobs()
    assert source.jobs() is first
    source.step()
    assert source.jobs() is not first
    assert source.jobs().jobs[FEED.id] is first.jobs[FEED.id]


def test_it_can_be_stepped_sped_up_and_turned_back(recording: Path) -> None:
    clock = Clock()
    source = RecordedSource(recording, speed=5.0, clock=clock)
    clock.now += 2
    assert source.position == 10
    source.go(0.0)
    assert source.jobs().jobs[ADS.id].samples == ADS.samples
    source.step()
    assert source.position == 10
    clock.now += 50
    assert source.position == 10
    source.step()
    source.step()
    assert source.position == 20


def test_only_what_is_new_is_written(recording: Path) -> None:
    lines = [msgspec.json.decode(line) for line in recording.read_bytes().splitlines()]
    assert [len(line.get("jobs", ())) for line in lines[1:]] == [4, 1, 0, 0]
    assert lines[-1]["gone"] == [OLD.id]


def test_one_that_was_cut_off_is_shown_as_far_as_it_goes(recording: Path) -> None:
    recording.write_bytes(recording.read_bytes()[:-20])
    assert RecordedSource(recording, speed=0).seconds == 10


def test_damage_is_said_with_its_line(recording: Path) -> None:
    lines = recording.read_bytes().splitlines()
    recording.write_bytes(b"\n".join([lines[0], b"{", *lines[2:]]))
    with pytest.raises(HistoryError, match="line 2"):
        RecordedSource(recording)


@pytest.mark.parametrize("text", [b"", b"no recording", b'{"recording": 1}'])
def test_other_files_are_no_recordings(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text)
    with pytest.raises(HistoryError, match="is no recording"):
        RecordedSource(path)


def test_one_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"recording": 99, "version": "9.9", "at": 1}\n')
    with pytest.raises(HistoryError, match=r"another version .*9\.9"):
        RecordedSource(path)


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("mine")
    with pytest.raises(HistoryError, match="is there already"):
        Recorder(FixedSource(), path)
    assert path.read_text() == "mine"
    with pytest.raises(HistoryError, match="can't be written"):
        Recorder(FixedSource(), tmp_path / "none" / "a.jsonl")
