"""A census whose tables grow to gigabytes, disturbed all the while: kills, moves and checkpoints amid growth, and every counter exact."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import psutil
import pytest

from dlrover_lite.core.units import GIB
from tests.chaos.disturbance import Disturbance
from tests.chaos.extent import LONG, SEEDS
from tests.chaos.support import recipe, start
from tests.end_to_end.support import until_trained

SIZE_GIB = float(os.environ.get("CHAOS_GIB", "4"))
DIM, BATCH_SIZE = 256, 512
ROW_BYTES = 4 * DIM * 2
"""Values and Adagrad's state."""
EPOCHS = 2
"""In the first one tables grow, in the second one each row changes once more."""


@pytest.mark.skipif(not LONG, reason="make chaos")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_census_is_exact_after_faults_while_growing_to_gigabytes(
    tmp_path: Path, seed: int, faults: Counter[str]
) -> None:
    print(f"CHAOS_SEED={seed}, CHAOS_GIB={SIZE_GIB:g}")
    size = int(SIZE_GIB * GIB)
    if (missing := what_is_missing(tmp_path, size)) is not None:
        pytest.skip(missing)
    plain = recipe(
        ps=1,
        workers=2,
        epochs=EPOCHS,
        health={"heartbeat_seconds": 5},
        checkpoint={"every_seconds": 10, "keep": 2},
    )
    plain["model"]["options"]["embedding_dim"] = DIM
    plain["data"]["samples"] = size // ROW_BYTES // BATCH_SIZE * BATCH_SIZE
    plain["training"]["batch_size"] = BATCH_SIZE
    memory = f"{int(1.5 * size) + GIB}"
    plain["resources"]["ps"] |= {"memory": memory, "cores": 1}
    plain["resources"]["worker"] |= {"memory": "2GiB"}
    job = start(tmp_path, plain)
    until_trained(job.handle, BATCH_SIZE)
    disturbance = Disturbance(job, random.Random(seed), faults)
    disturbance.go_on(seconds=3000, pause_seconds=1)
    result = job.finish(1500)
    assert result.status is not None
    assert disturbance.harm["kill ps"] + disturbance.harm["kill worker"] > 0
    assert result.status["rows"] >= plain["data"]["samples"]


def what_is_missing(directory: Path, size: int) -> str | None:
    """Whatever this machine has too little of: two servers may have all rows for a moment; two checkpoints, one that is written, and the
    export are on the disk."""
    memory, disk = psutil.virtual_memory().available, shutil.disk_usage(directory).free
    if memory < 3 * size + 4 * GIB:
        return f"{3 * size + 4 * GIB:,} bytes of memory are needed, and {memory:,} are there"
    if disk < 8 * size:
        return f"{8 * size:,} bytes of disk are needed, and {disk:,} are there"
    return None
