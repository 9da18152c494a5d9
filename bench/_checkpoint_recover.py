"""How soon a job trains on when the parameter server that holds all its rows is killed (kill -9).

Prints a JSON object: ``recover_s``, from the kill to the next minibatch that needs rows of the one that follows, the median of the jobs (of
each the first kill: later ones wait first, on purpose); ``attach_s``, how much of it the follower takes to take up the memory; ``rows``
that it holds; ``step_s``, what the worker's usual step takes.

    python bench/_checkpoint_recover.py MEBIBYTES [JOBS]
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _train_worker import BATCH_SIZE, FEATURES
from migrate import Job

USUAL_SECONDS = 3.0
"""Of training before the kill."""
_TAKEN_UP = re.compile(r"has taken up ([\d,]+) rows of \S+ in ([\d.]+) s")


def recover(home: Path, table_bytes: int) -> dict[str, float]:
    job = Job(home, table_bytes, servers=1)
    try:
        job.until(lambda status: status.rows >= job.fill * BATCH_SIZE * FEATURES, "the tables were full")
        time.sleep(USUAL_SECONDS)
        pid, at = _pid(job.handle, "ps-0"), job.handle.status().samples
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        job.until(lambda status: status.samples > at + 50 * BATCH_SIZE, "training went on")
    finally:
        times = job.end()
    found = _TAKEN_UP.search(job.handle.job.log("ps-1").read_text())
    if found is None:
        raise SystemExit("ps-1 has taken up nothing")
    return {
        "recover_s": _resumed(times, killed) - killed,
        "attach_s": float(found[2]),
        "rows": float(found[1].replace(",", "")),
        "step_s": statistics.median(later - earlier for earlier, later in pairwise(times)),
    }


def _resumed(times: list[float], killed: float) -> float:
    """When the longest pause ended of those that begin at the kill or up to a second later: until then, rows pulled before were used up."""
    around = [(earlier, later) for earlier, later in pairwise(times) if later > killed and earlier < killed + 1.0]
    return max(around, key=lambda pair: pair[1] - pair[0])[1]


def _pid(handle: Any, node: str) -> int:
    import psutil

    keeper = handle.job.record().keeper
    for process in psutil.Process(keeper.pid).children(recursive=True):
        if process.name() == f"dl:{node}":
            return int(process.pid)
    raise SystemExit(f"{node} doesn't run")


def main() -> None:
    mebibytes, jobs = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    paths = [str(Path(__file__).parent), str(Path(__file__).resolve().parent.parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-bench-") as home:
        os.environ.setdefault("DLROVER_LITE_HOME", home)
        found = [recover(Path(home), mebibytes << 20) for _ in range(jobs)]
    print(json.dumps({name: statistics.median(each[name] for each in found) for name in found[0]}))


if __name__ == "__main__":
    main()
