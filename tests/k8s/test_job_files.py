"""A job's directory as it is read from elsewhere: logs that grow, copies, and nothing beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrover_lite.backends.k8s.jobs.files.job_copy import JobCopy, copy_files
from dlrover_lite.backends.k8s.jobs.files.remote_log import RemoteLog
from dlrover_lite.backends.local.jobs.job_logs import LogFile
from dlrover_lite.checkpoint.file_service.client import FileClient
from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.file_messages import FileEntry
from tests.checkpoint.served_files import served


@pytest.fixture
def job(tmp_path: Path) -> Job:
    one = Job(tmp_path / "jobs" / "clicks-1")
    one.logs.mkdir(parents=True)
    return one


@pytest.fixture
def client(job: Job, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileClient]:
    with served(job.directory, monkeypatch) as directory:
        one = FileClient(directory.url.replace("dlrover-lite://", "tcp://"))
        yield one
        one.close()


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "logs/../../secret", "link", "key"])
def test_nothing_beyond_the_directory_is_read_nor_the_key(job: Job, client: FileClient, path: str) -> None:
    (job.directory.parent / "secret").write_text("x")
    (job.directory / "key").write_text("x")
    (job.directory / "link").symlink_to(job.directory.parent / "secret")
    with pytest.raises(JobError, match=r"that can be read|can't hold such a file"):
        client.part(path, 0)
    assert client.tree() == []


@pytest.mark.parametrize("last", [None, 0, 1, 2, 5])
@pytest.mark.parametrize("text", ["", "one\n", "one\ntwo", "one\ntwo\nthree\n", "x" * 100_000 + "\nend\n"])
def test_a_log_reads_as_from_its_file(job: Job, client: FileClient, text: str, last: int | None) -> None:
    file = job.log("worker-0")
    file.write_text(text)
    remote = RemoteLog("logs/worker-0.log", client.part, last_lines=last)
    here = LogFile(file, last_lines=last)
    for more in ("", "more", " and\nmore\n", "last words"):
        with file.open("a") as out:
            out.write(more)
        assert list(remote.new_lines()) == list(here.new_lines())
        assert (remote.begun, remote.restarts) == (here.begun, here.restarts)
    assert list(remote.new_lines(at_end=True)) == list(here.new_lines(at_end=True))


def test_a_log_that_begins_anew_is_read_from_its_beginning(job: Job, client: FileClient) -> None:
    file = job.log("master")
    file.write_text("a\nb\n")
    remote = RemoteLog("logs/master.log", client.part)
    assert list(remote.new_lines()) == ["a", "b"]
    file.write_text("c\n")
    assert (list(remote.new_lines()), remote.restarts) == (["c"], 1)


def test_a_log_that_isnt_there_is_empty(client: FileClient) -> None:
    assert list(RemoteLog("logs/worker-9.log", client.part, last_lines=3).new_lines(at_end=True)) == []


def test_a_copy_is_made_when_it_is_looked_into_and_only_changes_are_read_again(
    job: Job, client: FileClient, tmp_path: Path
) -> None:
    (job.directory / "status.json").write_text('{"samples": 1}')
    (job.directory / "large").write_bytes(bytes(9 << 20))
    fetched: list[Path] = []

    def fetch(place: Path) -> None:
        fetched.append(place)
        copy_files(client, iter(client.tree()), place)

    def copy() -> JobCopy:
        return JobCopy("clicks-1", tmp_path / "copy", fetch)

    first = copy()
    assert not fetched and first.id == "clicks-1"
    assert first.status() == {"samples": 1} and (first.directory / "large").stat().st_size == 9 << 20
    assert len(fetched) == 1
    unchanged = (tmp_path / "copy" / "large").stat().st_ino
    (job.directory / "status.json").write_text('{"samples": 22}')
    assert copy().status() == {"samples": 22}
    assert (tmp_path / "copy" / "large").stat().st_ino == unchanged
    (tmp_path / "copy" / "large").write_bytes(b"in part")
    assert (copy().directory / "large").stat().st_size == 9 << 20


def test_a_name_that_leads_out_of_the_copy_is_refused(client: FileClient, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="leads out"):
        copy_files(client, iter([FileEntry("../x", 1, 0.0)]), tmp_path / "copy")
