"""The jobs of ``bench/instability.py``: one whose parameter servers are the bottleneck, one whose workers are; and a slow host."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
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

How = Literal["none", "ours", "restart"]
"""What is done about a slow host: nothing; what the brain does; stopped, and begun again elsewhere from a checkpoint."""
SLOWED_AT = 0.3
"""Of the samples."""
SLOWED_TO = 0.25
PILOT_SECONDS = 8.0
NEVER = 1e9
"""Seconds between checkpoints: there is the last one, if any."""
ALL_SAMPLES = 4
"""Samples of a job, over those that are measured: when a job with nothing but a PS at a quarter of its pace has trained on these, its twin
has trained on 3.1 times as many."""
LOOK_SECONDS = 0.2
"""Between two looks at both jobs."""
MOST_SECONDS = 1200.0
"""Longest time that something is waited for: then it doesn't come any more."""
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
    "hot_ps": Case("hot_ps", Candidate(1, 2, 0.5, 0.15), "ps-0", {"embedding_dim": 32, "hidden": [32]}, 4096),
    "straggler": Case(
        "straggler", Candidate(3, 1, 0.175, 0.225), "worker-0", {"embedding_dim": 16, "hidden": [256, 128]}, 0
    ),
}
"""Many rows and little to compute with them: the PS have all they can do. And the other way around."""


@dataclass
class Run:
    """What came of a job whose host turned slow, beside its twin."""

    how: How
    seconds: float
    """From its launch until the last sample that counts was trained."""
    lost: float
    """Seconds that it took longer for the samples left when its host turned slow than its twin, from that moment on, took for as many."""
    acted_after: float | None = None
    """Seconds from the slowing down until the first thing was done."""
    story: list[str] = field(default_factory=list)
    """What was done, with the seconds since the slowing down."""
    phases: dict[str, float] = field(default_factory=dict)
    """Of a restart, in seconds."""
    lost_nearby: float | None = None
    """Seconds that were lost by its own pace before and after, without its twin; None: that can't be told."""


class Progress:
    """Samples of a job that is looked at now and then."""

    def __init__(self) -> None:
        self.at: list[float] = []
        """Seconds since the epoch."""
        self.samples: list[int] = []

    def add(self, status: Any) -> None:
        self.at.append(time.time())
        self.samples.append(status.samples)

    def samples_at(self, at: float) -> float:
        """Compute the samples that were trained up to a moment, in seconds since the epoch."""
        return float(np.interp(at, self.at, self.samples))

    def when(self, samples: float) -> float | None:
        """Compute when so many samples were trained first, in seconds since the epoch; None: not yet."""
        after = next((number for number, there in enumerate(self.samples) if there >= samples), None)
        if after is None:
            return None
        between = slice(max(0, after - 1), after + 1)
        return float(np.interp(samples, self.samples[between], self.at[between]))

    def lost(self, since: float) -> float | None:
        """Compute the seconds that were lost, of the first ``OVER_SECONDS`` from then on; None: that can't be told."""
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


def rate_of(case: Case, directory: Path, *, jobs: int = 1) -> float:
    """Measure samples/s of a job with the case's plan; ``jobs``: with that one, those like it that run at the same time."""
    handles: list[Any] = []
    try:
        keeper = keeper_options(from_memory=True, own_cores=True)
        handles.extend(start(_recipe(case, directory, 10**9, ours=False), keeper) for _ in range(jobs))
        for handle in handles:
            Watch(handle).until(lambda status: status.samples > 40 * BATCH_SIZE, "it trained")
        began, before = time.monotonic(), handles[0].status().samples
        time.sleep(PILOT_SECONDS)
        return float((handles[0].status().samples - before) / (time.monotonic() - began))
    finally:
        for handle in handles:
            handle.stop(now=True)
        for handle in handles:
            handle.wait()


class JobAndTwin:
    """A job whose host turns slow, and its twin: the same job at the same time on the same machine, whose host stays as it is. So
    whatever else makes the machine slower for a while makes both slower."""

    def __init__(self, recipe: Mapping[str, Any], options: Any, *, twin_first: bool) -> None:
        self.options = options
        self.began: dict[str, float] = {}
        self.handles: dict[str, Any] = {}
        self.progress = {"job": Progress(), "twin": Progress()}
        try:
            for name in ("twin", "job") if twin_first else ("job", "twin"):
                self.began[name] = time.time()
                self.handles[name] = start(recipe, options)
        except BaseException:
            self.stop(kill=True)
            raise

    @property
    def handle(self) -> Any:
        """Handle of the job whose host turns slow."""
        return self.handles["job"]

    def until(self, done: Callable[[Any], bool], what: str) -> float:
        """Look at both now and then, until the job's status is ``done``; return the time on the monotonic clock. Raises SystemExit when one
        has ended before."""
        last = time.monotonic() + MOST_SECONDS
        while time.monotonic() < last:
            for name, handle in self.handles.items():
                with suppress(TimeoutError):
                    raise SystemExit(f"the {name} has ended before {what}: {handle.wait(LOOK_SECONDS / 2)}")
            if done(self.look()):
                return time.monotonic()
        raise SystemExit(f"{what}: not within {MOST_SECONDS:g} s; see {self.handle.directory}")

    def look(self) -> Any:
        """Note how far both are; return the job's status."""
        found = {name: handle.status() for name, handle in self.handles.items()}
        for name, status in found.items():
            self.progress[name].add(status)
        return found["job"]

    def end_times(self, samples: int, since: float) -> tuple[float, float] | None:
        """Compute when the job had trained on so many samples, and its twin, from ``since`` on, on as many as the job; both in seconds
        since the epoch. None: not yet."""
        job, twin = self.progress["job"], self.progress["twin"]
        ended = job.when(samples)
        twin_ended = twin.when(twin.samples_at(since) + samples - job.samples_at(since))
        return None if ended is None or twin_ended is None else (ended, twin_ended)

    def stop(self, *, kill: bool = False) -> None:
        for handle in self.handles.values():
            handle.stop(kill=kill, now=not kill)
        for handle in self.handles.values():
            handle.wait()


def run(case: Case, directory: Path, samples: int, how: How, *, noticed_after: float = 0.0, twin_first: bool) -> Run:
    """Run a job until it has trained on so many ``samples``, beside its twin. ``noticed_after``: a restart begins so many seconds after
    the host has turned slow. ``twin_first``: the twin is started first."""
    from dlrover_lite.brain_server import brain_process

    ours = how == "ours"
    options = keeper_options(from_memory=True, brain="daemon" if ours else "off", own_cores=True)
    with ExitStack() as stack:
        if ours:
            brain_process.ensure()  # its start is no part of what an intervention costs
            stack.callback(brain_process.stop)
        jobs = JobAndTwin(_recipe(case, directory, ALL_SAMPLES * samples, ours=ours), options, twin_first=twin_first)
        try:
            found = _measure(case, jobs, samples, how, noticed_after)
        except BaseException:
            jobs.stop(kill=True)
            raise
        jobs.stop()
    return found


def _measure(case: Case, jobs: JobAndTwin, samples: int, how: How, noticed_after: float) -> Run:
    jobs.until(lambda status: status.samples >= SLOWED_AT * samples, "a part was trained")
    slowed = _slow_down(jobs.handle, case.slow)
    jobs.look()
    phases = _restart(jobs, noticed_after) if how == "restart" else {}
    jobs.until(lambda _: jobs.end_times(samples, slowed) is not None, "all was trained")
    ended = jobs.end_times(samples, slowed)
    assert ended is not None
    said = [
        (entry.at - slowed, entry.text) for entry in jobs.handle.story("master").entries if "decision" in entry.text
    ]
    return Run(
        how,
        seconds=ended[0] - jobs.began["job"],
        lost=ended[0] - ended[1],
        acted_after=min((at for at, text in said if at >= 0 and "carried out" in text), default=None),
        story=[f"{at:+.1f} s: {text}" for at, text in said],
        phases=phases,
        lost_nearby=None if how == "none" else jobs.progress["job"].lost(slowed),
    )


def _slow_down(handle: Any, name: str) -> float:
    """Slow the host of a node down; return when, in seconds since the epoch."""
    keeper = handle.job.record().keeper
    node = next(node for node in handle.status().nodes if node.id == name)
    slow_down(pid_of(keeper.pid, name), node.cores * SLOWED_TO)
    return time.time()


def _all_up(status: Any) -> bool:
    return bool(running(status)) and all(node.state == "up" for node in running(status))


def _restart(jobs: JobAndTwin, noticed_after: float) -> dict[str, float]:
    """Stop the job, with a last checkpoint, and go on with new nodes, as one does without anything better; return the seconds of each
    phase."""
    from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs
    from dlrover_lite.client.handle import resume
    from dlrover_lite.jobs.backend import RunOptions

    with suppress(TimeoutError):
        raise SystemExit(f"the job has ended before it could be restarted: {jobs.handle.wait(noticed_after)}")
    marks = [time.monotonic()]
    jobs.handle.stop()
    result = jobs.handle.wait()
    if result.state != "stopped":
        raise SystemExit(f"the job has {result.state}: {result.message}")
    done = int((result.status or {}).get("samples", 0))
    marks.append(time.monotonic())
    jobs.handles["job"] = resume(
        jobs.handle.id, options=RunOptions(jobs.options.brain), backend=LocalJobs(jobs.options)
    )
    marks.append(time.monotonic())
    marks.append(jobs.until(_all_up, "its nodes were up"))
    marks.append(jobs.until(lambda status: status.samples > done, "it went on"))
    names = ("last checkpoint and stop", "keeper", "master and nodes", "restore until the first minibatch")
    return {name: after - before for name, (before, after) in zip(names, pairwise(marks), strict=True)}
