"""The status of a job whose master isn't there to ask."""

from __future__ import annotations

from typing import Any

import msgspec

from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.protocol.questions import (
    CheckpointProblem,
    CheckpointsStatus,
    CheckpointStall,
    CheckpointStatus,
    Status,
    status_of,
)

__all__ = ["final", "has_checkpoint", "starting"]


def final(job: Job, result: Result) -> Status:
    """Return the master's last status, with how the job ended."""
    known = {**_blank(job.id), **(_ended(job.status()) if result.status is None else result.status)}
    status = status_of(known)
    return msgspec.structs.replace(
        status,
        state=result.state,
        message=result.message or status.message,
        checkpoints=_checkpoints(known["checkpoints"]),
        next_look=None,
        expected_end=None,
        restoring=None,
        exporting=None,
    )


def _ended(status: dict[str, Any] | None) -> dict[str, Any]:
    """Return a status that was written while the job ran, as it is now: whatever ran then was killed."""
    if status is None:
        return {}
    nodes = [
        node if node["state"].startswith("ended") else {**node, "state": "ended (Killed)", "samples_per_second": 0.0}
        for node in status["nodes"]
    ]
    return {**status, "nodes": nodes, "message": ""}


def _checkpoints(known: dict[str, Any] | None) -> CheckpointsStatus | None:
    """Return the last known checkpoints: whatever was under way isn't any more."""
    if known is None:
        return None
    newest, problem = known["newest"], known["problem"]
    return CheckpointsStatus(
        newest=newest and CheckpointStatus(**newest),
        problem=problem and CheckpointProblem(**problem),
        stalls=[CheckpointStall(**stall) for stall in known.get("stalls", ())],
    )


def has_checkpoint(status: Status, number: int) -> bool:
    """Return whether this checkpoint, or a newer one, is complete. Raises JobError when it couldn't be written."""
    known = status.checkpoints
    if known is None:
        return False
    if known.newest is not None and known.newest.number >= number:
        return True
    problem = known.problem
    if problem is not None and problem.number >= number and problem.failures:
        raise JobError(f"checkpoint {problem.number} came to nothing: {problem.why}", hint=problem.hint)
    return False


def starting(job: Job) -> Status:
    """Return the status of a job without a master so far."""
    return Status(**_blank(job.id))


def _blank(job_id: str) -> dict[str, Any]:
    return {
        "job": job_id,
        "state": "starting",
        "epoch": 0,
        "epochs": 0,
        "samples": 0,
        "total_samples": 0,
        "samples_per_second": 0.0,
        "loss": None,
        "auc": None,
        "elapsed_seconds": 0.0,
        "nodes": [],
        "evaluations": [],
        "bad_lines": 0,
        "quarantined": 0,
        "staleness_p99": None,
        "staleness_max": None,
        "rows": 0,
        "message": "",
        "bad_examples": [],
        "enforcement": "",
        "not_enforced": [],
        "generation": 0,
        "begun": "",
        "master_restarts": 0,
        "moves": [],
        "slot_map_version": 0,
        "slots_settled": True,
        "checkpoints": None,
        "plan": "",
    }
