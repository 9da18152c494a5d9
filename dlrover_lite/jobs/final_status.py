"""The status of a job whose master isn't there to ask."""

from __future__ import annotations

from typing import Any

import msgspec

from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.protocol.questions import Status, status_of

__all__ = ["final", "has_checkpoint", "starting"]


def final(job: Job, result: Result) -> Status:
    """Return the master's last status, with how the job ended."""
    known = _ended(job.status()) if result.status is None else result.status
    status = status_of({"job": job.id, "state": result.state, **known})
    checkpoints = status.checkpoints
    return msgspec.structs.replace(
        status,
        state=result.state,
        message=result.message or status.message,
        checkpoints=checkpoints and msgspec.structs.replace(checkpoints, under_way=None),
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


def starting(job: Job, waits_for: str = "") -> Status:
    """Return the status of a job without a master so far, with what it waits for."""
    return Status(job.id, "starting", message=waits_for)
