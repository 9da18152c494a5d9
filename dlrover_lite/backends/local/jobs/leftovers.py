"""What killed processes have left of jobs on this machine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from dlrover_lite.backends.keeper.runtime_directories import stale_runtime_directories, sweep_runtime
from dlrover_lite.jobs.store import abandoned_directories

__all__ = ["leftovers", "sweep"]


def sweep(clock: Callable[[], float] = time.time) -> list[Path]:
    """Remove what killed processes have left: runtime directories without a keeper, job directories never finished."""
    swept = sweep_runtime(clock)
    for entry in abandoned_directories(clock()):
        shutil.rmtree(entry, ignore_errors=True)
        swept.append(entry)
    return swept


def leftovers(clock: Callable[[], float] = time.time) -> list[Path]:
    """Find what ``sweep`` would remove."""
    return [*stale_runtime_directories(clock), *abandoned_directories(clock())]
