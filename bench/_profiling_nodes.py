"""Master and nodes of ``bench/profiling.py``: the product's own, which measure profiles in every second slot of time only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["SLOT_SECONDS"]

SLOT_SECONDS = 0.7
"""No part of the second after which nodes report, and masters make profiles: some of that falls into every slot in the end."""


def _profiled() -> bool:
    """In this slot. The clock is the same for all processes of a machine."""
    return int(time.monotonic() / SLOT_SECONDS) % 2 == 0


def _switch(owner: Any, *names: str) -> None:
    """Methods that do nothing in every second slot."""
    for name in names:
        setattr(owner, name, _switched(getattr(owner, name)))


def _switched(real: Callable[..., Any]) -> Callable[..., Any]:
    def method(*given: Any, **named: Any) -> Any:
        return real(*given, **named) if _profiled() else None

    return method


def worker(spec: object, directory: Path) -> int:
    import _train_worker

    from dlrover_lite.worker.leases import Work
    from dlrover_lite.worker.loop import TrainingLoop

    def clock() -> float:
        return time.thread_time() if _profiled() else 0.0

    _switch(Work, "add_cpu", "add_seconds")
    begin = TrainingLoop.__init__
    TrainingLoop.__init__ = lambda *given, **named: begin(*given, **{**named, "cpu_clock": clock})  # type: ignore[method-assign]
    return _train_worker.main(spec, directory)  # type: ignore[arg-type]


def server(spec: object, directory: Path) -> int:
    from dlrover_lite.ps.server import main
    from dlrover_lite.ps.server.busy_meter import BusyMeter
    from dlrover_lite.ps.server.service import PsService

    _switch(BusyMeter, "answered", "found")
    _switch(PsService, "_counters")
    return main.main(spec, directory)  # type: ignore[arg-type]


def master(directory: str) -> int:
    from dlrover_lite.master.profiling.profile_intervals import Profiling
    from dlrover_lite.master_process.__main__ import main

    _switch(Profiling, "worked", "served", "turn")
    return main([directory])


if __name__ == "__main__":
    sys.exit(master(sys.argv[1]))
