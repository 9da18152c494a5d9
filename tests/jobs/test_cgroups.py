"""Ending and removing control groups, in real ones of each version that can be written here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.keeper.runtime_directories import (
    create_runtime_directory,
    record_cgroups,
    remove_runtime_directory,
    sweep_runtime,
)
from tests.backends.support import PATIENCE_SECONDS, until
from tests.jobs.test_runtime import me, swept
from tests.jobs.test_store import gone
from tests.limits.support import own_v1, own_v2

NAME = f"dlrover-lite-test-{os.getpid()}"
STARTS_OTHERS = """
import signal, subprocess, sys
for i in range(3):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=i > 0)
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture(params=["v1", "v2"])
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    made = (own_v1()[0].own if request.param == "v1" else own_v2()) / NAME
    made.mkdir()
    yield made
    cgroups.end([made])


@pytest.fixture
def processes(group: Path) -> Iterator[subprocess.Popen[str]]:
    """Four of them in a group below."""
    (group / "ps-0").mkdir()
    enter = f"open({str(group / 'ps-0' / 'cgroup.procs')!r}, 'w').write('0')\n"
    with subprocess.Popen([sys.executable, "-c", enter + STARTS_OTHERS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_members_include_those_of_groups_below(group: Path, processes: subprocess.Popen[str]) -> None:
    assert len(cgroups.members(group)) == 4
    assert processes.pid in cgroups.members(group)
    assert not cgroups.remove(group)


def test_kill_ends_all_processes_of_a_group(group: Path, processes: subprocess.Popen[str]) -> None:
    cgroups.kill(group)
    assert processes.wait(PATIENCE_SECONDS) == -9
    until(lambda: cgroups.remove(group), "removal")
    assert not group.exists()


def test_end_waits_until_the_group_is_gone(group: Path, processes: subprocess.Popen[str]) -> None:
    assert cgroups.end([group])
    assert not group.exists()
    assert cgroups.end([group])
    assert cgroups.remove(group)
    assert cgroups.members(group) == []


def test_a_sweep_ends_only_the_groups_of_killed_keepers(
    own_directories: Path, group: Path, processes: subprocess.Popen[str]
) -> None:
    directory = create_runtime_directory(Path("/nowhere/quick-01234567"), "dead", gone())
    record_cgroups(directory, [group / "other"])
    record_cgroups(directory, [group / "ps-0"])
    alive = create_runtime_directory(Path("/nowhere/quick-01234568"), "alive", me())
    (group / "ps-1").mkdir()
    record_cgroups(alive, [group / "ps-1"])
    assert swept(own_directories) == [directory]
    assert processes.wait(PATIENCE_SECONDS) == -9
    assert not directory.exists()
    assert [path.name for path in group.iterdir() if path.is_dir()] == ["ps-1"]
    remove_runtime_directory(alive)
    assert not (group / "ps-1").exists()


def test_a_group_that_cannot_be_removed_yet_is_swept_later(
    own_directories: Path, group: Path, processes: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = create_runtime_directory(Path("/nowhere/quick-01234567"), "dead", gone())
    record_cgroups(directory, [group])
    with monkeypatch.context() as patch:
        patch.setattr(cgroups, "end", lambda _: False)
        sweep_runtime()
    assert directory.exists()
    assert swept(own_directories) == [directory]
    assert not group.exists()
