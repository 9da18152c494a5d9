"""Jobs of this machine, with real keepers; their masters and nodes are scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs, create_job
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.processes.identity import ProcessIdentity, send_signal
from dlrover_lite.jobs.backend import RunOptions
from dlrover_lite.jobs.store import Job
from dlrover_lite.transport.connector import read_key
from tests.backends.job_contract import JobBackendContract, ScriptedJobs
from tests.backends.support import PATIENCE_SECONDS, assert_nothing_runs, options, recipe

MASTERS = {"exit": ("exit", "4"), "succeed": ("result", "succeeded"), "nodes": ("nodes", "2")}
"""Arguments of the scripted master, where these aren't the behaviour's name."""


def backend_for(behaviour: str) -> LocalJobs:
    return LocalJobs(options(*MASTERS.get(behaviour, (behaviour,)), master_grace_seconds=1000))


def _kill(process: ProcessIdentity | None) -> None:
    assert process is not None
    assert send_signal(process, signal.SIGKILL)


@pytest.fixture
def scripted() -> ScriptedJobs:
    def files(job: str) -> Job:
        return LocalJobs().files(job)

    return ScriptedJobs(
        backend_for,
        kill_master=lambda job: _kill(files(job).record().master),
        lose=lambda job: _kill(files(job).record().keeper),
    )


class TestLocalJobs(JobBackendContract):
    pass


def test_a_killed_job_leaves_no_process(own_directories: Path, scripted: ScriptedJobs) -> None:
    job = scripted.submit("nodes")
    scripted.wait_for_line(job, "worker-0", "child")
    scripted.backend.kill(job)
    scripted.ended(job)
    assert_nothing_runs(scripted.backend.files(job))
    assert list((own_directories / "r").iterdir()) == []


def test_a_job_that_is_just_being_launched_has_nothing_to_tell_yet() -> None:
    job, backend = create_job(recipe()), LocalJobs()
    assert not backend.stop(job.id)
    assert not backend.kill(job.id)
    assert not backend.wait(job.id, 0.25)
    assert (backend.state(job.id).state, backend.state(job.id).over) == ("starting", False)
    job.directory.rename(job.directory.parent / ".gone")  # this process would be waited for


def test_whoever_waits_for_the_launcher_waits_for_the_keeper_then() -> None:
    """Though the launcher lives on."""
    job = create_job(recipe())
    code = "import sys; from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs; print(LocalJobs().wait(sys.argv[1]))"
    with subprocess.Popen([sys.executable, "-c", code, job.id], stdout=subprocess.PIPE, text=True) as waiting:
        from dlrover_lite.backends.local.jobs.launching import start_keeper

        start_keeper(job, detach=False, options=options("result", "succeeded"))
        assert waiting.communicate(timeout=PATIENCE_SECONDS)[0] == "True\n"
    assert LocalJobs().state(job.id).state == "succeeded"


def test_a_job_that_does_not_come_up_is_a_failed_one_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", os.devnull)
    with pytest.raises(JobError, match="Can't start the job's keeper"):
        LocalJobs(options("idle")).submit(recipe(), options=RunOptions())
    backend = LocalJobs()
    job = backend.find("last")
    assert backend.wait(job)
    assert (backend.state(job).state, backend.state(job).over) == ("failed", True)


def test_a_job_over_tcp_has_a_key_for_its_address() -> None:
    backend = backend_for("idle")
    job = backend.submit(recipe(), options=RunOptions(transport="tcp"))
    assert read_key(backend.files(job).key_file)
    with backend.address(job) as address:
        assert address is None  # its master doesn't say where it listens
    backend.kill(job)
    assert backend.wait(job, PATIENCE_SECONDS)
