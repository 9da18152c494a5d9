"""Kernels work where nothing can be written: compiled in memory then."""

from __future__ import annotations

import os
import subprocess
import sys

_COUNT_ROWS = """
import numpy as np
from dlrover_lite.ps.hashing import initial_rows
print(len(initial_rows(np.arange(3, dtype=np.uint64), table="t", seed=0, dim=2, scale=0.1)))
"""


def test_kernels_work_without_a_writable_cache() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment["DLROVER_LITE_HOME"] = "/proc/nobody-can-write-here"
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_ROWS], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
