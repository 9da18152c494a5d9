from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SHOW = """
import json, os, sys
LIBRARIES
from dlrover_lite.backends.template.threads import THREAD_VARIABLES, ThreadPools

pools = ThreadPools()
for cores in sys.argv[1:]:
    child = os.fork()  # as the template does
    if child:
        assert os.waitpid(child, 0)[1] == 0
        continue
    pools.resize(float(cores))
    import numba, threadpoolctl, torch
    counts = [torch.get_num_threads(), numba.get_num_threads(), *(pool["num_threads"] for pool in threadpoolctl.threadpool_info())]
    print(json.dumps([counts, [os.environ[name] for name in THREAD_VARIABLES]]), flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("cores", "counts", "loaded"), [((0.25, 2.9), (1, 2), "import numpy, numba, torch"), ((2.0,), (2,), "")]
)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="BLAS takes no more threads than there are CPUs")
def test_thread_counts_of_all_libraries_follow_the_cores(
    cores: tuple[float, ...], counts: tuple[int, ...], loaded: str
) -> None:
    """Those that are loaded already, with one thread as in the template, and those that a node loads itself."""
    code = SHOW.replace("LIBRARIES", loaded)
    done = subprocess.run([sys.executable, "-c", code, *map(str, cores)], capture_output=True, text=True, check=True)
    for line, count in zip(done.stdout.splitlines(), counts, strict=True):
        found, variables = json.loads(line)
        assert set(found) == {count}
        assert set(variables) == {str(count)}
