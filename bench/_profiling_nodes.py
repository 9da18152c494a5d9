"""Master and nodes of ``bench/profiling.py``: the product's own, but with ``PROFILING_OFF`` in the environment they measure no profiles."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

OFF, MASTER_CPU = "PROFILING_OFF", "master_cpu_seconds"


def _nothing(*_: object, **__: object) -> None:
    pass


def worker(spec: object, directory: Path) -> int:
    import _train_worker

    from dlrover_lite.worker.leases import Work
    from dlrover_lite.worker.loop import TrainingLoop

    if os.environ.get(OFF):
        Work.add_cpu = _nothing  # type: ignore[method-assign]
        Work.add_seconds = _nothing  # type: ignore[method-assign]
        begin = TrainingLoop.__init__
        TrainingLoop.__init__ = lambda *given, **settings: begin(*given, **settings, cpu_clock=float)  # type: ignore[method-assign]
    return _train_worker.main(spec, directory)  # type: ignore[arg-type]


def server(spec: object, directory: Path) -> int:
    from dlrover_lite.ps import main
    from dlrover_lite.ps.meter import Meter
    from dlrover_lite.ps.service import PsService

    if os.environ.get(OFF):
        Meter.answered = _nothing  # type: ignore[method-assign]
        Meter.found = _nothing  # type: ignore[method-assign]
        PsService._counters = _nothing  # type: ignore[method-assign]
    return main.main(spec, directory)  # type: ignore[arg-type]


def master(directory: str) -> int:
    from dlrover_lite.master.__main__ import main
    from dlrover_lite.master.profiling import Profiling

    if os.environ.get(OFF):
        for name in ("worked", "served", "turn"):
            setattr(Profiling, name, _nothing)
    code = main([directory])
    Path(directory, MASTER_CPU).write_text(str(time.process_time()))
    return code


if __name__ == "__main__":
    sys.exit(master(sys.argv[1]))
