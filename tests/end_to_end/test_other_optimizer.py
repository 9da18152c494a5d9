"""Real jobs that begin with another one's parameters and train them with another optimizer, while slots move; and their exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dlrover_lite
from dlrover_lite.checkpoint.manifest import configure
from dlrover_lite.client import census, resuming
from dlrover_lite.client.handle import JobHandle, launch
from dlrover_lite.core import slot_sets
from dlrover_lite.jobs.checkpoint_location import locate
from dlrover_lite.models import census_check
from dlrover_lite.tables.hashing import initial_rows
from dlrover_lite.tables.layout import PARAMETERS, group_tables
from tests.end_to_end.support import HERE, SMALL_WIDE_DEEP, SYNTHETIC, nodes, succeeded, until_trained
from tests.end_to_end.test_slots import until_placed

SAMPLES = 2_048
Floats = NDArray[np.float32]
ADAM = {"use": "adam", "learning_rate": 0.02}
FTRL = {"use": "ftrl", "learning_rate": 0.1, "l2": 0.01}


def run(model: Any, data: Any, slow: Path, optimizer: dict[str, Any], beginning: Any = None) -> JobHandle:
    """Slow until ``slow`` is there."""
    recipe = {
        "version": 1,
        "name": "other-optimizer",
        "model": model,
        "data": data,
        "training": {"batch_size": 16, "epochs": 2, "seed": 1, "optimizer": optimizer},
        "resources": nodes(1, 2, {}),
        "export": {"optimizer_state": True},
        "checkpoint": {"every_seconds": 3600},
        "directory": str(HERE),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLROVER_LITE_FAILPOINTS", f"worker.push.computed=slow:0.05@{slow}")
        return dlrover_lite.run(recipe)


def goes_on_with(first: JobHandle, slow: Path, optimizer: dict[str, Any]) -> tuple[JobHandle, resuming.Chosen]:
    """Another job, which begins with its newest checkpoint's parameters, from when it has trained a little until its slots have moved."""
    located = locate(first.id)
    chosen = resuming.choose(located)
    recipe = resuming.fitting_recipe(resuming.recipe_of(located, chosen), {"training.optimizer": optimizer})
    resuming.check_fits(chosen, recipe, only_parameters=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLROVER_LITE_FAILPOINTS", f"worker.push.computed=slow:0.05@{slow}")
        beginning = resuming.beginning_of(chosen, only_parameters=True)
        handle = launch(recipe, beginning=beginning)
    until_trained(handle, 100)
    assert "the optimizer's state of embeddings begins anew" in handle.status().begun
    handle.scale(ps=2)
    assert sum(until_placed(handle, 2).values()) == slot_sets.SLOTS
    handle.drain("ps-0")
    until_placed(handle, 1)
    handle.scale(ps=2)
    until_placed(handle, 2)
    assert handle.result() is None
    return handle, chosen


def stopped_with_a_checkpoint(handle: JobHandle, slow: Path) -> JobHandle:
    until_trained(handle, 200)
    handle.stop()
    assert handle.wait().state == "stopped"
    slow.unlink(missing_ok=True)
    return handle


def test_rows_continue_from_the_checkpoints_values_under_a_new_optimizer(tmp_path: Path, monkeypatch: Any) -> None:
    """Bit for bit, with the new optimizer's state, in an export of rows that have moved."""
    slow = tmp_path / "fast"
    model = {"use": "census", "options": {"embedding_dim": 4, "dense_values": 40_000}}
    first = stopped_with_a_checkpoint(run(model, {"format": "census", "samples": SAMPLES}, slow, ADAM), slow)
    handle, chosen = goes_on_with(first, slow, FTRL)
    slow.touch()
    assert succeeded(handle)["samples"] == 2 * SAMPLES
    held = values_in(chosen)
    assert len(held["sample"]) >= 200
    begin = census_check._initial

    def begun_with(ids: NDArray[np.uint64], *, table: str, **how: Any) -> Floats:
        rows: Floats = initial_rows(ids, table=table, **how)
        for at, key in enumerate(ids.tolist()):
            rows[at] = held[table].get(key, rows[at])
        return rows

    def initial(recipe: Any) -> tuple[Floats, Any]:
        flat, fields = begin(recipe)
        blocks = held[PARAMETERS.name]
        return np.concatenate([blocks[number] for number in range(len(blocks))])[: len(flat)], fields

    assert not census.check(handle.job).exact  # it hasn't begun with nothing
    monkeypatch.setattr(census_check, "initial_rows", begun_with)
    monkeypatch.setattr(census_check, "_initial", initial)
    report = census.check(handle.job)
    assert report.exact, report


def values_in(chosen: resuming.Chosen) -> dict[str, dict[int, Floats]]:
    """By table and id."""
    store = locate(chosen.url).store
    tables = [[table.name for table in group] for group in group_tables(configure(chosen.manifest).tables)]
    names = [*tables, [PARAMETERS.name]]
    found: dict[str, dict[int, Floats]] = {name: {} for group in names for name in group}
    for block in store.rows(chosen.manifest.cut):
        rows = block.rows
        for table, key, values in zip(rows.tables.tolist(), rows.ids.tolist(), rows.values, strict=True):
            found[names[block.group][table]][key] = values.copy()
    return found


def test_export_after_changing_the_optimizer_evaluates_as_the_job_did(tmp_path: Path) -> None:
    slow = tmp_path / "fast"
    first = stopped_with_a_checkpoint(run(SMALL_WIDE_DEEP, SYNTHETIC, slow, ADAM), slow)
    handle, _ = goes_on_with(first, slow, FTRL)
    until_trained(handle, 400)
    number = handle.checkpoint()
    slow.touch()
    last = succeeded(handle)["evaluations"][-1]
    found = dlrover_lite.evaluate(handle.id)
    assert found.samples == last["samples"]
    assert (found.loss, found.auc) == pytest.approx((last["loss"], last["auc"]), abs=1e-4)
    amid = dlrover_lite.evaluate(checkpoint=f"{handle.id}:{number}")
    assert amid.samples == found.samples and amid.loss != found.loss
