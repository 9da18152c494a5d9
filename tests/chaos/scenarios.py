"""What goes on in a job while its processes die: a scenario for each that a failpoint may name (``points.POINTS``).

Each starts a job with the given points, brings about what they are in until all have been passed, and lets the job finish.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import DlroverLiteError
from tests.chaos.support import ChaosJob, processes, recipe, start

__all__ = ["SCENARIOS", "Scenario"]

Scenario = Callable[..., ChaosJob]
"""``(directory, points, pause_seconds=0.0, **changes)``: the job, after its end. ``changes``: of the recipe."""

MOVED_AT_ONCE = 1_500
OFTEN = {"every_seconds": 0.2, "full_every": 2}
"""Cuts."""


def training(directory: Path, points: Collection[str], pause_seconds: float = 0.0, **changes: Any) -> ChaosJob:
    plain = recipe(**{"ps": 2, "workers": 2, "epochs": 6, **changes})
    job = start(directory, plain, points, slow_seconds=0.03, pause_seconds=pause_seconds)
    job.until_all_passed()
    job.finish()
    return job


def moves(directory: Path, points: Collection[str], pause_seconds: float = 0.0, **changes: Any) -> ChaosJob:
    """Slots go from the server that has more to the other, again and again."""
    plain = recipe(**{"ps": 2, "workers": 2, "epochs": 24, **changes})
    job = start(directory, plain, points, slow_seconds=0.02, pause_seconds=pause_seconds)
    rng = random.Random(1)
    job.until_all_passed(lambda: move_some(job.handle, rng))
    job.finish()
    return job


def move_some(handle: JobHandle, rng: random.Random) -> bool:
    """To the server that has fewest, if nothing moves; whether it was asked for."""
    try:
        if handle.status().moves or len(servers := handle.slots().servers) < 2:
            return False
        first = rng.randrange(slot_sets.SLOTS - MOVED_AT_ONCE)
        target = min(servers, key=lambda server: server.slots)
        return bool(handle.move(range(first, first + MOVED_AT_ONCE), target.node))
    except DlroverLiteError:  # nobody is there to be asked, or the servers aren't up: later
        return False


def cuts(directory: Path, points: Collection[str], pause_seconds: float = 0.0, **changes: Any) -> ChaosJob:
    """One after the other, every second one with all rows."""
    plain = recipe(**{"ps": 2, "workers": 2, "epochs": 12, "checkpoint": OFTEN, **changes})
    job = start(directory, plain, points, slow_seconds=0.02, pause_seconds=pause_seconds)
    job.until_all_passed()
    job.finish()
    return job


def restoring(directory: Path, points: Collection[str], pause_seconds: float = 0.0, **changes: Any) -> ChaosJob:
    """Memory is lost, again and again, as soon as there is another cut to go back to."""
    plain = recipe(**{"ps": 2, "workers": 2, "epochs": 12, "checkpoint": OFTEN, **changes})
    job = start(directory, plain, points, slow_seconds=0.02, pause_seconds=pause_seconds)
    known: set[Path] = set()

    def lose() -> None:
        there = set(job.handle.directory.glob("checkpoints/*/manifest.json"))
        if there - known:
            known.update(there)
            lose_memory(job.handle)

    job.until_all_passed(lose)
    job.finish()
    return job


def lose_memory(handle: JobHandle) -> None:
    """Kill all parameter servers, and take away what the keeper holds of their memory."""
    for name, process in processes(handle).items():
        if name.startswith("ps-"):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    keeper = handle.job.record().keeper
    assert keeper is not None
    for link in Path(f"/proc/{keeper.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if str(link.readlink()).startswith("/memfd:state"):
                with link.open("r+b") as file:
                    file.write(b"lost" * 2)


SCENARIOS: dict[str, Scenario] = {"training": training, "moves": moves, "cuts": cuts, "restoring": restoring}
