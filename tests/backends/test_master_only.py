"""A keeper whose nodes run elsewhere, as in the pod of a job's master: it starts the master, and nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from dlrover_lite.client.handle import JobHandle
from dlrover_lite.master_process.__main__ import _listen
from dlrover_lite.transport.connector import Connector, read_key
from tests.backends.support import PATIENCE_SECONDS, assert_nothing_runs, cgroups_of, start, until


def keeper_of(handle: JobHandle) -> psutil.Process:
    identity = handle.job.record().keeper
    assert identity is not None
    return psutil.Process(identity.pid)


def master_of(handle: JobHandle) -> psutil.Process:
    until(lambda: "master is up" in handle.job.log("master").read_text(), "the master")
    (child,) = keeper_of(handle).children(recursive=True)
    return child


def test_only_a_master_is_started_and_stopped_and_it_is_told_where_to_listen(own_directories: Path) -> None:
    at = f"tcp://127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.1:7070"
    handle = start("idle", runs_nodes=False, transport="tcp", listen=at, advertised="tcp://job.ns.svc:7070")
    master_of(handle)
    record = handle.job.record()
    assert (record.listen, record.advertised) == (at, "tcp://job.ns.svc:7070")
    assert not list(Path(record.runtime_directory).glob("*.sock"))
    assert not cgroups_of(handle.job)
    with Connector(read_key(handle.job.key_file)) as connector:
        server = _listen(record, connector)
        assert server.endpoint == record.master_endpoint == at
        server.close()
    keeper_of(handle).send_signal(signal.SIGTERM)
    result = handle.wait(PATIENCE_SECONDS)
    assert (result.state, result.message) == ("stopped", "stopped by request")
    assert_nothing_runs(handle.job)
    assert list((own_directories / "r").iterdir()) == []


def test_a_master_without_nodes_here_that_is_killed_is_started_again() -> None:
    handle = start("idle", runs_nodes=False)
    first = master_of(handle)
    first.kill()
    until(lambda: (found := handle.job.record().master) is not None and found.pid != first.pid, "another master")
    handle.stop()
    assert handle.wait(PATIENCE_SECONDS).state == "stopped"
    assert_nothing_runs(handle.job)


def test_a_deaf_master_without_nodes_here_is_killed_after_its_grace() -> None:
    handle = start("deaf", runs_nodes=False, master_grace_seconds=0.3)
    master_of(handle)
    keeper_of(handle).send_signal(signal.SIGTERM)
    assert handle.wait(PATIENCE_SECONDS).state == "stopped"
    assert handle.job.record().master_exit_code == -signal.SIGKILL
    assert_nothing_runs(handle.job)
