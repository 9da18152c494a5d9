"""Jobs as the benches of the brain run them: a running one whose plan the bench changes, and recipes of plans that are kept."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from migrate import Watch

if TYPE_CHECKING:
    from dlrover_lite.backends.keeper.options import KeeperOptions
    from dlrover_lite.brain.planning.plan_grid import Candidate
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.protocol.brain_mode import BrainMode
    from dlrover_lite.protocol.nodes import Role
    from dlrover_lite.protocol.profiles import Profile

__all__ = [
    "MIB",
    "PlannedJob",
    "keeper_options",
    "recipe_of",
    "resources_of",
    "running",
    "set_up",
    "start",
    "words",
]

MIB = 1 << 20
FIRST_CORES = 0.5
"""Of a node that comes, until it is resized."""
WARM_UP_SECONDS, FIRST_SECONDS = 3.0, 4.0
"""After a change: those in which the profiler doesn't measure, and those of its first interval, which is short."""
HAIR_CORES = 0.001
PROFILE_SECONDS = 3.0
"""From the end of an interval until its profile is there, at most; there is none where nodes hadn't told enough."""
BEFORE_SECONDS = 2.0
"""An interval that is asked to end has ended up to so many seconds before: with what its nodes had told last."""


def set_up() -> None:
    """Nodes find the bench's own modules, and when this process is asked to end it ends its jobs, and deletes their files."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    paths = [str(Path(__file__).parent), str(Path(__file__).resolve().parent.parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH", "")]))


def words(plan: Candidate) -> str:
    return f"{plan.workers} x {plan.worker_cores:g} + {plan.servers} PS x {plan.ps_cores:g}"


def resources_of(plan: Candidate, *, worker_memory: int = 1024 * MIB, ps_memory: int = 1024 * MIB) -> dict[str, Any]:
    """As a recipe fixes them; memory of each node in bytes."""
    return {
        "ps": {"count": plan.servers, "cores": plan.ps_cores, "memory": ps_memory},
        "worker": {"count": plan.workers, "cores": plan.worker_cores, "memory": worker_memory},
    }


def recipe_of(
    home: Path, name: str, *, model: Mapping[str, Any], data: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """Without a word of ``more`` (sections of a recipe): no checkpoint, no export, no evaluation."""
    recipe = {
        "version": 1,
        "name": name,
        "model": dict(model),
        "data": {"format": "synthetic", "eval_samples": 0, **data},
        "training": {"batch_size": 1024, "optimizer": {"use": "adagrad", "learning_rate": 0.02}},
        "export": {"format": "none"},
        "checkpoint": "off",
        "directory": str(home),
    }
    return {**recipe, **more}


def keeper_options(*, from_memory: bool = False, brain: BrainMode = "off", own_cores: bool = False) -> KeeperOptions:
    """``from_memory``: workers read what ``_train_worker.make_batches`` has made. ``own_cores``: as of ``KeeperOptions``."""
    from dlrover_lite.backends.keeper.options import KeeperOptions

    if not from_memory:
        return KeeperOptions(brain=brain, own_cores=own_cores)
    entries: dict[Role, str] = {"ps": "dlrover_lite.ps.server.main:main", "worker": "_train_worker:main"}
    return KeeperOptions(entries=entries, brain=brain, own_cores=own_cores)


def start(recipe: Mapping[str, Any], keeper: KeeperOptions) -> JobHandle:
    from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs
    from dlrover_lite.client.handle import launch, this_machine
    from dlrover_lite.jobs.backend import RunOptions
    from dlrover_lite.recipe.load import parse_recipe

    resolved = parse_recipe(dict(recipe), machine=this_machine())
    return launch(
        resolved,
        options=RunOptions(keeper.brain),
        backend=LocalJobs(keeper),
        say=lambda line: print(line, file=sys.stderr),
    )


def running(status: Any) -> list[Any]:
    """Its nodes that haven't ended."""
    return [node for node in status.nodes if not node.state.startswith("ended")]


class PlannedJob(Watch, AbstractContextManager["PlannedJob"]):
    """Trains without an end; ``change`` gives it another plan. Ended when the block is left."""

    def __init__(self, recipe: Mapping[str, Any], plan: Candidate, *, from_memory: bool) -> None:
        resources = resources_of(plan)
        for role in resources.values():
            role["cores"] = FIRST_CORES
        wanted = {**recipe, "resources": resources, "autoscale": "off"}
        super().__init__(start(wanted, keeper_options(from_memory=from_memory)))
        self._taken = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.handle.stop(kill=kind is not None, now=True)
        self.handle.wait()

    def change(self, plan: Candidate) -> None:
        """Returns when the nodes are those of the plan, all of them train and nothing moves."""
        self.until(lambda status: status.samples > 0, "it trained")
        self.handle.scale(workers=plan.workers, ps=plan.servers)
        status = self._until(lambda status: _whole(status, plan), f"it had the nodes of {words(plan)}")
        for node in running(status):
            cores = plan.worker_cores if node.role == "worker" else plan.ps_cores
            if node.cores != cores:
                self.handle.resize(node.id, cores=cores)
        self._until(lambda status: _sized(status, plan), f"its nodes had the sizes of {words(plan)}")

    def _until(self, done: Callable[[Any], bool], what: str) -> Any:
        self.until(done, what)
        return self.handle.status()

    def measured(self, plan: Candidate, seconds: float) -> Profile | None:
        """Its longest profile of the plan that it has, over about so many seconds; over twice as many where nodes hadn't told enough by
        then, and None if they still hadn't."""
        from dlrover_lite.brain.planning.observed_job import candidate_of

        for so_long in (seconds, 2 * seconds):
            began = time.time()
            self._train(so_long)
            found = [each for each in self._end_interval() if candidate_of(each) == plan and each.at > began]
            if found:
                return max(found, key=lambda each: each.seconds)
            self.change(plan)
        return None

    def _train(self, seconds: float) -> None:
        time.sleep(WARM_UP_SECONDS + FIRST_SECONDS + seconds)
        if (state := self.handle.state()) != "running":
            raise SystemExit(f"the job has {state}; see {self.handle.directory}")

    def _end_interval(self) -> list[Profile]:
        """Those that were measured since this was asked last. A worker is resized by a hair, which ends the profiler's interval; its
        profile, the longest of them, is waited for."""
        asked = time.time()
        worker = next(node for node in running(self.handle.status()) if node.role == "worker")
        self.handle.resize(worker.id, cores=worker.cores + HAIR_CORES)
        self.until(lambda status: _has(status, worker.id, worker.cores + HAIR_CORES), f"{worker.id} was resized")
        end = time.monotonic() + PROFILE_SECONDS
        new = self._new_profiles()
        while all(each.at < asked - BEFORE_SECONDS for each in new) and time.monotonic() < end:
            time.sleep(0.1)
            new += self._new_profiles()
        return new

    def _new_profiles(self) -> list[Profile]:
        from dlrover_lite.protocol.profiles import Profile

        found = [each for each in self.handle.profiles() if isinstance(each, Profile)]
        new, self._taken = found[self._taken :], len(found)
        return new


def _has(status: Any, name: str, cores: float) -> bool:
    return any(node.id == name and node.cores == cores for node in running(status))


def _whole(status: Any, plan: Candidate) -> bool:
    there = running(status)
    counts = {role: sum(node.role == role for node in there) for role in ("worker", "ps")}
    owning = all(node.slots for node in there if node.role == "ps")
    up = all(node.state == "up" for node in there)
    return counts == {"worker": plan.workers, "ps": plan.servers} and up and owning and _settled(status)


def _settled(status: Any) -> bool:
    return bool(status.slots_settled) and not status.moves


def _sized(status: Any, plan: Candidate) -> bool:
    sizes = {"worker": plan.worker_cores, "ps": plan.ps_cores}
    return all(node.cores == sizes[node.role] and node.wanted_cores is None for node in running(status))
