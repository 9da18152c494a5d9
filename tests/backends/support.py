"""Jobs whose master and nodes are scripts, in directories of their own; and looking for what they leave."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from dlrover_lite.backends.host.mounts import hierarchies
from dlrover_lite.backends.keeper.options import KeeperOptions
from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs
from dlrover_lite.client.handle import JobHandle, launch
from dlrover_lite.jobs.backend import RunOptions
from dlrover_lite.jobs.store import Job
from dlrover_lite.recipe.schema import Model, Recipe, SyntheticData

HERE = Path(__file__).parent
PATIENCE_SECONDS = 100.0
"""With things that come by themselves, on a machine that has much else to do."""
NODES = "tests.backends.scripted_nodes"


def recipe(name: str = "scripted", **sections: Any) -> Recipe:
    return Recipe(version=1, name=name, model=Model(use="wide_deep"), data=SyntheticData(samples=1), **sections)


def options(*master: str, **changes: Any) -> KeeperOptions:
    return KeeperOptions(
        **{
            "master": [sys.executable, str(HERE / "scripted_master.py"), *master],
            "entries": {"worker": f"{NODES}:main", "ps": f"{NODES}:main"},
            "imports": {},
            "node_grace_seconds": 0.3,
            **changes,
        }
    )


def start(*master: str, detach: bool = False, name: str = "scripted", **changes: Any) -> JobHandle:
    return launch_with(options(*master, **changes), recipe(name), detach=detach)


def launch_with(keeper: KeeperOptions, recipe: Recipe, **more: Any) -> JobHandle:
    """Launch a job whose keeper runs it so."""
    run = RunOptions(keeper.brain, keeper.transport)
    return launch(recipe, options=run, backend=LocalJobs(keeper), **more)


def processes_of(job: Job) -> list[psutil.Process]:
    """Every process that carries the job's directory in its command: keeper, master, template, nodes, their children."""
    found = []
    for process in psutil.process_iter():
        try:
            arguments = process.cmdline()
        except psutil.Error:  # ended meanwhile, or another user's
            continue
        if str(job.directory) in arguments or any(f'"{job.directory}"' in argument for argument in arguments):
            found.append(process)
    return found


def cgroups_of(job: Job) -> list[Path]:
    """The control groups of the job that can be seen from here. Ids are times: a job that another process created in the same millisecond,
    with directories of its own, has the same one, and its keeper another pid."""
    name = f"dlrover-lite-{job.short_id}-*"
    found = [path for hierarchy in hierarchies() for group in hierarchy.up() for path in group.glob(name)]
    return [path for path in found if not _is_of_another(job, int(path.name.rpartition("-")[2])) and path.exists()]


def _is_of_another(job: Job, keeper: int) -> bool:
    try:
        return str(job.directory) not in psutil.Process(keeper).cmdline()
    except psutil.Error:  # it has ended
        return False


def until(condition: Callable[[], Any], what: str, timeout_seconds: float = PATIENCE_SECONDS) -> Any:
    """For things in other processes that nothing announces, as a line in a log. What is dear to look at, as all processes are, is looked
    at less often: it would take the core from what is waited for."""
    end = time.monotonic() + timeout_seconds
    while True:
        began = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        assert now < end, f"{what}: not within {timeout_seconds:g} s"
        time.sleep(min(0.1, max(0.01, 3 * (now - began))))


def assert_nothing_runs(job: Job) -> None:
    _, alive = psutil.wait_procs(processes_of(job), timeout=20)
    lines = [f"{process.pid} {process.name()} {process.cmdline()[:6]}" for process in alive]
    for process in alive:
        process.kill()
    assert not lines
    assert not cgroups_of(job)
