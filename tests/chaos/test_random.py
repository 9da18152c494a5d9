"""Jobs that are disturbed at random: whatever dies, stops or slows down, whenever, each sample counts once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.disturbance import Disturbance
from tests.chaos.extent import LONG, SECONDS, SEEDS
from tests.chaos.support import BATCH_SIZE, recipe, start
from tests.spine.support import until_trained

OPTIMIZERS = ["adagrad", "sgd", "adam", "ftrl"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_census_that_is_disturbed(tmp_path: Path, seed: int) -> None:
    print(f"CHAOS_SEED={seed}")
    rng = random.Random(seed)
    plain = recipe(
        ps=rng.randint(1, 2),
        workers=rng.randint(1, 2),
        epochs=max(8, round(SECONDS * 2)),
        optimizer=OPTIMIZERS[seed % len(OPTIMIZERS)],
        health={"heartbeat_seconds": 3},
    )
    job = start(tmp_path, plain, slow_seconds=0.02)
    until_trained(job.handle, BATCH_SIZE)
    Disturbance(job, rng).go_on(SECONDS)
    job.finish(300 if LONG else 100)
