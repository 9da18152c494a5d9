"""Cuts of a real job: taken beside training, on request and before it stops."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.checkpoint_location import store_of
from tests.end_to_end.support import end, until_trained
from tests.end_to_end.test_nodes import census
from tests.end_to_end.test_slots import exactly_once


def test_checkpoints_of_a_job_are_whole_and_change_no_result(tmp_path: Path) -> None:
    often = {"every_seconds": 0.5, "full_every": 3, "keep": 100}
    before = os.umask(0)  # all that the job's processes make is their owner's alone, but for the export
    try:
        handle = census(tmp_path, ps=2, checkpoint=often)
    finally:
        os.umask(before)
    until_trained(handle, 500)
    asked = [handle.checkpoint(), handle.checkpoint(), handle.checkpoint(wait=False)]
    assert asked == sorted(set(asked))
    exactly_once(handle)
    with pytest.raises(JobError, match="there is nothing to take a checkpoint of"):
        handle.checkpoint()
    store = store_of(handle.job)
    cuts = store.checkpoints()
    manifests = [cut.manifest for cut in cuts if cut.manifest is not None]
    assert [cut.state for cut in cuts] == ["complete"] * len(manifests)
    assert {*asked[:2]} <= {one.cut for one in manifests}
    assert any(one.builds_on is None for one in manifests)
    assert any(one.builds_on is not None for one in manifests)
    assert all(sorted(part.ps for part in one.parts) == [0, 1] for one in manifests)
    assert [one.samples for one in manifests] == sorted((one.samples for one in manifests), reverse=True)
    assert [problem for cut in cuts for problem in store.verify(cut.number, chain=False)] == []
    assert store.clean() == []  # nothing half-written was left
    kept = [path for path in handle.job.directory.rglob("*") if not path.is_relative_to(handle.job.export)]
    open_to_others = [path for path in (handle.job.directory, *kept) if path.stat().st_mode & 0o077]
    assert len(kept) > 20 and open_to_others == []


def test_a_stopped_job_takes_a_last_checkpoint(tmp_path: Path) -> None:
    handle = census(tmp_path)
    until_trained(handle, 500)
    before = handle.status().samples
    handle.stop()
    result = end(handle)
    assert (result.state, result.message) == ("stopped", "stopped by request")
    assert result.status is not None
    assert before <= result.status["samples"] < result.status["total_samples"]
    assert all(node["state"] == "ended (Succeeded)" for node in result.status["nodes"])
    (cut,) = store_of(handle.job).checkpoints()
    assert cut.manifest is not None
    assert cut.manifest.samples >= before
    assert result.hint.startswith(f"To go on from checkpoint {cut.number}: dlrover-lite run --resume {handle.id}\n")
    known = handle.status().checkpoints
    assert known is not None
    assert known.newest is not None
    assert (known.newest.number, known.newest.samples) == (cut.number, cut.manifest.samples)
