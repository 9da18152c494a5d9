"""Too few open files or processes (``ulimit``) are said in words, with the limit, what is needed and how to raise it."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from dlrover_lite.backends.local import doctor
from dlrover_lite.backends.local.jobs.local_jobs import create_job
from dlrover_lite.cli.main import main
from dlrover_lite.client.handle import launch
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.processes import limits as process_limits
from dlrover_lite.master_process import __main__ as master
from dlrover_lite.recipe.load import parse_recipe

RECIPE = {
    "version": 1,
    "name": "j",
    "model": "dcn",
    "data": {"format": "synthetic", "samples": 10},
    "resources": {role: {"count": 4, "cores": 0.5, "memory": "64MiB"} for role in ("ps", "worker")},
}
Limits = dict[int, tuple[int, int]]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """This process's, which can be changed here without becoming so."""
    found = dict.fromkeys((resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC), (100000, 100000))
    monkeypatch.setattr(resource, "getrlimit", lambda which: found[which])
    monkeypatch.setattr(resource, "setrlimit", lambda which, limit: found.update({which: limit}))
    return found


def test_sufficient_process_limits_are_not_mentioned(limits: Limits) -> None:
    assert process_limits.descriptor_shortage(8) is None
    assert process_limits.process_shortage(8, user=1000, threads=50) is None
    limits[resource.RLIMIT_NOFILE] = limits[resource.RLIMIT_NPROC] = (resource.RLIM_INFINITY,) * 2
    assert process_limits.descriptor_shortage(4096) is None
    assert process_limits.process_shortage(4096, user=1000, threads=50) is None


def test_too_few_open_files_are_reported(limits: Limits) -> None:
    limits[resource.RLIMIT_NOFILE] = (64, 100)
    shortage = process_limits.descriptor_shortage(8)
    assert shortage is not None
    assert shortage.message == "a process may have 100 open files here (ulimit -n), and a job with 8 nodes needs 320"
    assert "ulimit -n 4096" in shortage.hint


def test_a_low_limit_that_may_be_raised_is_raised(limits: Limits) -> None:
    limits[resource.RLIMIT_NOFILE] = (64, 5000)
    assert process_limits.descriptor_shortage(8) is None
    process_limits.raise_descriptors(8)
    assert limits[resource.RLIMIT_NOFILE] == (320, 5000)
    process_limits.raise_descriptors(1)
    assert limits[resource.RLIMIT_NOFILE] == (320, 5000)
    process_limits.raise_descriptors(4096)
    assert limits[resource.RLIMIT_NOFILE] == (5000, 5000)


def test_too_few_processes_are_reported(limits: Limits) -> None:
    limits[resource.RLIMIT_NPROC] = (300, 300)
    shortage = process_limits.process_shortage(8, user=1000, threads=200)
    assert shortage is not None
    assert "300 processes and threads here (ulimit -u), 200 of them there are already" in shortage.message
    assert "a job with 8 nodes needs 256 more" in shortage.message and "ulimit -u 4096" in shortage.hint
    assert process_limits.process_shortage(8, user=0, threads=200) is None
    assert process_limits.process_shortage(8, user=1000, threads=44) is None


def test_threads_of_the_user_are_counted() -> None:
    assert process_limits._threads_of(os.geteuid()) >= len(list(Path("/proc/self/task").iterdir()))


def test_a_job_beyond_process_limits_is_refused_before_it_starts(
    limits: Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path))
    limits[resource.RLIMIT_NOFILE] = (64, 64)
    with pytest.raises(JobError, match=r"The job can't start: a process may have 64 open files here \(ulimit -n\)"):
        launch(parse_recipe(RECIPE))
    assert list(tmp_path.iterdir()) == []


def test_doctor_reports_low_process_limits(limits: Limits) -> None:
    assert doctor.process_limits().level == "ok"
    limits[resource.RLIMIT_NOFILE] = (64, 64)
    assert doctor.process_limits().level == "problem"
    assert "ulimit -n" in doctor.process_limits().text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc/1/stat"), "open files here (ulimit -n)"),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "open files here (ulimit -n)"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "(ulimit -u)"),
        (RuntimeError("can't start new thread"), "(ulimit -u)"),
    ],
)
def test_exhausted_limits_in_a_command_are_no_bug(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(doctor, "diagnose", fails)
    assert main(["doctor"]) == 1
    output = capsys.readouterr().err
    assert said in output and "bug" not in output and len(output.splitlines()) == 2


def test_a_master_that_can_start_no_thread_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path))
    job = create_job(parse_recipe(RECIPE))

    def fails(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(master, "run", fails)
    monkeypatch.setattr(master, "pass_over_full_disk", lambda: None)
    assert master.main([str(job.directory)]) == 1
    result = job.result()
    assert result is not None and "(ulimit -u)" in result.message and "Raise it" in result.hint
    assert "bug" not in result.message + result.hint


def test_other_errors_are_not_taken_for_exhausted_limits() -> None:
    for error in (ValueError("x"), OSError(errno.ENOENT, "x"), RuntimeError("x"), OSError("x")):
        assert process_limits.exhausted(error) is None
