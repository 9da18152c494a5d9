"""When a job's keeper is started through systemd-run, played by a script."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dlrover_lite.backends.host.mounts import Hierarchy
from dlrover_lite.backends.limits.systemd_scope import outside_jobs, scoped

COMMAND = ["sh", "-c", "echo $$ $IN_A_SCOPE"]
ALL = frozenset(("cpu", "memory"))


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hierarchy:
    """A person who isn't root, in a session of a machine with cgroup v2 and systemd."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    mount, own = tmp_path / "mount", tmp_path / "mount" / "session.scope"
    own.mkdir(parents=True)
    for group in (mount, own):
        (group / "cgroup.controllers").write_text("cpu io memory pids\n")
        (group / "cgroup.subtree_control").write_text("\n")
        (group / "cgroup.procs").write_text("1\n")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return Hierarchy(2, ALL, mount, own)


def systemd_run(
    session: Hierarchy, does: str = 'while [ "$1" != -- ]; do shift; done; shift; IN_A_SCOPE=yes exec "$@"'
) -> str:
    path = session.mount.parent / "bin" / "systemd-run"
    path.write_text(f"#!/bin/sh\nexport IN_A_SCOPE\n{does}\n")
    path.chmod(0o755)
    return str(path)


def test_systemd_run_becomes_the_started_command(session: Hierarchy) -> None:
    path = systemd_run(session)
    command = scoped(COMMAND, [session])
    assert command == [path, "--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "--", *COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate()[0].split() == [str(process.pid), "yes"]


@pytest.mark.parametrize("does", ["exit 1", "echo Failed to connect to bus >&2; exit 1"])
def test_command_starts_without_scope_when_systemd_cannot_be_reached(session: Hierarchy, does: str) -> None:
    systemd_run(session, does)
    assert scoped(COMMAND, [session]) == COMMAND


def test_command_starts_without_scope_where_there_is_no_systemd(
    session: Hierarchy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(session.mount.parent / "bin"))
    assert scoped(COMMAND, [session]) == COMMAND


def test_root_needs_no_scope(session: Hierarchy, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd_run(session)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert scoped(COMMAND, [session]) == COMMAND


def test_a_group_that_can_be_divided_already_needs_no_scope(session: Hierarchy) -> None:
    systemd_run(session)
    (session.mount / "cgroup.subtree_control").write_text("cpu memory\n")
    assert scoped(COMMAND, [session]) == COMMAND


def test_no_scope_without_the_controllers(session: Hierarchy) -> None:
    systemd_run(session)
    (session.mount / "cgroup.controllers").write_text("\n")
    assert scoped(COMMAND, [session]) == COMMAND
    assert scoped(COMMAND, []) == COMMAND


def test_a_process_to_outlive_its_job_gets_a_scope_of_its_own(session: Hierarchy) -> None:
    path = systemd_run(session)
    in_a_job = Hierarchy(2, ALL, session.mount, session.own / "keeper")
    command = outside_jobs(COMMAND, [in_a_job])
    assert command == [path, "--user", "--scope", "--quiet", "--collect", "--", *COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate()[0].split() == [str(process.pid), "yes"]
    v1 = Hierarchy(1, ALL, session.mount, session.own)
    for found in ([session], [v1], []):  # whoever is in none of a job's groups stays where he is
        assert outside_jobs(COMMAND, found) == COMMAND


def test_root_asks_the_systemd_of_the_machine(session: Hierarchy, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd_run(session)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    in_a_job = Hierarchy(2, ALL, session.mount, session.own / "keeper")
    assert outside_jobs(COMMAND, [in_a_job])[1:3] == ["--scope", "--quiet"]


def test_a_process_to_outlive_its_job_stays_in_it_without_systemd(session: Hierarchy) -> None:
    systemd_run(session, "exit 1")
    assert outside_jobs(COMMAND, [Hierarchy(2, ALL, session.mount, session.own / "keeper")]) == COMMAND
