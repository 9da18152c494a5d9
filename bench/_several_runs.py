"""Runs the jobs of ``bench/several.py`` under one policy: they come when the schedule says, and nothing of them is left at the end."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _plan_job import running, words
from _quiet import say
from _several_schedule import MODEL_FILE, WITH_ERROR, PolicyName, Workload, shares

from dlrover_lite.brain.planning.plan_grid import Candidate

if TYPE_CHECKING:
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.jobs.store import Result

__all__ = ["Completion", "Outcome", "prepare", "run"]

_TICK_SECONDS = 0.2
"""Between two looks whether a job has ended: little CPU."""
_LOOK_SECONDS = 1.0
"""Between two looks at the status of a job that is to be resized, or is to fail: each takes some CPU."""
_KILL_SECONDS = 2.0
"""Until a job that was killed is told once more."""
_MOST_SECONDS = 1200.0
"""Longest time that one policy's run may take, in seconds; then something is wrong, and all jobs are killed."""
NODES = ("ps.server", "worker")
"""Packages of what nodes run."""


@dataclass(frozen=True)
class Completion:
    """One job at its end."""

    name: str
    job: str
    """The job's id."""
    seconds: float
    """From its arrival to its end."""
    waited: float
    """Seconds from its arrival until it was started; with the brain it is told at once, and may wait there."""
    plans: tuple[str, ...] = ()
    """The plans that it had, each with the seconds from its arrival on."""
    counts: bool = True
    misses: tuple[float, ...] = ()
    """Difference between measured and predicted throughput of each change by the brain, as a share of what was predicted."""


@dataclass(frozen=True)
class Outcome:
    """What a policy has made of the schedule. Times in seconds."""

    policy: PolicyName
    completions: tuple[Completion, ...]
    makespan: float
    """From the first arrival until the last job has ended, that which fails included."""

    @property
    def mean(self) -> float:
        return statistics.fmean(one.seconds for one in self.completions if one.counts)

    @property
    def worst(self) -> float:
        return max(one.seconds for one in self.completions if one.counts)


@dataclass
class _Job:
    """One job that has come."""

    workload: Workload
    plan: Candidate | None = None
    """The plan that it is to have; None: it waits, or the brain decides."""
    handle: JobHandle | None = None
    started: float = 0.0
    """Seconds since the first arrival."""
    has: Candidate | None = None
    """The plan that its nodes have, as far as is known."""
    told: list[str] = field(default_factory=list)


class _Run:
    def __init__(self, policy: PolicyName, schedule: Sequence[Workload], home: Path) -> None:
        self.policy, self.home = policy, home
        self.to_come = sorted(schedule, key=lambda one: one.arrives)
        self.present: list[_Job] = []
        self.ended: list[tuple[_Job, Result]] = []
        self.began, self.epoch = time.monotonic(), time.time()
        self._looked = 0.0

    def now(self) -> float:
        """Seconds since the first arrival."""
        return time.monotonic() - self.began

    def whole(self) -> None:
        """Run until every job has ended."""
        while self.to_come or self.present:
            if self.now() > _MOST_SECONDS:
                raise SystemExit(
                    f"{self.policy}: {', '.join(job.workload.name for job in self.present)} still there after "
                    f"{_MOST_SECONDS:g} s"
                )
            changed = self._gone()
            changed |= self._come()
            if changed:
                self._divide()
            if self.now() >= self._looked + _LOOK_SECONDS:
                self._look()
                self._looked = self.now()
            time.sleep(_TICK_SECONDS)

    def kill(self) -> None:
        """End all jobs at once, and wait for that."""
        handles = [job.handle for job in self.present if job.handle is not None]
        while handles:
            for handle in handles:
                handle.stop(kill=True)  # again: one that has only just been started has nobody yet who could be told
            handles = [handle for handle in handles if _result(handle, _KILL_SECONDS) is None]

    def _come(self) -> bool:
        before = len(self.present)
        while self.to_come and self.to_come[0].arrives <= self.now():
            self.present.append(_Job(self.to_come.pop(0)))
        return len(self.present) > before

    def _gone(self) -> bool:
        left = []
        for job in self.present:
            result = _result(job.handle)
            if result is None:
                left.append(job)
            else:
                _check(self.policy, job.workload, result)
                self.ended.append((job, result))
        changed = len(left) < len(self.present)
        self.present = left
        return changed

    def _divide(self) -> None:
        """Start who may, and give all others what they are to have now: first those that get less."""
        if self.policy == "brain":
            for job in self.present:
                if job.handle is None:
                    self._start(job)
            return
        wanted = shares(self.policy, [job.workload for job in self.present])
        for job in self.present:
            job.plan = wanted.get(job.workload.name)
        for job in sorted(self.present, key=lambda job: job.plan.cores if job.plan else 0.0):
            self._resize(job)
        for job in self.present:
            if job.handle is None and job.plan is not None:
                self._start(job)

    def _start(self, job: _Job) -> None:
        from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs
        from dlrover_lite.client.handle import launch, resolve
        from dlrover_lite.jobs.backend import RunOptions

        job.started = self.now()
        recipe = job.workload.recipe(self.home, self.policy, job.plan or job.workload.asked)
        job.handle = launch(
            resolve(recipe, {}),
            options=RunOptions("daemon" if self.policy == "brain" else "off"),
            backend=LocalJobs(),
            say=say,
        )
        job.has = job.plan
        if job.plan is not None:
            job.told.append(_told(self.now() - job.workload.arrives, job.plan))

    def _look(self) -> None:
        for job in self.present:
            if job.plan != job.has:
                self._resize(job)
            share = job.workload.fails_at
            if share is None or (status := _status(job)) is None:
                continue
            if status.samples >= share * job.workload.samples:
                job.workload.once(self.home).touch()

    def _resize(self, job: _Job) -> None:
        """Tell nodes that don't have the cores that they are to have. A job that is just starting, or just ending, refuses: it is told
        again."""
        from dlrover_lite.core.errors import JobError

        if job.handle is None or job.plan is None or job.plan == job.has or (status := _status(job)) is None:
            return
        nodes = running(status)
        sizes = {"worker": job.plan.worker_cores, "ps": job.plan.ps_cores}
        with suppress(JobError):
            for node in nodes:
                wanted = sizes[node.role]
                if (node.wanted_cores or node.cores) != wanted:
                    job.handle.resize(node.id, cores=wanted)
        if len(nodes) == job.plan.workers + job.plan.servers and all(node.cores == sizes[node.role] for node in nodes):
            job.has = job.plan
            job.told.append(_told(self.now() - job.workload.arrives, job.plan))

    def outcome(
        self, plans_of: Callable[[str], list[tuple[float, Candidate]]], misses_of: Callable[[str], list[float]]
    ) -> Outcome:
        """``plans_of``: the plans that the brain gave a job, with the seconds since the epoch; ``misses_of``: as ``Completion.misses``.
        Both are asked with that policy only."""
        found = []
        for job, result in sorted(self.ended, key=lambda each: each[0].workload.arrives):
            assert job.handle is not None
            arrived = self.epoch + job.workload.arrives
            told = job.told
            if self.policy == "brain":
                given = [(arrived, job.workload.asked)] if job.workload.fixed else plans_of(job.handle.id)
                told = [_told(at - arrived, plan) for at, plan in given]
            found.append(
                Completion(
                    name=job.workload.name,
                    job=job.handle.id,
                    seconds=result.ended_at - arrived,
                    waited=max(0.0, job.started - job.workload.arrives),
                    plans=tuple(told),
                    counts=job.workload.counts,
                    misses=tuple(misses_of(job.handle.id)) if self.policy == "brain" else (),
                )
            )
        last = max(result.ended_at for _, result in self.ended)
        return Outcome(self.policy, tuple(found), last - self.epoch)

    def check_censuses(self) -> None:
        """Check that each sample of a census was counted once. Raises SystemExit."""
        from dlrover_lite.client.census import check

        for job, _ in self.ended:
            if job.workload.is_census and job.handle is not None and (errors := check(job.handle.job).errors):
                raise SystemExit(f"{self.policy}: {errors} counters of {job.handle.id} are wrong")


def prepare(home: Path) -> None:
    """Put what the recipes name beside them, have all kernels compiled, and what processes import read from the disk once: that takes half
    a minute with new code or on a new machine, and would count against whoever comes first."""
    shutil.copy(Path(__file__).with_name("_several_model.py"), home / MODEL_FILE)
    kernels = [f"from dlrover_lite.{part}.compile_kernels import compile_kernels; compile_kernels()" for part in NODES]
    imports = [f"import torch, dlrover_lite.{part}.main" for part in NODES]
    for code in (*kernels, *imports, "import dlrover_lite.brain.advisor, scipy.optimize"):
        subprocess.run([sys.executable, "-c", code], check=True)


def run(policy: PolicyName, schedule: Sequence[Workload], home: Path) -> Outcome:
    """Run all jobs of the schedule under a policy, in a home that is prepared for them. Raises SystemExit when one ends otherwise than it
    is to, or hasn't trained on each sample once."""
    from _brain_history import granted, misses_of

    from dlrover_lite.brain_server import brain_process

    for one in schedule:
        one.once(home).unlink(missing_ok=True)
    if policy == "brain":
        brain_process.ensure()  # it runs before its user's jobs come
    try:
        these = _Run(policy, schedule, home)
        try:
            these.whole()
        except BaseException:
            these.kill()
            raise
    finally:
        if policy == "brain":
            brain_process.stop()
    these.check_censuses()
    return these.outcome(lambda job: granted(job)[0], misses_of)


def _told(at: float, plan: Candidate) -> str:
    return f"{at:.0f} s: {words(plan)}"


def _status(job: _Job) -> Any:
    """Return how the job stands; None while its master can't be asked."""
    from dlrover_lite.core.errors import JobError

    if job.handle is None:
        return None
    with suppress(JobError):
        return job.handle.status()
    return None


def _result(handle: JobHandle | None, patience_seconds: float = 0.0) -> Result | None:
    """Return how the job has ended; None while it runs, or waits."""
    if handle is not None:
        with suppress(TimeoutError):
            return handle.wait(patience_seconds, progress=False)
    return None


def _check(policy: PolicyName, workload: Workload, result: Result) -> None:
    """Raise SystemExit when the job hasn't ended as it is to."""
    status = result.status or {}
    who = f"{policy}: {workload.name}"
    if workload.fails_at is not None:
        if result.state != "failed" or WITH_ERROR not in f"{result.message}\n{result.traceback}":
            raise SystemExit(f"{who} was to fail with an error of its own, and has {result.state}: {result.message}")
        return
    if not result.ok:
        raise SystemExit(f"{who} has {result.state}: {result.message}\n{result.hint}\n{result.traceback}")
    if (done := status.get("samples")) != workload.samples or status.get("quarantined"):
        raise SystemExit(f"{who} has trained on {done} samples instead of {workload.samples}")
