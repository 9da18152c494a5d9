"""The jobs of ``bench/instability.py``: one whose parameter servers are the bottleneck, one whose workers are; and a slow host."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _plan_job import keeper_options, recipe_of, resources_of, running, start
from _slow_host import pid_of, slow_down
from _train_worker import BATCH_SIZE, BATCHES, FEATURES, make_batches
from migrate import Watch

from dlrover_lite.brain.planning.plan_grid import Candidate

__all__ = ["CASES", "Case", "How", "Run", "prepare", "rate_of", "run"]

How = Literal["undisturbed", "none", "restart", "undisturbed, ours", "ours"]
"""Nothing happens; nothing is done about it; stopped, and begun again elsewhere from a checkpoint. With the brain: nothing happens; and it
does what it does."""
WITH_BRAIN = ("undisturbed, ours", "ours")
SLOWED_AT = 0.3
"""Of the samples."""
SLOWED_TO = 0.25
PILOT_SECONDS = 8.0
NEVER = 1e9
"""Seconds between checkpoints: there is the last one, if any."""
PACE_SECONDS, OVER_SECONDS = 15.0, 30.0
"""A job's own pace is that before its host turns slow and, so long, from so many seconds later on, when what was done about it is over."""


@dataclass(frozen=True)
class Case:
    name: str
    plan: Candidate
    slow: str
    """The node whose host turns slow."""
    options: Mapping[str, Any]
    """Of the model."""
    ids: int
    """Of a field, evenly drawn; 0: as ``_train_worker`` has them."""

    @property
    def cores(self) -> float:
        """Of the node, at first."""
        return self.plan.ps_cores if self.slow.startswith("ps") else self.plan.worker_cores


CASES = {
    "hot_ps": Case("hot_ps", Candidate(1, 2, 1.0, 0.2), "ps-0", {"embedding_dim": 32, "hidden": [32]}, 4096),
    "straggler": Case(
        "straggler", Candidate(3, 1, 0.35, 0.45), "worker-0", {"embedding_dim": 16, "hidden": [256, 128]}, 0
    ),
}
"""Many rows and little to compute with them: the PS have all they can do. And the other way around."""


@dataclass
class Run:
    how: How
    seconds: float
    """From the launch to the end."""
    acted_after: float | None = None
    """Seconds from the slowing down until the first thing was done."""
    story: list[str] = field(default_factory=list)
    """What was done, with the seconds since the slowing down, or since the beginning."""
    phases: dict[str, float] = field(default_factory=dict)
    """Of a restart, in seconds."""
    lost_nearby: float | None = None
    """Seconds that were lost by its own pace before and after, however fast the machine is at the time of other runs; None: that can't be
    told."""


class Progress:
    """Samples of a job that is looked at now and then."""

    def __init__(self) -> None:
        self.at: list[float] = []
        """Seconds since the epoch."""
        self.samples: list[int] = []

    def add(self, status: Any) -> None:
        self.at.append(time.time())
        self.samples.append(status.samples)

    def lost(self, since: float) -> float | None:
        """Seconds, of the first ``OVER_SECONDS`` from then on."""
        marks = since + np.array([-PACE_SECONDS, 0.0, OVER_SECONDS, OVER_SECONDS + PACE_SECONDS])
        if len(self.at) < 2 or marks[0] < self.at[0] or marks[-1] > self.at[-1]:
            return None
        before, meanwhile, after = np.diff(np.interp(marks, self.at, self.samples))
        return float(OVER_SECONDS - meanwhile / ((before + after) / 2 / PACE_SECONDS))


def prepare(case: Case, home: Path) -> Path:
    """A directory for its jobs, with what its workers read."""
    directory = home / case.name
    directory.mkdir()
    batches = directory / "batches.npz"
    if case.ids == 0:
        make_batches(batches)
        return directory
    random = np.random.default_rng(0)
    np.savez(
        batches,
        labels=(random.random((BATCHES, BATCH_SIZE)) < 0.25).astype(np.float32),
        dense=random.normal(size=(BATCHES, BATCH_SIZE, 13)).astype(np.float32),
        ids=random.integers(0, case.ids, (BATCHES, FEATURES, BATCH_SIZE)).astype(np.uint64),
    )
    return directory


def _recipe(case: Case, directory: Path, samples: int, *, ours: bool) -> dict[str, Any]:
    """The plan is fixed, so that ours is no other one from the beginning: the brain has the nodes' health to see to."""
    return recipe_of(
        directory,
        f"bench-{case.name.replace('_', '-')}",
        model={"use": "wide_deep", "options": dict(case.options)},
        data={"samples": samples},
        resources=resources_of(case.plan),
        autoscale="on" if ours else "off",
        checkpoint={"every_seconds": NEVER},
    )


def rate_of(case: Case, directory: Path) -> float:
    """Samples/s of its plan."""
    handle = start(_recipe(case, directory, 10**9, ours=False), keeper_options(from_memory=True, own_cores=True))
    watch = Watch(handle)
    try:
        watch.until(lambda status: status.samples > 40 * BATCH_SIZE, "it trained")
        began, before = time.monotonic(), handle.status().samples
        time.sleep(PILOT_SECONDS)
        return float((handle.status().samples - before) / (time.monotonic() - began))
    finally:
        handle.stop(now=True)
        handle.wait()


def run(case: Case, directory: Path, samples: int, how: How, *, noticed_after: float = 0.0) -> Run:
    """``noticed_after``: a restart begins so many seconds after the host has turned slow."""
    from dlrover_lite.brain_server import brain_process

    ours = how in WITH_BRAIN
    options = keeper_options(from_memory=True, brain="daemon" if ours else "off", own_cores=True)
    recipe = _recipe(case, directory, samples, ours=ours)
    try:
        if ours:
            brain_process.ensure()  # its start is no part of what an intervention costs
        began = time.monotonic()
        handle = start(recipe, options)
        try:
            if how.startswith("undisturbed"):
                return _ended(how, began, handle, time.time(), Progress())
            progress = Progress()
            Patient(handle, progress).until(lambda status: status.samples >= SLOWED_AT * samples, "a part was trained")
            slowed = _slow_down(handle, case.slow)
            phases: dict[str, float] = {}
            if how == "restart":
                handle, phases = _restarted(handle, options, noticed_after, progress)
            found = _ended(how, began, handle, slowed, progress)
            found.phases, found.lost_nearby = phases, None if how == "none" else progress.lost(slowed)
            return found
        except BaseException:
            handle.stop(kill=True)
            handle.wait()
            raise
    finally:
        if ours:
            brain_process.stop()


def _slow_down(handle: Any, name: str) -> float:
    """When: seconds since the epoch."""
    keeper = handle.job.record().keeper
    node = next(node for node in handle.status().nodes if node.id == name)
    slow_down(pid_of(keeper.pid, name), node.cores * SLOWED_TO)
    return time.time()


class Patient(Watch):
    """A look now and then: it lasts."""

    def __init__(self, handle: Any, progress: Progress) -> None:
        super().__init__(handle)
        self.progress = progress

    def until(self, done: Any, what: str) -> float:
        while True:
            with suppress(TimeoutError):
                raise SystemExit(f"the job has ended before {what}: {self.handle.wait(0.2)}")
            status = self.handle.status()
            self.progress.add(status)
            if done(status):
                return time.monotonic()


def _ended(how: How, began: float, handle: Any, since: float, progress: Progress) -> Run:
    """``since``: when something happened, or could have."""
    while True:
        with suppress(TimeoutError):
            result = handle.wait(1.0)
            break
        progress.add(handle.status())
    seconds = time.monotonic() - began
    if not result.ok:
        raise SystemExit(f"{how}: {result.message}\n{result.hint}\n{result.traceback}")
    said = [(entry.at - since, entry.text) for entry in handle.story("master").entries if "decision" in entry.text]
    after = [at for at, text in said if at >= 0 and "carried out" in text]
    return Run(how, seconds, min(after, default=None), [f"{at:+.1f} s: {text}" for at, text in said])


def _restarted(handle: Any, options: Any, noticed_after: float, progress: Progress) -> tuple[Any, dict[str, float]]:
    """As one does without anything better: stop it, with a last checkpoint, and go on with new nodes."""
    from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs
    from dlrover_lite.client.handle import resume
    from dlrover_lite.jobs.backend import RunOptions

    with suppress(TimeoutError):
        raise SystemExit(f"the job has ended before it could be restarted: {handle.wait(noticed_after)}")
    marks = [time.monotonic()]
    handle.stop()
    result = handle.wait()
    if result.state != "stopped":
        raise SystemExit(f"the job has {result.state}: {result.message}")
    done = int((result.status or {}).get("samples", 0))
    marks.append(time.monotonic())
    handle = resume(handle.id, options=RunOptions(options.brain), backend=LocalJobs(options))
    marks.append(time.monotonic())
    watch = Patient(handle, progress)
    marks.append(
        watch.until(lambda status: all(node.state == "up" for node in running(status)) and running(status), "up")
    )
    marks.append(watch.until(lambda status: status.samples > done, "it went on"))
    names = ("last checkpoint and stop", "keeper", "master and nodes", "restore until the first minibatch")
    return handle, {name: after - before for name, (before, after) in zip(names, pairwise(marks), strict=True)}
