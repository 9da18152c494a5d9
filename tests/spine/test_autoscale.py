"""A job whose recipe leaves its resources open: the brain plans it, scales it up while it trains, says why, and no sample is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import dlrover_lite
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import StoredDecision
from dlrover_lite.cli.history import open_history
from dlrover_lite.cli.main import cli
from dlrover_lite.jobs import census
from dlrover_lite.jobs.brain_files import BrainFiles
from dlrover_lite.jobs.handle import JobHandle
from tests.spine.support import WAIT_SECONDS, succeeded

SAMPLES, EPOCHS = 1 << 16, 5
"""More than the smallest plan trains before the first interval is measured."""


@pytest.fixture(autouse=True)
def brain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_BRAIN", "embedded")


def acting(job: str) -> list[StoredDecision]:
    with ConfigStore(BrainFiles().database) as store:
        return [one for one in queries.decisions(store, job) if one.decision.acts]


def scaled_up(handle: JobHandle) -> bool:
    if (store := open_history()) is None:
        return False
    with store:
        plans = [one.plan for one in queries.plans(store, handle.id, kind="granted")]
    cores = [plan.ps.count * plan.ps.each.cores + plan.worker.count * plan.worker.each.cores for plan in plans]
    return bool(cores) and max(cores) > cores[0]


def test_a_job_without_resources_is_scaled_up_explained_and_counted(tmp_path: Path) -> None:
    handle = dlrover_lite.run(
        {
            "version": 1,
            "name": "open",
            "model": {"use": "census", "options": {"embedding_dim": 4, "dense_values": 40_000}},
            "data": {"format": "census", "samples": SAMPLES},
            "training": {"batch_size": 64, "epochs": EPOCHS, "optimizer": {"use": "adagrad"}},
            "checkpoint": "off",
            "export": {"optimizer_state": True},
            "directory": str(tmp_path),
        }
    )
    end_at = time.monotonic() + WAIT_SECONDS
    while not scaled_up(handle):
        assert handle.result() is None, "it has ended before it was scaled"
        assert time.monotonic() < end_at
        time.sleep(0.1)
    status = succeeded(handle)
    assert status["samples"] == EPOCHS * SAMPLES
    assert census.check(handle.job).exact
    first, *others = acting(handle.id)
    assert first.decision.stage == "initial" and first.decision.action == "start"
    assert others and all(one.decision.action in ("change", "explore") for one in others)
    explained = CliRunner().invoke(cli, ["explain", handle.id, str(others[0].number)])
    assert explained.exit_code == 0 and others[0].decision.reason[1:] in explained.output
