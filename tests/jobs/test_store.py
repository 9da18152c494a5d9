from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.backends.local.jobs.local_jobs import create_job, summary_of
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.processes.identity import ProcessIdentity, identify, is_alive, send_signal, wait_for_end
from dlrover_lite.jobs import events, store
from dlrover_lite.jobs.store import Beginning, Job, Result, find_job, list_jobs
from dlrover_lite.protocol.questions import StoryEntry
from tests.backends.support import PATIENCE_SECONDS, recipe, until
from tests.file_calls import recorded


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path))
    return tmp_path / "state" / "jobs"


def create(name: str = "quick", at: float = 1_800_000_000.0) -> Job:
    return create_job(recipe(name), clock=lambda: at)


def gone() -> ProcessIdentity:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    identity = identify(process.pid)
    process.communicate()
    assert identity is not None
    return identity


def test_a_new_job_has_its_recipe_and_directories(home: Path) -> None:
    job = create()
    assert job.directory.parent == home
    assert "name: quick\n" in (job.directory / "recipe.yaml").read_text()
    assert job.recipe == recipe("quick")
    assert job.logs.is_dir()
    assert job.export.is_dir()
    assert summary_of(job).state == "starting"
    assert not [path for path in home.iterdir() if path.name.startswith(".")]


def test_ids_are_unique_at_the_same_instant_and_sort_by_creation(home: Path) -> None:
    jobs: list[Job] = []
    threads = [threading.Thread(target=lambda: jobs.append(create())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job.id for job in jobs}) == 8
    later, earlier = create(at=1_800_000_100.0), create("z", at=1_700_000_000.0 + 5e7)
    ids = [job.id for job in list_jobs()]
    assert ids[0] == earlier.id
    assert ids[-1] == later.id
    assert len(ids) == 10


def test_jobs_are_found_by_id_prefix_or_last(home: Path) -> None:
    with pytest.raises(JobError, match="There are no jobs"):
        find_job("last")
    first, second = create("census", at=1_800_000_000.0), create("quick", at=1_800_000_001.0)
    assert find_job("last").id == second.id
    for reference in (first.id, "cen", first.short_id):
        assert find_job(reference).id == first.id
    with pytest.raises(JobError, match=f"nearest: {first.id}"):
        find_job(first.id.replace("census", "cencus"))
    with pytest.raises(JobError, match=f"2 jobs start with '{first.short_id[:4]}'"):
        find_job(first.short_id[:4])
    with pytest.raises(JobError, match="No job is called ''"):
        find_job("")


def test_only_the_first_result_of_a_job_counts(home: Path) -> None:
    job = create()
    assert job.result() is None
    assert job.write_result(Result("failed", 1.0, "no luck"))
    assert not job.write_result(Result("stopped", 2.0))
    assert job.result() == Result("failed", 1.0, "no luck")
    assert summary_of(job).state == "failed"


def test_job_state_follows_its_processes(home: Path) -> None:
    job = create()
    me = identify(os.getpid())
    job.write_record(msgspec.structs.replace(job.record(), state="running", keeper=me))
    assert summary_of(job).state == "running"
    job.write_record(msgspec.structs.replace(job.record(), keeper=gone()))
    assert summary_of(job).state == "lost"
    # Its pid now belongs to somebody else: to us.
    job.write_record(msgspec.structs.replace(job.record(), keeper=ProcessIdentity(os.getpid(), gone().started)))
    assert summary_of(job).state == "lost"


def test_an_unreadable_job_record_is_named(home: Path) -> None:
    job = create()
    path = job.directory / "job.json"
    path.write_text('{"state": "run')
    with pytest.raises(JobError, match=str(path)):
        summary_of(job)


def test_a_state_directory_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "file"))
    with pytest.raises(JobError, match=f"{tmp_path}/file/state/jobs: Not a directory"):
        create()


def test_a_full_disk_leaves_no_half_made_job(home: Path, full_disk: FullDisk) -> None:
    with full_disk, pytest.raises(JobError, match=f"disk is full: can't write {home}/"):
        create()
    assert list(home.iterdir()) == []


def test_a_result_fits_on_a_full_disk(home: Path, full_disk: FullDisk) -> None:
    job = create()
    full_disk.reserve = job.directory / ".reserve"
    with full_disk:
        assert job.write_result(Result("failed", 1.0, "disk full"))
    assert summary_of(job).state == "failed"
    assert not list(job.directory.glob(".result*"))


class FullDisk:
    """fsync fails while the disk is full: until the file ``reserve`` is removed."""

    reserve: Path | None = None

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._fsync = os.fsync

    def __enter__(self) -> None:
        self._patch.setattr(store.os, "fsync", self._full)

    def __exit__(self, *_: object) -> None:
        self._patch.setattr(store.os, "fsync", self._fsync)

    def _full(self, descriptor: int) -> None:
        if self.reserve is None or self.reserve.exists():
            raise OSError(28, "No space left on device")
        self._fsync(descriptor)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def test_processes_with_a_reused_pid_are_told_apart() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    identity = identify(process.pid)
    assert identity is not None
    assert is_alive(identity)
    assert not wait_for_end(identity, 0)
    assert send_signal(identity, 0)
    impostor = ProcessIdentity(process.pid, f"{identity.started}0")
    assert not send_signal(impostor, 9)
    assert wait_for_end(impostor, 0)
    assert process.stdin is not None
    process.stdin.close()
    assert wait_for_end(identity, PATIENCE_SECONDS)
    assert not is_alive(identity)  # though nobody has reaped it yet
    process.wait()
    assert wait_for_end(identity, PATIENCE_SECONDS)
    assert not send_signal(identity, 9)


def test_a_result_is_shown_in_a_line() -> None:
    status = {"nodes": [{"id": f"worker-{n}"} for n in range(100)]}
    assert repr(Result("succeeded", 1.0, export="/x/export", status=status)) == (
        "<Result succeeded; export='/x/export'; more in .status>"
    )
    failed = Result("failed", 1.0, "out of " + "luck " * 50 + "\nand more", "try again", "Traceback ...", status=status)
    assert repr(failed).startswith("<Result failed: out of luck luck")
    assert repr(failed).endswith("…; more in .message, .hint, .traceback, .status>") and len(repr(failed)) < 200
    assert repr(Result("stopped", 1.0)) == "<Result stopped>"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere it can't be told")
def test_a_process_whose_first_thread_has_ended_is_waited_for() -> None:
    code = (
        "import ctypes, threading\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "print('on', flush=True)\n"
        "ctypes.PyDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            identity = identify(process.pid)
            assert identity is not None and process.stdout is not None and process.stdout.readline() == b"on\n"
            until(lambda: identify(process.pid) is None, "the end of the first thread")
            assert not wait_for_end(identity, 0)
        finally:
            process.kill()
        assert wait_for_end(identity, PATIENCE_SECONDS)


def test_files_of_a_job_are_durable_before_they_have_their_name(home: Path) -> None:
    with recorded() as calls:
        job = create()
        calls.check_durable(job.directory)
        job.write_beginning(Beginning(1, str(job.directory / "checkpoints"), 3))
        assert job.write_result(Result("stopped", 1.0))
        assert not job.write_result(Result("failed", 2.0))
        again = Beginning(2, str(job.directory / "checkpoints"), 4)
        job.start_again(again, launcher=gone(), detached=False, is_over=lambda: True)
        job.write_status({"state": "running"})
    written = [
        name for name in dict.fromkeys(calls.names()) if Path(name).exists() and not name.endswith("status.json")
    ]
    names = {Path(name).name for name in written if Path(name).parent == job.directory}
    assert names == {"beginning.json", "job.json", ".reserve"}
    for name in names:
        calls.check_durable(job.directory / name)
    assert any(name.endswith("/result.json") for name in calls.names())


def test_job_files_are_readable_by_their_owner_only(home: Path) -> None:
    home.mkdir(parents=True)
    for directory in (home, home.parent):
        directory.chmod(0o755)  # as older versions have made them
    before = os.umask(0)
    try:
        job = create()
        job.write_result(Result("stopped", 1.0))
        events.append(job.directory, [StoryEntry(1.0, "master", "something")])
    finally:
        os.umask(before)
    found = {path: path.stat().st_mode & 0o777 for path in (home.parent, *home.parent.rglob("*"))}
    assert found == {path: 0o700 if path.is_dir() else 0o600 for path in found}
    home.parent.chmod(0o755)
    list_jobs()
    assert home.parent.stat().st_mode & 0o777 == 0o700


def test_a_job_being_restarted_names_the_process_that_does_it(home: Path) -> None:
    job = create()
    descriptor = os.open(job.directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with pytest.raises(JobError, match=f"{job.directory} is locked, held by process {os.getpid()} "):
            job.start_again(Beginning(1, "", 1), launcher=gone(), detached=False, is_over=lambda: True)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("process", ["../../x", "a/b", ".", ""])
def test_logs_outside_the_jobs_directory_are_refused(home: Path, process: str) -> None:
    job = create()
    if process in (".", ""):  # names of hidden files, in the right place
        assert job.log(process).parent == job.logs
    else:
        with pytest.raises(JobError, match="has no log"):
            job.log(process)
