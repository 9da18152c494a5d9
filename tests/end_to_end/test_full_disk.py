"""Real jobs on a disk that is full for a while: every sample counts once all the same, and the model is there in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlrover_lite
from dlrover_lite.client import census
from dlrover_lite.client.handle import JobHandle
from tests.backends.support import until
from tests.end_to_end.support import HERE, nodes, succeeded, until_trained

SAMPLES = 4_096
WRITES = ("job.ledger", "job.file", "job.log")


def start(points: str) -> JobHandle:
    recipe = {
        "version": 1,
        "name": "full-disk",
        "model": {"use": "census", "options": {"embedding_dim": 4}},
        "data": {"format": "census", "samples": SAMPLES},
        "training": {"batch_size": 16, "epochs": 1, "seed": 1},
        "resources": nodes(1, 2, {}),
        "export": {"optimizer_state": True},
        "checkpoint": "off",
        "directory": str(HERE),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLROVER_LITE_FAILPOINTS", points)
        return dlrover_lite.run(recipe)


def test_training_and_its_export_wait_for_room(tmp_path: Path) -> None:
    full, no_export, slow = tmp_path / "full", tmp_path / "no-export", tmp_path / "fast"
    points = [f"{name}=full@{full}" for name in WRITES]
    handle = start(",".join([*points, f"export=full@{no_export}", f"worker.push.computed=slow:0.05@{slow}"]))
    no_export.touch()
    until_trained(handle, 200)
    full.touch()
    until(lambda: "training waits for room" in handle.status().waits, "the full disk")
    assert str(handle.directory) in handle.status().message
    samples = handle.status().samples
    assert handle.status().samples == samples < SAMPLES
    slow.touch()
    full.unlink()
    until(lambda: "can't be exported" in handle.status().waits, "the export that fails")
    assert handle.status().state == "exporting"
    no_export.unlink()
    status = succeeded(handle)
    assert status["samples"] == SAMPLES
    assert all(node["state"] in ("ended (Succeeded)", "ended (Stopped)") for node in status["nodes"]), status["nodes"]
    assert census.check(handle.job).exact
    told = [entry.text for entry in handle.story("master").entries]
    assert sum("training waits until there is room" in text for text in told) == 1
