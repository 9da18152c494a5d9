"""The jobs of ``bench/autoscale.py``: plans, how fast each is for a moment, and jobs that run from their launch to their end."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from _brain_history import granted, misses_of
from _plan_job import MIB, PlannedJob, keeper_options, recipe_of, resources_of, running, start, words
from _quiet import say

from dlrover_lite.brain.job_tracker import bounds_of
from dlrover_lite.brain.planning.observed_job import candidate_of
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.demands import Demand
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.profiles import Profile

__all__ = ["CEILING", "FullRun", "Workload", "full_run", "plans_within", "scan", "user_run"]

_CORES = min(os.cpu_count() or 2, 8)
"""More than the four that a job begins with of which nothing is known, where the machine has them."""
CEILING = {"cores": _CORES, "memory": _CORES * 2048 * MIB}
LOOK_SECONDS = 2.0
EVAL_SAMPLES = 50_000
"""The same for all runs: what they differ by is the model's."""
USERS_PART = 4
"""A user's plan is kept for one in so many samples: it goes on as it began, and would take very long."""


@dataclass(frozen=True)
class Workload:
    """A job but for its size and its plan."""

    name: str
    model: str = "wide_deep"
    options: Mapping[str, Any] = field(default_factory=lambda: {"embedding_dim": 16, "hidden": [256, 128]})
    batch_size: int = 1024
    ids: int = 20_000

    def recipe(self, home: Path, samples: int, **more: Any) -> dict[str, Any]:
        training = {"batch_size": self.batch_size, "optimizer": {"use": "adagrad", "learning_rate": 0.02}}
        model = {"use": self.model, "options": dict(self.options)}
        data = {"samples": samples, "ids_per_field": self.ids, "eval_samples": EVAL_SAMPLES}
        return recipe_of(home, self.name, model=model, data=data, training=training, **more)


@dataclass
class FullRun:
    """Of a job, from its launch to its end."""

    seconds: float
    plans: list[str]
    """That it has had, with the seconds from its launch on."""
    first: Candidate | None
    why: str
    """The brain's reason for it."""
    cpu_used: float
    """CPU seconds of its nodes over what they were given."""
    memory_used: float
    """The most that each node has used over what it was given, those that ran at last."""
    profiles: list[Profile]
    auc: float
    """At the end, of samples that it wasn't trained with."""
    misses: list[float]
    """Difference between measured and predicted throughput of each change that was judged, as a share of what was predicted."""

    def rate_with(self, plan: Candidate | None) -> float | None:
        """Samples/s while it had this plan; None if that wasn't measured."""
        found = [profile for profile in self.profiles if candidate_of(profile) == plan]
        seconds = sum(profile.seconds for profile in found)
        return sum(profile.samples for profile in found) / seconds if seconds else None


# --- plans ----------------------------------------------------------------------------------------------------------------


def plans_within(cores: float) -> list[Candidate]:
    """Those of the brain's own plans in which no node's size can be raised by a step without giving more than ``cores``: any other one
    is no faster than one of them."""
    bounds = bounds_of(Demand(hosts=(Host("here", Resources(cores, 0)),)))
    milli = round(cores * 1000)
    found = []
    for workers, servers, worker_cores, ps_cores in product(
        range(1, bounds.max_workers + 1), range(1, bounds.max_servers + 1), bounds.worker_sizes, bounds.ps_sizes
    ):
        plan = Candidate(workers, servers, worker_cores, ps_cores)
        raised = [
            *(Candidate(workers, servers, size, ps_cores) for size in _next(bounds.worker_sizes, worker_cores)),
            *(Candidate(workers, servers, worker_cores, size) for size in _next(bounds.ps_sizes, ps_cores)),
        ]
        if plan.milli <= milli and all(one.milli > milli for one in raised):
            found.append(plan)
    return found


def _next(sizes: Sequence[float], size: float) -> Sequence[float]:
    """The next larger size, if there is one."""
    at = sizes.index(size) + 1
    return sizes[at : at + 1]


def scan(home: Path, workload: Workload, plans: Sequence[Candidate], seconds: float) -> dict[Candidate, float]:
    """Samples/s of each, in one job that goes through them."""
    found: dict[Candidate, float] = {}
    with PlannedJob(workload.recipe(home, 10**9), plans[0], from_memory=False) as job:
        for plan in plans:
            job.change(plan)
            if (profile := job.measured(plan, seconds)) is not None:
                found[plan] = profile.samples_per_second
                say(f"  {words(plan)}: {found[plan]:,.0f} samples/s")
    return found


# --- runs -----------------------------------------------------------------------------------------------------------------


@dataclass
class _Use:
    """Of nodes, from one look to the next."""

    cpu: float = 0.0
    given: float = 0.0
    peak: int = 0
    memory: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    at: float = 0.0

    def look(self, status: Any, at: float) -> None:
        there = {node.id: node for node in running(status)}
        for name, node in there.items():
            if (before := self.last.get(name)) is not None:
                self.cpu += max(0.0, node.cpu_seconds - before.cpu_seconds)
                self.given += before.cores * (at - self.at)
        if status.samples and there:
            self.peak = sum(node.peak_memory for node in there.values())
            self.memory = sum(node.memory for node in there.values())
        self.last, self.at = there, at


def full_run(recipe: Mapping[str, Any], *, brain: bool, most_seconds: float = 3600.0) -> FullRun:
    """``brain``: the user's daemon is asked, and is ended afterwards. A job that takes longer than ``most_seconds`` is stopped."""
    began, wall = time.monotonic(), time.time()
    handle = start(recipe, keeper_options(brain="daemon" if brain else "off"))
    use = _Use()
    try:
        while True:
            try:
                result = handle.wait(LOOK_SECONDS)
            except TimeoutError:
                use.look(handle.status(), time.monotonic())
                if time.monotonic() > began + most_seconds:
                    handle.stop(now=True)
                continue
            break
        seconds = time.monotonic() - began
    except BaseException:
        handle.stop(kill=True)
        handle.wait()
        raise
    if not result.ok and not (result.state == "stopped" and seconds > most_seconds):
        raise SystemExit(f"{result.message}\n{result.hint}\n{result.traceback}")
    profiles = [each for each in handle.profiles() if isinstance(each, Profile)]
    plans, why = granted(handle.id) if brain else ([], "")
    return FullRun(
        seconds=seconds,
        plans=[f"{at - wall:.0f} s: {words(plan)}" for at, plan in plans],
        first=plans[0][1] if plans else None,
        why=why,
        cpu_used=use.cpu / use.given if use.given else float("nan"),
        memory_used=use.peak / use.memory if use.memory else float("nan"),
        profiles=profiles,
        auc=_auc(result.status or {}),
        misses=misses_of(handle.id) if brain else [],
    )


def _auc(status: Mapping[str, Any]) -> float:
    evaluations = status.get("evaluations") or []
    return float(evaluations[-1]["auc"]) if evaluations else float("nan")


def user_run(home: Path, workload: Workload, samples: int, plan: Candidate) -> float:
    """Seconds that a job would take that keeps this plan: run for a part of its samples, the start counted once."""
    recipe = workload.recipe(home, samples // USERS_PART, resources=resources_of(plan), autoscale="off")
    began = time.monotonic()
    handle = start(recipe, keeper_options())
    try:
        while not handle.status().samples and handle.result() is None:
            time.sleep(0.1)
        training = time.monotonic()
        result = handle.wait()
        end = time.monotonic()
    except BaseException:
        handle.stop(kill=True)
        handle.wait()
        raise
    if not result.ok:
        raise SystemExit(f"{result.message}\n{result.hint}\n{result.traceback}")
    return (training - began) + (end - training) * USERS_PART
