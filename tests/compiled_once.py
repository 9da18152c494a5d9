"""Kernels, and the modules of tests, are compiled by one process: where several begin with none in the cache, each would compile the same
ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlrover_lite.core.files.locks import Lock

__all__ = ["compile_kernels", "compiled_by_one", "start_compiling"]

PATIENCE_SECONDS = 120.0
"""Longest wait for another process to have compiled them."""
FEW = 20
"""Number of modules that each process may compile for itself: as many as somebody has changed since."""

COMPILE = """
import fcntl, sys
from pathlib import Path

directory = Path(sys.argv[1])
directory.mkdir(parents=True, exist_ok=True)
with (directory / "compiling").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not (directory / "compiled").exists():
        import numpy as np

        from dlrover_lite.data.synthetic import SyntheticDataset
        from dlrover_lite.ps.server import compile_kernels as of_servers
        from dlrover_lite.recipe.schema import SyntheticData
        from dlrover_lite.worker import compile_kernels as of_workers

        of_servers.compile_kernels()
        of_workers.compile_kernels()
        SyntheticDataset(SyntheticData(samples=2), first=0, samples=2).read(np.arange(2))
        (directory / "compiled").touch()
if sys.argv[2:]:
    from dlrover_lite.backends.sim.physics.machines import Machine
    from dlrover_lite.backends.sim.physics.queues import Costs, Node, run

    run([Node(1.0)], [Node(1.0)], [Machine(4.0)], Costs(), seed=0, seconds=0.1)
"""
"""What most tests need, unless it is in that directory already: whoever comes while another one is at it waits. And with another argument,
when nobody waits any more, what simulations need."""


def start_compiling(directory: Path, *more: str) -> subprocess.Popen[bytes]:
    """In a process of its own, into NUMBA_CACHE_DIR, which is ``directory``."""
    return subprocess.Popen([sys.executable, "-c", COMPILE, str(directory), *more])


def compile_kernels(directory: Path) -> None:
    """Returns when they are there. Raises subprocess.CalledProcessError where they can't be compiled; that process has said why."""
    compiling = start_compiling(directory)
    if compiling.wait():
        raise subprocess.CalledProcessError(compiling.returncode, "compiling kernels")


@contextmanager
def compiled_by_one(root: Path) -> Iterator[None]:
    """Hold others up that collect the tests of this checkout meanwhile, if most of its tests' modules haven't been compiled yet: they find
    them compiled then. pytest compiles each with its assertions rewritten, which takes longer than to collect them."""
    (root / ".home").mkdir(exist_ok=True)
    with Lock(root / ".home" / "collecting") as lock:
        lock.take(PATIENCE_SECONDS)
        if _uncompiled(root / "tests") <= FEW:
            lock.close()
        yield


def _uncompiled(tests: Path) -> int:
    """Count the modules of tests that pytest hasn't compiled since they were changed."""
    compiled: dict[Path, float] = {}
    for path in tests.rglob("__pycache__/*-pytest-*.pyc"):
        module = path.parents[1] / f"{path.name.partition('.')[0]}.py"
        compiled[module] = max(compiled.get(module, 0.0), path.stat().st_mtime)
    return sum(compiled.get(path, 0.0) < path.stat().st_mtime for path in tests.rglob("test_*.py"))
