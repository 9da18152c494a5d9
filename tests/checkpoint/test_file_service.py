"""Files that are kept by another process: whole or not there, once each, whatever is repeated, and nobody without the key."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dlrover_lite.checkpoint.destination import open_destination
from dlrover_lite.checkpoint.file_service import client, service
from dlrover_lite.checkpoint.file_service.service import FileService
from dlrover_lite.core.errors import CheckpointDamaged, JobError
from dlrover_lite.protocol import file_messages as messages
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE
from dlrover_lite.transport.curve import JobKey
from tests.checkpoint.served_files import Served, served


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with served(tmp_path / "job", monkeypatch) as found:
        yield found


class Asked:
    """A request as a server gives it."""

    def __init__(self, body: Any, *frames: bytes) -> None:
        self.body, self.frames = body, frames

    def buffer(self, index: int) -> memoryview:
        return memoryview(self.frames[index])


def test_a_file_is_there_when_it_is_finished_and_not_before(directory: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_PIECE_BYTES", 1000)
    files = open_destination(f"{directory.url}/checkpoints")
    assert not files.exists()
    files.create()
    files.make("cut-1")
    data = secrets.token_bytes(12_345)
    writer = files.writer("cut-1/part")
    writer.write([data[:7000], memoryview(data)[7000:]])
    assert not (directory.root / "checkpoints/cut-1/part").exists()
    writer.finish()
    writer.abandon()
    assert (directory.root / "checkpoints/cut-1/part").read_bytes() == data
    assert files.directories() == {"cut-1": {"part": len(data)}}
    with closing(files.open("cut-1/part")) as reader, ThreadPoolExecutor(4) as threads:
        places = [(start, min(3456, len(data) - start)) for start in range(0, len(data), 700)]
        found = threads.map(lambda place: bytes(reader.read(*place)), places)
        assert list(found) == [data[start : start + length] for start, length in places]
        with pytest.raises(CheckpointDamaged, match="it ends at byte"):
            reader.read(len(data) - 1, 2)
    files.remove("cut-1", first="part")
    assert files.directories() == {}


def test_an_abandoned_file_leaves_nothing(directory: Served) -> None:
    files = open_destination(f"{directory.url}/checkpoints")
    files.create()
    files.make("cut-1")
    writer = files.writer("cut-1/part")
    writer.write([b"x" * 100])
    writer.abandon()
    assert list((directory.root / "checkpoints/cut-1").iterdir()) == []
    with pytest.raises(CheckpointDamaged, match="missing"):
        files.open("cut-1/part")


def test_names_do_not_lead_out_of_what_is_served(directory: Served, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    for url, name in ((f"{directory.url}/..", "secret"), (f"{directory.url}/checkpoints", "../../secret")):
        with pytest.raises(JobError, match="can't hold such a file"):
            open_destination(url).open(name)


def test_whoever_has_another_key_gets_nothing(
    directory: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other key"
    other.write_text(JobKey.generate().text())
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(other))
    monkeypatch.setattr(client, "_DEADLINE_SECONDS", 0.5)
    with pytest.raises(JobError, match="did not answer"):
        open_destination(f"{directory.url}/checkpoints").create()
    assert not (directory.root / "checkpoints").exists()


def test_a_process_without_the_job_s_key_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_FILE_VARIABLE, raising=False)
    with pytest.raises(JobError, match=r"tcp://x:1 can't be used: .*without the job's key"):
        open_destination("dlrover-lite://x:1/c").create()


def test_repeated_requests_change_nothing(tmp_path: Path) -> None:
    """As a client sends them again that hasn't heard an answer."""
    files = FileService(str(tmp_path), writable=["c"], clock=lambda: 0.0)
    steps = [
        Asked(messages.CreateDirectory("c")),
        Asked(messages.MakeDirectory("c", "d")),
        Asked(messages.BeginFile("c", "d/f", 7)),
        Asked(messages.WriteFile(7, 0), b"abc"),
        Asked(messages.WriteFile(7, 3), b"de"),
        Asked(messages.FinishFile(7)),
    ]
    for step in steps:
        for _ in range(2):
            assert files.answer(step)[0] == messages.Done()  # type: ignore[arg-type]
    assert (tmp_path / "c/d/f").read_bytes() == b"abcde"
    assert [path.name for path in (tmp_path / "c/d").iterdir()] == ["f"]


@pytest.mark.parametrize("url", ["", "/logs", "/checkpoints-2", "/ledger.sqlite"])
def test_only_checkpoints_and_the_model_are_written(directory: Served, url: str) -> None:
    (directory.root / "ledger.sqlite").write_text("x")
    files = open_destination(f"{directory.url}{url}")
    for attempt in (files.create, lambda: files.make("d"), lambda: files.put("f", b"x"), lambda: files.remove("d")):
        with pytest.raises(JobError, match="isn't written to by others, only: checkpoints and export"):
            attempt()
    with pytest.raises(JobError, match="isn't written to by others"):
        files.writer("f")
    assert [path.name for path in directory.root.iterdir()] == ["ledger.sqlite"]


def test_links_to_elsewhere_are_neither_read_nor_written(directory: Served, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f").write_text("x")
    (directory.root / "checkpoints").symlink_to(tmp_path / "elsewhere")
    files = open_destination(f"{directory.url}/checkpoints")
    for attempt in (lambda: files.open("f"), lambda: files.put("f", b"y"), files.directories):
        with pytest.raises(JobError, match="no file of job that can be read"):
            attempt()
    assert (tmp_path / "elsewhere" / "f").read_text() == "x"


def test_a_process_that_serves_ends_when_nobody_has_asked_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "the key"
    file.write_text(JobKey.generate().text())
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(file))
    command = [sys.executable, "-P", "-m", "dlrover_lite.checkpoint.file_service.server", str(tmp_path)]
    process = subprocess.Popen([*command, "tcp://127.0.0.1:*", "--idle-seconds", "0.2"], stdout=subprocess.DEVNULL)
    assert process.wait(60) == 0


def test_a_gap_in_a_file_is_refused(tmp_path: Path) -> None:
    files = FileService(str(tmp_path), writable=["c"], clock=lambda: 0.0)
    (tmp_path / "c/d").mkdir(parents=True)
    files.answer(Asked(messages.BeginFile("c", "d/f", 7)))  # type: ignore[arg-type]
    with pytest.raises(JobError, match="from 0 to 3 have not come"):
        files.answer(Asked(messages.WriteFile(7, 3), b"de"))  # type: ignore[arg-type]
    with pytest.raises(JobError, match="is lost"):
        files.answer(Asked(messages.FinishFile(8)))  # type: ignore[arg-type]
    files.close()
    assert list((tmp_path / "c/d").iterdir()) == []


def test_a_file_whose_writer_has_ended_is_given_up(tmp_path: Path) -> None:
    now = 0.0
    files = FileService(str(tmp_path), writable=["c"], clock=lambda: now)
    (tmp_path / "c/d").mkdir(parents=True)
    files.answer(Asked(messages.BeginFile("c", "d/f", 7)))  # type: ignore[arg-type]
    now = service.IDLE_SECONDS - 1
    assert files.give_up_idle() == []
    now = service.IDLE_SECONDS + 1
    assert files.give_up_idle() == ["d/f"]
    assert list((tmp_path / "c/d").iterdir()) == []
