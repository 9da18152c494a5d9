"""What is forked for tests looks, to others and to the kernel, as what is started for people."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlrover_lite.backends.keeper.options import KeeperOptions
from dlrover_lite.backends.local.jobs import launching
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.processes.identity import JOB_VARIABLE
from dlrover_lite.recipe.schema import Model, Recipe, SyntheticData
from tests.backends.support import assert_nothing_runs, launch_with, until
from tests.directories import own_directories
from tests.forked_keepers import Keepers

__all__ = ["own_directories"]

ENDLESS = Recipe(version=1, name="endless", model=Model(use="wide_deep"), data=SyntheticData(samples=1_000_000_000))
ENDS = ("--ready", "--tie")
"""Options whose values are numbers of descriptors."""


def processes_of(handle: JobHandle) -> list[psutil.Process]:
    """The keeper, the master and the template of a job whose template has forked nodes; none before."""
    record = handle.job.record()
    assert record.keeper is not None
    keeper = psutil.Process(record.keeper.pid)
    children = sorted(keeper.children(), key=psutil.Process.name)
    nodes = {process.name() for child in children for process in child.children()}
    return [keeper, *children] if {"dl:ps-0", "dl:worker-0"} <= nodes else []


def shown(process: psutil.Process, named: Callable[[str], str]) -> dict[str, Any]:
    """What can be seen of a process, with names for what differs from job to job."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    command = [re.sub(r'"channel":\d+', "", named(word)) for word in process.cmdline() if word]
    files = (named(str(link.readlink())).partition(":[")[0] for link in Path(f"/proc/{process.pid}/fd").iterdir())
    return {
        "name": process.name(),
        "command": [word for word, before in zip(command, ["", *command], strict=False) if before not in ENDS],
        "job": named(process.environ().get(JOB_VARIABLE, "")),
        "directory": process.cwd(),
        "signals": {name: status[name] for name in ("SigBlk", "SigIgn")},
        "leads its session": os.getsid(process.pid) == process.pid,
        "input, output": [named(str(Path(f"/proc/{process.pid}/fd/{number}").readlink())) for number in range(3)],
        "files": sorted(files) if process.name() == "dl:template" else [],
    }


def tree() -> list[dict[str, Any]]:
    """The processes of a job that has just begun. It is killed then: the kernel ends the others with the keeper."""
    handle = launch_with(KeeperOptions(), ENDLESS)
    found = until(lambda: processes_of(handle), "its nodes")
    name = {str(handle.job.directory): "JOB", handle.job.record().runtime_directory: "RUNTIME"}

    def named(text: str) -> str:
        for value, instead in name.items():
            text = text.replace(value, instead)
        return text

    seen = [shown(process, named) for process in found]
    found[0].kill()
    handle.wait(60)
    assert_nothing_runs(handle.job)
    return seen


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nothing is forked elsewhere")
def test_forked_processes_of_a_job_look_like_started_ones(
    keepers: Keepers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = tree()
    with monkeypatch.context() as patch:
        patch.setattr(launching, "_start_keeper", keepers.start)
        forked = tree()
    assert forked == started
