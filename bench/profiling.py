"""What profiling costs: ``profile.cost``, the throughput of a real job (1 PS, 1 worker) with it over without.

Both are measured in one job, in turn, for a moment each: in every second slot of time nodes measure and tell nothing for profiles, and the
master makes none. How fast a machine is changes by more than profiling costs from minute to minute, but hardly from one slot to the next:
the figure is the median of the ratios of neighbours, with its standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from _profiling_nodes import SLOT_SECONDS
from _train_worker import BATCH_SIZE, TIMES, make_batches
from common import Figure, arguments, emit
from numpy.typing import NDArray

MIB = 1 << 20
WARM_UP_SECONDS = 5.0


class Compared(NamedTuple):
    ratio: float
    """Throughput with profiling over that without."""
    error: float
    """Standard error of that."""
    samples_per_second: float
    """Without."""
    pairs: int


def read_times(directory: Path, samples: int) -> list[float]:
    """When each minibatch of a job was read, on the monotonic clock."""
    from dlrover_lite.backends.keeper.options import KeeperOptions
    from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs
    from dlrover_lite.client.handle import launch
    from dlrover_lite.jobs.backend import RunOptions
    from dlrover_lite.recipe.load import parse_recipe

    role = {"count": 1, "cores": 1, "memory": 2048 * MIB}
    recipe = parse_recipe(
        {
            "version": 1,
            "name": "bench-profiling",
            "model": {"use": "wide_deep", "options": {"embedding_dim": 16, "hidden": [256, 128]}},
            "data": {"format": "synthetic", "samples": samples, "eval_samples": 0},
            "training": {"batch_size": BATCH_SIZE},
            "resources": {"ps": role, "worker": role},
            "export": {"format": "none"},
            "checkpoint": "off",
            "directory": str(directory),
        }
    )
    keeper = KeeperOptions(
        master=[sys.executable, "-P", str(Path(__file__).with_name("_profiling_nodes.py"))],
        entries={"ps": "_profiling_nodes:server", "worker": "_profiling_nodes:worker"},
    )
    handle = launch(recipe, options=RunOptions(), backend=LocalJobs(keeper))
    result = handle.wait()
    if not result.ok:
        raise SystemExit(f"{result.message}\n{result.hint}\n{result.traceback}")
    reads: list[float] = json.loads((handle.directory / TIMES.format(node="worker-0")).read_text())
    return reads


def compared(reads: list[float]) -> Compared:
    """Minibatches in a slot are counted in parts: between two of them as many as of the time."""
    first = math.ceil((reads[0] + WARM_UP_SECONDS) / SLOT_SECONDS)
    slots = np.arange(first, math.floor(reads[-1] / SLOT_SECONDS) + 1)
    if len(slots) < 4:
        raise SystemExit("the job was too short to compare anything")
    done: NDArray[np.float64] = np.diff(np.interp(slots * SLOT_SECONDS, reads, np.arange(len(reads))))
    sign = np.where(slots[:-2] % 2 == 0, 1.0, -1.0)
    logs = sign * np.diff(-np.log(np.maximum(done, 1e-9)))  # of a slot with profiling over its neighbour without
    error = 1.253 * float(logs.std(ddof=1)) / math.sqrt(len(logs) / 2)  # of a median; neighbours share slots
    without = float(done[slots[:-1] % 2 == 1].sum()) / (SLOT_SECONDS * int((slots[:-1] % 2 == 1).sum()))
    return Compared(float(np.exp(np.median(logs))), error, without * BATCH_SIZE, len(logs))


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, help="of the job (default 8,000,000; 1,000,000 with --quick)")


def main() -> None:
    options = arguments(__doc__ or "", extend)
    bench = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [bench, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("DLROVER_LITE_HOME", home)
        make_batches(Path(home) / "batches.npz")
        samples = options.samples or (1_000_000 if options.quick else 8_000_000)
        found = compared(read_times(Path(home), samples))
    detail = {"standard_error": found.error, "pairs": found.pairs, "samples_per_second": found.samples_per_second}
    emit(options, [Figure("profile.cost", found.ratio, "x", ">= 0.99", None, detail)])


if __name__ == "__main__":
    main()
