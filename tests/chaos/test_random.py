"""Jobs that are disturbed at random: whatever dies, stops or slows down, whenever, each sample counts once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dlrover_lite.jobs.store import Result
from tests.chaos.disturbance import Disturbance
from tests.chaos.extent import LONG, OPTIMIZERS, SECONDS, SEEDS
from tests.chaos.support import BATCH_SIZE, recipe, start
from tests.end_to_end.support import until_trained

SYNTHETIC = {"format": "synthetic", "samples": 90_000, "eval_samples": 30_000, "ids_per_field": 1_000, "seed": 1}
MOST_LOST = 0.005
"""AUC."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_census_is_exact_after_random_faults(tmp_path: Path, seed: int, faults: Counter[str]) -> None:
    print(f"CHAOS_SEED={seed}")
    rng = random.Random(seed)
    plain = recipe(
        ps=rng.randint(1, 2),
        workers=rng.randint(1, 2),
        epochs=max(8, round(SECONDS * 2)),
        optimizer=OPTIMIZERS[seed % len(OPTIMIZERS)],
        health={"heartbeat_seconds": 3},
        checkpoint={"every_seconds": 1},
    )
    slow_seconds = rng.choice([0.02, 0.0])  # without, it may come to its end, and write its model, meanwhile
    job = start(tmp_path, plain, slow_seconds=slow_seconds)
    until_trained(job.handle, BATCH_SIZE)
    disturbance = Disturbance(job, rng, faults)
    disturbance.go_on(SECONDS)
    assert_harmed(disturbance, job.finish(300))


def test_census_is_exact_after_a_server_ran_out_of_memory(tmp_path: Path) -> None:
    """Killed by the kernel, or whoever enforces its limit here, wherever it is; and its followers, until one has enough."""
    plain = recipe(ps=1, workers=1, epochs=1)
    plain["model"]["options"]["embedding_dim"] = 64
    plain["data"]["samples"], plain["training"]["batch_size"] = 1 << 18, 1 << 10
    plain["resources"]["ps"]["memory"] = "128MiB"
    job = start(tmp_path, plain)
    status = job.finish().status
    assert status is not None
    assert any("OOMKilled: over its memory limit of 128 MiB" in node["state"] for node in status["nodes"])


@pytest.mark.skipif(not LONG, reason="make chaos")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_learns_as_much_despite_random_faults(
    tmp_path: Path, seed: int, undisturbed_auc: float, faults: Counter[str]
) -> None:
    print(f"CHAOS_SEED={seed}")
    job = start(tmp_path, quality(), slow_seconds=0.02)
    until_trained(job.handle, BATCH_SIZE)
    disturbance = Disturbance(job, random.Random(seed), faults)
    disturbance.go_on(SECONDS)
    result = job.finish(300)
    assert_harmed(disturbance, result)
    status = result.status
    assert status is not None
    auc = status["evaluations"][-1]["auc"]
    print(f"AUC {auc:.5f}, undisturbed {undisturbed_auc:.5f}")
    assert abs(auc - undisturbed_auc) <= MOST_LOST


def assert_harmed(disturbance: Disturbance, result: Result) -> None:
    """By what was done, and by what the job itself says of its nodes."""
    assert disturbance.harm["kill worker"] + disturbance.harm["kill ps"] > 0
    assert result.status is not None
    # A node whose template is killed before it could tell of the node's death is told as lost with the template.
    assert any("killed" in node["state"].lower() for node in result.status["nodes"]), result.status["nodes"]


@pytest.fixture(scope="module")
def undisturbed_auc(tmp_path_factory: pytest.TempPathFactory) -> float:
    status = start(tmp_path_factory.mktemp("undisturbed"), quality()).finish(300).status
    assert status is not None
    auc: float = status["evaluations"][-1]["auc"]
    assert auc > 0.75  # it has learnt something: the teacher itself reaches 0.80
    return auc


def quality() -> dict[str, Any]:
    return {
        **recipe(ps=2, workers=2, epochs=1, health={"heartbeat_seconds": 3}),
        "model": {"use": "wide_deep", "options": {"embedding_dim": 8, "hidden": [64, 32]}},
        "data": SYNTHETIC,
        "training": {"batch_size": 256, "seed": 1, "optimizer": {"use": "adagrad", "learning_rate": 0.02}},
        "export": {"format": "none"},
    }
