"""The history of a job, asked for over TCP with its key, of who serves the job's files; and copied from there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrover_lite.backends.k8s.jobs.pod_history import PodHistory
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.merge import JobMerge
from dlrover_lite.brain.store.records import FIT_KINDS, FitRecord, JobEntry, ProfileRecord
from dlrover_lite.checkpoint.file_service.client import FileClient
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.files.durable import make_private
from dlrover_lite.core.files.paths import brain_database
from dlrover_lite.jobs.backend import Address
from dlrover_lite.protocol.brain_mode import BRAIN_ADDRESS_VARIABLE, BRAIN_KEY_VARIABLE
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE, Connector
from dlrover_lite.transport.curve import JobKey
from tests.backends.support import until
from tests.k8s.cluster import free_ports
from tests.k8s.test_shared_brain import Brain

JOB, SOURCE = "ads-1", "prod/ads"


class Pod:
    """Who serves a job's files, as a process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.processes: list[subprocess.Popen[bytes]] = []
        self.address = Address("", Connector(JobKey.parse((root / "key").read_text())))

    def start(self) -> None:
        """Start another one, at another address."""
        (port,) = free_ports(1)
        self.address = Address(f"tcp://127.0.0.1:{port}", self.address.connector)
        command = [sys.executable, "-P", "-m", "dlrover_lite.backends.k8s.jobs.files.server", str(self.root)]
        self.processes.append(subprocess.Popen([*command, self.address.endpoint], stdout=subprocess.DEVNULL))

    def stop(self) -> None:
        process = self.processes.pop()
        process.terminate()
        assert process.wait(30) == 0


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    (tmp_path / "key").write_text(JobKey.generate().text())
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    brain_database().parent.mkdir(parents=True)
    found = Pod(tmp_path)
    found.start()
    yield found
    while found.processes:
        found.stop()
    found.address.connector.close()


def measured(at: float) -> None:
    with ConfigStore(brain_database()) as store:
        store.put_job(JobEntry(id=JOB, name="ads", state="running", created_at=1.0, directory="/storage/jobs/ads-1"))
        store.add_profile(ProfileRecord(job=JOB, at=at, seconds=1.0, samples_per_second=7.0, workers=1, servers=1))
        store.commit()


def test_what_a_jobs_brain_keeps_is_copied_by_looks_and_from_another_pod_too(pod: Pod, tmp_path: Path) -> None:
    history = PodHistory(lambda: pod.address)
    with ConfigStore(tmp_path / "here.sqlite") as here:
        merge = JobMerge(history, JOB, SOURCE)
        assert not merge.look(here)  # there is no database so far
        measured(10.0)
        assert merge.look(here) and not merge.look(here)
        files = FileClient(*pod.address)
        assert "key" not in [entry.path for entry in files.tree()]
        files.close()
        pod.stop()
        pod.start()
        measured(20.0)
        assert merge.look(here)
        assert [one.at for one in queries.profiles(here, JOB)] == [10.0, 20.0]
        (entry,) = queries.jobs(here)
        assert (entry.source, entry.directory) == (SOURCE, "")
    history.close()


def test_what_a_shared_brain_keeps_of_a_job_is_copied_and_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brain, at = Brain(tmp_path), time.time()  # what is old is removed
    make_private(brain.database.parent)
    with ConfigStore(brain.database) as store:
        for job in (JOB, "other-1"):
            store.put_job(JobEntry(id=job, name="ads", state="succeeded", created_at=at, started_at=at, ended_at=at))
            store.add_profile(ProfileRecord(job=job, at=at, seconds=1.0, samples_per_second=7.0, workers=1, servers=1))
            store.add_fit(FitRecord(job=job, at=at, kind=FIT_KINDS[0], error=0.0, windows=1, data={}))
        store.commit()
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod" / "key").write_text(JobKey.generate().text())
    for name, value in {
        KEY_FILE_VARIABLE: str(tmp_path / "pod" / "key"),
        "DLROVER_LITE_HOME": str(tmp_path / "pod" / "home"),
        "DLROVER_LITE_JOB": JOB,
        BRAIN_ADDRESS_VARIABLE: f"tcp://127.0.0.1:{brain.port}",
        BRAIN_KEY_VARIABLE: str(brain.key_file),
    }.items():
        monkeypatch.setenv(name, value)
    pod = Pod(tmp_path / "pod")
    history = PodHistory(lambda: pod.address)
    brain.start()
    try:
        until(brain.answers, "the brain")
        pod.start()
        with ConfigStore(tmp_path / "here.sqlite") as here:
            merge = JobMerge(history, JOB, SOURCE)
            assert merge.look(here) and not merge.look(here)
            assert [(one.id, one.source) for one in queries.jobs(here)] == [(JOB, SOURCE)]
            assert [one.at for one in queries.profiles(here, JOB)] == [at]
            assert [entry.id for entry, _ in queries.fitted_jobs(here, FIT_KINDS[0])] == [JOB]
        for ask in (queries.job_ids, queries.jobs, lambda history: queries.profiles(history, "other-1")):
            with pytest.raises(JobError, match=f"isn't about {JOB} alone"):
                ask(history)
        assert [entry.id for entry, _ in queries.fitted_jobs(history, FIT_KINDS[0])] == [JOB]
        assert brain.end() == 0
        with pytest.raises(JobError, match=f"The brain that {JOB} shares can't be asked"):
            queries.profiles(history, JOB)
    finally:
        history.close()
        while pod.processes:
            pod.stop()
        pod.address.connector.close()
        brain.close()


def test_where_no_pod_has_it_that_is_said(tmp_path: Path) -> None:
    def nowhere() -> Address:
        raise JobError("No pod of ads-1 runs so far that could be asked")

    with ConfigStore(tmp_path / "here.sqlite") as here, pytest.raises(JobError, match="No pod of ads-1"):
        JobMerge(PodHistory(nowhere), JOB, SOURCE).look(here)


def test_a_database_that_cant_be_read_is_said(pod: Pod) -> None:
    brain_database().write_text("no database, but long enough to be looked at as if it were one" * 100)
    history = PodHistory(lambda: pod.address)
    with pytest.raises(JobError, match=r"brain\.sqlite can't be read"):
        queries.jobs(history)
    history.close()
