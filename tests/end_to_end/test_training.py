"""Jobs that go well, from the recipe to the exported model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import dlrover_lite
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.data.open import open_data
from dlrover_lite.models.matmul import onednn
from dlrover_lite.models.serving import evaluate_export
from tests.end_to_end.support import SMALL_WIDE_DEEP, SYNTHETIC, start, succeeded


def assert_export_is_what_was_evaluated(handle: JobHandle) -> None:
    result = handle.result()
    assert result is not None
    assert result.export is not None
    recipe = handle.job.recipe
    held_out = open_data(recipe.data, directory=handle.directory, part="eval")
    assert held_out is not None
    with onednn() as is_onednn:
        # in minibatches as the job's: how products are rounded depends on their size, and one pair more or less is 1.3e-6 of the AUC
        metrics = evaluate_export(result.export, held_out, recipe.training.batch_size)
    assert ("oneDNN" in handle.logs()["worker-0"].read_text()) is is_onednn
    last = handle.status().evaluations[-1]
    assert metrics.samples == last.samples == 2_048
    assert metrics.auc == pytest.approx(last.auc, abs=1e-6)
    assert metrics.loss == pytest.approx(last.loss, abs=1e-5)


def assert_it_has_learnt(evaluations: list[dict[str, Any]]) -> None:
    print([(found["loss"], found["auc"]) for found in evaluations])
    assert evaluations[-1]["loss"] < 0.56
    assert evaluations[-1]["auc"] > 0.65
    first, last = evaluations[0], evaluations[-1]
    if first["at_samples"] * 2 < last["at_samples"]:  # later, there is little left to learn
        assert last["loss"] < first["loss"]


# Each with another optimizer; Adagrad is the one of tests/convergence.


def test_trains_with_one_server_and_one_worker() -> None:
    handle = start(
        SMALL_WIDE_DEEP,
        SYNTHETIC,
        epochs=2,
        optimizer={"use": "sgd", "learning_rate": 0.5},
        schedule={"use": "linear", "warmup_samples": 500},
    )
    status = succeeded(handle)
    assert status["samples"] == 2 * 8_192
    assert status["staleness_max"] <= 1  # nobody else pushes, and one minibatch of its own may be on its way
    assert [node["state"] for node in status["nodes"]] == ["ended (Succeeded)"] * 2
    assert len(status["evaluations"]) == 1
    assert_it_has_learnt(status["evaluations"])
    assert_export_is_what_was_evaluated(handle)


def test_trains_with_two_servers_three_workers_and_evaluations() -> None:
    handle = start(
        SMALL_WIDE_DEEP,
        SYNTHETIC,
        ps=2,
        workers=3,
        epochs=3,
        evaluate_every=8_000,
        export="parquet",
        optimizer={"use": "ftrl", "learning_rate": 0.1},
        schedule={"use": "linear", "warmup_samples": 500},
    )
    status = succeeded(handle)
    evaluations = status["evaluations"]
    at = [evaluation["at_samples"] for evaluation in evaluations]
    assert at == sorted(at)
    assert at[-1] == 3 * 8_192
    assert 2 <= len(at) <= 4  # due every 8,000 samples, one at a time, and at the end
    assert all(evaluation["samples"] == 2_048 for evaluation in evaluations)
    assert_it_has_learnt(evaluations)
    assert_export_is_what_was_evaluated(handle)
    model = dlrover_lite.load_model(handle.result().export)  # type: ignore[union-attr]
    assert status["rows"] == sum(len(table.ids) for table in model.tables.values())


def test_trains_with_batch_norm_dropout_and_a_schedule() -> None:
    handle = start(
        "user_models.py:Normalised",
        SYNTHETIC,
        ps=2,
        workers=2,
        epochs=2,
        optimizer={"use": "adam", "learning_rate": 0.01},
        schedule={"use": "cosine", "warmup_samples": 1_000},
    )
    status = succeeded(handle)
    assert_it_has_learnt(status["evaluations"])
    assert_export_is_what_was_evaluated(handle)
    dense = load_file(f"{handle.result().export}/dense.safetensors")  # type: ignore[union-attr]
    mean, variance = dense["layers.0.running_mean"], dense["layers.0.running_var"]
    data = open_data(handle.job.recipe.data, directory=handle.directory, part="train")
    assert data is not None
    inputs = data.read(np.arange(8_192)).dense  # the first columns that are normalised
    np.testing.assert_allclose(mean[: inputs.shape[1]], inputs.mean(0), atol=0.3)
    np.testing.assert_allclose(variance[: inputs.shape[1]], inputs.var(0), rtol=0.5)
