"""The brain's daemon, for real: found, started once, killed, followed, stopped; and nothing of it stays."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.local.jobs.local_jobs import create_job
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry
from dlrover_lite.brain.store.watch import Watch
from dlrover_lite.brain_server import brain_process, daemon
from dlrover_lite.brain_server.daemon import look_at
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.brain_server.history_client import BrainHistory
from dlrover_lite.client.handle import launch
from dlrover_lite.core.errors import BrainError, HistoryError, UsageError
from dlrover_lite.core.processes.identity import identify
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master_process.brain_restart import BrainRestart, start_process
from dlrover_lite.master_process.brain_start import find_daemon
from dlrover_lite.protocol.brain_messages import BrainStatus
from dlrover_lite.protocol.brain_mode import brain_mode
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.polling import wait_for_messages
from tests.backends.support import until
from tests.brain.asked import never, patient
from tests.brain.service_rig import PATIENCE, profile, registration
from tests.limits.support import own_v1, own_v2

RECIPE = "version: 1\nname: ads\nmodel: dcn\ndata: {format: synthetic, samples: 1000}\n"
ENSURE = """
import sys
from dlrover_lite.brain_server import brain_process
sys.stdin.readline()
brain = brain_process.ensure()
print(brain.pid, int(brain.started), flush=True)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    brain_process.stop(kill=True)


def runtime_directories() -> list[Path]:
    return list((Path(os.environ["XDG_RUNTIME_DIR"]) / "dlrover-lite").glob("brain*"))


def test_brain_is_started_found_and_stopped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "secret")
    brain = brain_process.ensure(idle_seconds=90.0)
    assert (
        brain.started
        and brain_process.announcement(brain) == f"started the brain (pid {brain.pid}, idle exit after 1.5 min)"
    )
    again = brain_process.ensure()
    assert (again.pid, again.started, brain_process.announcement(again)) == (brain.pid, False, "")
    process = psutil.Process(brain.pid)
    assert "OF_THE_CALLER" not in process.environ() and process.cwd() == "/"
    assert process.ppid() != os.getpid() and os.getsid(brain.pid) != os.getsid(0)
    now = brain_process.ask_status()
    assert now is not None and (now.pid, now.jobs, now.embedded) == (brain.pid, [], False)
    assert (home / "state" / "brain" / "brain.sqlite").exists()
    assert brain_process.stop() == brain.pid
    assert identify(brain.pid) is None
    assert brain_process.stop() is None and brain_process.ask_status() is None
    assert runtime_directories() == []
    assert "ends: stopped by request" in BrainFiles().log.read_text()


def test_a_brain_answers_about_the_history_until_it_ends(home: Path) -> None:
    files = BrainFiles()
    brain_process.ensure()
    with ConfigStore(files.database) as store:
        store.put_job(JobEntry(id="ads-1", name="ads", state="succeeded", created_at=time.time(), ended_at=time.time()))
        store.commit()
    with BrainHistory(files, read=never) as history, patient():
        assert queries.job_ids(history) == ["ads-1"]
        watch = Watch(history)
        assert [job.id for job in watch.look().jobs] == ["ads-1"] and watch.look().empty
        os.kill(brain_process.ask_status().pid, signal.SIGKILL)  # type: ignore[union-attr]
        until(lambda: not files.lives(), "the brain to end")
        with pytest.raises(AssertionError, match="was read"):
            watch.look()
        brain_process.ensure()
        assert watch.look().anew and watch.look().empty


def test_starting_brains_at_once_gives_one_brain() -> None:
    starters = [
        subprocess.Popen([sys.executable, "-c", ENSURE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("\n")
        starter.stdin.flush()
    said = [starter.communicate(timeout=100)[0].split() for starter in starters]
    assert len({pid for pid, _ in said}) == 1
    assert sum(int(started) for _, started in said) == 1


def serve(link: BrainLink) -> None:
    """Let the link take a step, and wait for the brain's reply for a moment."""
    link._serve()
    if isinstance(link.client, Client):
        wait_for_messages([link.client.socket], 0.1)


def test_a_job_whose_brain_is_killed_starts_another_brain() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    said: list[str] = []
    first = brain_process.ensure()
    restart = BrainRestart(BrainFiles(), find_daemon, start=start_process, say=said.append, clock=time.monotonic)
    link = BrainLink(
        registration(),
        restart.find,
        connector=Connector(context=context),
        say=said.append,
        clock=time.monotonic,
        wall_clock=time.time,
    )

    def until_open() -> None:
        end = time.monotonic() + 3 * PATIENCE
        while link.state != "open":
            assert time.monotonic() < end, said
            serve(link)

    try:
        until_open()
        os.kill(first.pid, signal.SIGKILL)
        assert wait_for_end_of(first.pid)
        while link.state == "open":
            serve(link)
        until_open()
        now = brain_process.ask_status()
        assert now is not None and now.pid != first.pid
        assert [one.job for one in now.jobs] == ["ads-1"]
        assert said[0] == "the brain is lost (none runs): training goes on without its advice"
        assert "the brain is there" in said
        end = time.monotonic() + PATIENCE
        while not any(line.startswith(f"the brain had died: started the brain (pid {now.pid}") for line in said):
            assert time.monotonic() < end, said  # who has started it may end a moment after it is found
            serve(link)
    finally:
        link.close()
        context.destroy(linger=0)


START_FROM = """
import os, sys
from pathlib import Path
from dlrover_lite.master_process.brain_restart import start_process

(Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
starting = start_process()
while (end := starting.ended()) is None:
    pass
print(end[1])
"""
"""What the master does, in the control group that is named."""
SYSTEMD_RUN = """#!/bin/sh
mkdir -p "$SCOPE" && echo $$ > "$SCOPE/cgroup.procs" || exit 1
while [ "$1" != -- ]; do shift; done; shift
exec "$@"
"""


def groups_of(pid: int) -> dict[str, str]:
    """By controllers; version 2 has no name."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}


def remove_group(path: Path) -> None:
    """As soon as the kernel lets it: who was in it may have ended a moment ago."""
    assert cgroups.end([path]), path


@pytest.fixture
def divided_group() -> Iterator[Path]:
    """A control group of version 2 as a keeper divides it, without controllers; its name is this run's."""
    group = own_v2() / f"brain-{uuid.uuid4().hex[:8]}.scope"
    (group / "keeper").mkdir(parents=True)
    yield group
    remove_group(group)


def test_a_brain_started_by_a_master_is_outside_the_jobs_control_group(
    tmp_path: Path, divided_group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it would keep the job's group from being removed, and end with it. systemd is played by a script that makes a real group."""
    scope = divided_group.with_name(f"of-its-own-{divided_group.name}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "systemd-run").write_text(SYSTEMD_RUN.replace("$SCOPE", str(scope)))
    (tmp_path / "bin" / "systemd-run").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", START_FROM, str(divided_group / "keeper")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith("started the brain"), done.stdout + done.stderr
        brain = brain_process.ask_status()
        assert brain is not None and groups_of(brain.pid)[""].endswith(scope.name)
        assert cgroups.end([divided_group / "keeper"]), "nothing holds the job's group"
        assert brain_process.stop() == brain.pid
    finally:
        brain_process.stop(kill=True)
        if scope.exists():
            remove_group(scope)


def asked() -> BrainStatus | None:
    """None while one is just starting, or has just been killed."""
    try:
        return brain_process.ask_status()
    except BrainError:
        return None


def test_a_brain_started_under_cgroup_v1_is_in_the_keepers_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_v1()
    monkeypatch.setenv("DLROVER_LITE_BRAIN", "daemon")
    first = brain_process.ensure()
    recipe = parse_recipe(
        {
            "version": 1,
            "name": "ads",
            "model": "dcn",
            "data": {"format": "synthetic", "samples": 100_000_000},
            "resources": {role: {"count": 1, "cores": 0.5, "memory": "512MiB"} for role in ("ps", "worker")},
            "export": {"format": "none"},
            "directory": str(tmp_path),
        }
    )
    handle = launch(recipe)
    try:
        end = time.monotonic() + 6 * PATIENCE
        while (brain := asked()) is None or not brain.jobs:
            assert time.monotonic() < end
            time.sleep(0.05)
        os.kill(first.pid, signal.SIGKILL)
        assert wait_for_end_of(first.pid)
        while (brain := asked()) is None:
            assert time.monotonic() < end, handle.job.last_log_lines("master")
            time.sleep(0.05)
        keeper = handle.job.record().keeper
        assert keeper is not None and brain.pid != first.pid
        assert groups_of(brain.pid) == groups_of(keeper.pid)
        assert not any("dlrover-lite" in path for path in groups_of(brain.pid).values())
    finally:
        handle.stop(kill=True)
        handle.wait(60)


def test_a_job_outlives_its_brain_and_reports_to_the_next() -> None:
    """kill -9 between reports: all that was answered is there, and what wasn't is told to the brain that comes next."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    said: list[str] = []
    first = brain_process.ensure()
    link = BrainLink(
        registration(),
        find_daemon,
        connector=Connector(context=context),
        say=said.append,
        clock=time.monotonic,
        wall_clock=time.time,
    )

    def until_told() -> None:
        end = time.monotonic() + PATIENCE
        while link.state != "open" or link.unsent or link._asked:
            assert time.monotonic() < end, said
            serve(link)

    try:
        for at in range(5):
            link.keep(profile(float(at)))
        until_told()
        os.kill(first.pid, signal.SIGKILL)
        assert wait_for_end_of(first.pid)
        with ConfigStore(BrainFiles().database) as store:
            assert len(queries.profiles(store, "ads-1")) == 5
            assert store.db.conn.execute("pragma integrity_check").fetchone()[0] == "ok"
        assert not BrainFiles().lives()
        link.keep(profile(5.0))
        link._next_at = 0.0
        end = time.monotonic() + PATIENCE
        while not said:
            assert time.monotonic() < end
            serve(link)
        assert said == ["the brain is lost (none runs): training goes on without its advice"]
        second = brain_process.ensure()
        assert second.started and len(runtime_directories()) == 1
        link._next_at = 0.0
        until_told()
        assert said[1:] == ["the brain is there"]
        now = brain_process.ask_status()
        assert now is not None and [one.job for one in now.jobs] == ["ads-1"]
        with ConfigStore(BrainFiles().database) as store:
            assert [one.at for one in queries.profiles(store, "ads-1")] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    finally:
        link.close()
        context.destroy(linger=0)


def wait_for_end_of(pid: int) -> bool:
    """With all its threads: of one that was just killed, the first may have ended before the others."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], PATIENCE)[0])
    finally:
        os.close(pidfd)


def test_a_newer_brain_replaces_an_older_one_and_never_the_reverse() -> None:
    old = brain_process.ensure(version="0.0.9")
    new = brain_process.ensure(version="0.10.0")
    assert new.started and new.replaced == "0.0.9" and new.pid != old.pid
    assert f"in place of version 0.0.9 (pid {new.pid}" in brain_process.announcement(new)
    assert identify(old.pid) is None
    assert brain_process.ensure(version="0.1.0")[:2] == (new.pid, "0.10.0")
    assert "hands over to version 0.10.0" in BrainFiles().log.read_text()


def test_brain_ends_by_itself_when_idle() -> None:
    brain = brain_process.ensure(idle_seconds=0.01)
    assert wait_for_end_of(brain.pid)
    assert runtime_directories() == []
    assert "ends: no job for" in BrainFiles().log.read_text()


def test_brain_ends_when_its_directory_is_removed(home: Path) -> None:
    brain = brain_process.ensure()
    shutil.rmtree(home)
    assert wait_for_end_of(brain.pid)
    assert runtime_directories() == []


def test_a_database_that_can_not_be_used_stops_no_job() -> None:
    files = BrainFiles()
    files.make()
    files.database.write_bytes(b"no database at all" * 100)
    with pytest.raises(BrainError, match="damaged or no database") as error:
        brain_process.ensure()
    assert "Move it away" in error.value.hint
    said: list[str] = []
    brain_process.begin("daemon", said.append)
    assert len(said) == 1 and "damaged or no database" in said[0] and "runs without its advice" in said[0]
    assert not files.lives() and runtime_directories() == []


def test_a_hanging_brain_is_reported_and_can_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    brain = brain_process.ensure()
    os.kill(brain.pid, signal.SIGSTOP)
    monkeypatch.setattr(brain_process, "_ANSWER_SECONDS", 0.3)
    with pytest.raises(BrainError, match="did not answer") as error:
        brain_process.ensure()
    assert "brain stop --kill" in error.value.hint
    assert brain_process.stop(kill=True) == brain.pid
    assert runtime_directories() == []


def test_an_error_of_a_brain_that_listens_is_in_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def serve(_: Any, *, ready: Any, **__: Any) -> str:
        ready(daemon.DaemonReady(1))
        raise HistoryError("the disk is full")

    for name, value in {"serve": serve, "_say": said.append, "_cut_loose": list, "stopped_by_signals": list}.items():
        monkeypatch.setattr(daemon, name, value)
    ends, lock = os.pipe(), os.open("/", os.O_RDONLY)
    options = daemon.DaemonOptions(ready=ends[1], starting=lock)
    assert daemon.main([msgspec.json.encode(options).decode()]) == 1
    with os.fdopen(ends[0], "rb") as told:
        assert msgspec.json.decode(told.read(), type=daemon.DaemonReady) == daemon.DaemonReady(1)
    assert said[1:] == ["the disk is full"]


def test_brain_serve_runs_in_the_foreground() -> None:
    command = [sys.executable, "-m", "dlrover_lite", "brain", "serve"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == f"the brain listens (pid {process.pid})\n"
        assert brain_process.ensure().pid == process.pid
        second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        assert second.returncode == 1 and "A brain runs already" in second.stderr
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().endswith("the brain has ended: stopped by a signal\n")
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()
    assert runtime_directories() == []


# --- without a process ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variable", "mode"), [("", "daemon"), ("embedded", "embedded"), ("off", "off")])
def test_brain_mode_follows_the_environment_variable(monkeypatch: pytest.MonkeyPatch, variable: str, mode: str) -> None:
    monkeypatch.setenv("DLROVER_LITE_BRAIN", variable)
    assert brain_mode() == mode
    assert brain_mode("embedded") == "embedded"
    monkeypatch.setenv("DLROVER_LITE_BRAIN", "on")
    with pytest.raises(UsageError, match="'on'"):
        brain_mode()


def test_how_a_job_ended_is_read_from_its_files(tmp_path: Path) -> None:
    job = create_job(parse_recipe(RECIPE))
    assert look_at(str(job.directory)) is None  # we run it
    assert look_at("") is None
    job.write_result(Result("failed", 5.0, "no data", status={"samples": 3}))
    ended = look_at(str(job.directory))
    assert (ended.state, ended.at, ended.message, ended.status) == ("failed", 5.0, "no data", {"samples": 3})
    gone = look_at(str(tmp_path / "removed"))
    assert (gone.state, "removed" in gone.message) == ("lost", True)


def test_a_job_whose_keeper_was_killed_is_lost() -> None:
    job = create_job(parse_recipe(RECIPE))
    record = json.loads((job.directory / "job.json").read_text())
    record["launcher"]["pid"] = 2**22 + 1
    (job.directory / "job.json").write_text(json.dumps(record))
    job.write_status({"samples": 10, "elapsed_seconds": 4.0})
    ended = look_at(str(Job(job.directory).directory))
    assert (ended.state, ended.status["samples"], ended.at) == ("lost", 10, record["created_at"] + 4.0)
