"""A job whose tables outgrow its parameter server: the brain gives it more memory before it runs out, and nothing is killed for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlrover_lite
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.protocol.acts import Resize
from tests.end_to_end.support import succeeded

LIMIT = 96 << 20
"""Bytes: full a few seconds after training has begun, before anything else is measured."""


@pytest.fixture(autouse=True)
def brain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_BRAIN", "embedded")


def test_a_server_whose_tables_outgrow_it_gets_more_memory_in_time(tmp_path: Path) -> None:
    handle = dlrover_lite.run(
        {
            "version": 1,
            "name": "growing",
            "model": {"use": "wide_deep", "options": {"embedding_dim": 16, "hidden": [8]}},
            "data": {
                "format": "synthetic",
                "samples": 60_000,
                "eval_samples": 0,
                "ids_per_field": 100_000,
                "zipf_exponent": 0.2,
            },
            "training": {"batch_size": 256, "optimizer": {"use": "adagrad"}},
            "resources": {
                "ps": {"count": 1, "cores": 0.5, "memory": LIMIT},
                "worker": {"count": 1, "cores": 0.15, "memory": "1GiB"},
            },
            "autoscale": "on",
            "checkpoint": "off",
            "export": {"format": "none"},
            "directory": str(tmp_path),
        }
    )
    status = succeeded(handle)
    (server,) = (node for node in status["nodes"] if node["role"] == "ps")  # it is still the first one
    assert server["peak_memory"] > 1.2 * LIMIT
    with ConfigStore(BrainFiles().database) as store:
        decided = [one.decision.treatment for one in queries.decisions(store, handle.id) if one.decision.acts]
    assert any(one is not None and isinstance(one.act, Resize) for one in decided)
