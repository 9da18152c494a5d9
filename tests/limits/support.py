"""Processes to put into fences, and trees of files that stand for mounted control groups."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.host.mounts import Hierarchy, hierarchies, unified, with_controller
from dlrover_lite.backends.limits import cgroup, cgroup_v2
from dlrover_lite.backends.limits.base import Enter

ENTER = """
import sys
from pathlib import Path
import msgspec
from dlrover_lite.backends.limits.base import Enter
from dlrover_lite.backends.limits.join_cgroup import enter_fence

enter_fence(msgspec.json.decode(sys.argv[1], type=Enter))
"""
STAY = "print('ready', flush=True); sys.stdin.read()"


@contextmanager
def process_within(enter: Enter, code: str = STAY, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has entered and then runs ``code``; yields once it has printed a line."""
    import msgspec

    command = [sys.executable, "-c", f"{ENTER}\n{code}", msgspec.json.encode(enter).decode()]
    process = subprocess.Popen(  # type: ignore[call-overload]
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    )
    with process:
        try:
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def nothing(_groups: list[Path]) -> None:
    """To be told of the groups."""


def own_v1() -> list[Hierarchy]:
    """The real hierarchies of version 1; skips the test where no groups can be made in them."""
    found = hierarchies()
    for controller in ("cpu", "cpuacct", "memory"):
        hierarchy = with_controller(found, controller)
        if hierarchy is None:
            pytest.skip(f"no {controller} controller of cgroup v1 is mounted here")
        if not os.access(hierarchy.own, os.W_OK):
            pytest.skip(f"{hierarchy.own} can't be written by this user")
    return found


def own_v2() -> Path:
    """A real group of version 2 in which groups can be made, with or without controllers; skips the test where there is none."""
    hierarchy = unified(hierarchies())
    if hierarchy is None:
        pytest.skip("cgroup v2 is not mounted here")
    if not os.access(hierarchy.own, os.W_OK):
        pytest.skip(f"{hierarchy.own} can't be written by this user")
    return hierarchy.own


FILES = {
    "cgroup.procs": "",
    "cgroup.controllers": "cpu io memory pids\n",
    "cgroup.subtree_control": "",
    "cgroup.kill": "",
    "cpu.max": "max 100000\n",
    "cpu.weight": "100\n",
    "cpu.stat": "usage_usec 0\nuser_usec 0\nthrottled_usec 0\n",
    "memory.current": "0\n",
    "memory.peak": "0\n",
    "memory.max": "max\n",
    "memory.swap.max": "max\n",
    "memory.oom.group": "0\n",
    "memory.stat": "anon 0\ninactive_file 0\nshmem 0\n",
    "memory.events": "low 0\noom 0\noom_kill 0\n",
    # Version 1
    "cpu.shares": "1024\n",
    "cpu.cfs_period_us": "100000\n",
    "cpu.cfs_quota_us": "-1\n",
    "cpuacct.usage": "0\n",
    "memory.usage_in_bytes": "0\n",
    "memory.max_usage_in_bytes": "0\n",
    "memory.limit_in_bytes": f"{1 << 62}\n",
    "memory.memsw.limit_in_bytes": f"{1 << 62}\n",
    "memory.swappiness": "60\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
}


class Tree:
    """A directory that stands for a mount: groups made in it get their files, as in a mounted one."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, files: dict[str, str] | None = None) -> None:
        self.root = root
        self.files = dict(FILES if files is None else files)
        self.make(root)
        for module in (cgroup, cgroup_v2):
            patch.setattr(module, "make_group", self.make)
        patch.setattr(cgroups, "remove", self.remove)

    def make(self, path: Path) -> None:
        path.mkdir()
        for name, text in self.files.items():
            (path / name).write_text(text)

    def remove(self, path: Path) -> bool:
        shutil.rmtree(path, ignore_errors=True)
        return True

    def hierarchy(self, own: Path | None = None, version: int = 2) -> Hierarchy:
        names = ("cpu", "io", "memory", "pids") if version == 2 else ("cpu", "cpuacct", "memory")
        return Hierarchy(version, frozenset(names), self.root, own or self.root)
