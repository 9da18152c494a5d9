"""What goes on in a job while its processes die: a scenario for each that a failpoint may name (``failpoints.POINTS``).

Each starts a job with the given points, brings about what they are in until all have been passed, and lets the job finish.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from dlrover_lite import slots
from dlrover_lite.errors import DlroverLiteError
from dlrover_lite.jobs.handle import JobHandle
from tests.chaos.support import ChaosJob, recipe, start

__all__ = ["SCENARIOS", "Scenario"]

Scenario = Callable[..., ChaosJob]
"""``(directory, points, **changes)``: the job, after its end. ``changes``: of the recipe."""

MOVED_AT_ONCE = 1_500


def training(directory: Path, points: Collection[str], **changes: Any) -> ChaosJob:
    job = start(directory, recipe(**{"ps": 2, "workers": 2, "epochs": 6, **changes}), points, slow_seconds=0.01)
    job.until_all_passed()
    job.finish()
    return job


def moves(directory: Path, points: Collection[str], **changes: Any) -> ChaosJob:
    """Slots go from the server that has more to the other, again and again."""
    job = start(directory, recipe(**{"ps": 2, "workers": 2, "epochs": 12, **changes}), points, slow_seconds=0.02)
    rng = random.Random(1)
    job.until_all_passed(lambda: move_some(job.handle, rng))
    job.finish()
    return job


def move_some(handle: JobHandle, rng: random.Random) -> bool:
    """To the server that has fewest, if nothing moves; whether it was asked for."""
    try:
        if handle.status().moves or len(servers := handle.slots().servers) < 2:
            return False
        first = rng.randrange(slots.SLOTS - MOVED_AT_ONCE)
        target = min(servers, key=lambda server: server.slots)
        return bool(handle.move(range(first, first + MOVED_AT_ONCE), target.node))
    except DlroverLiteError:  # nobody is there to be asked, or the servers aren't up: later
        return False


SCENARIOS: dict[str, Scenario] = {"training": training, "moves": moves}
