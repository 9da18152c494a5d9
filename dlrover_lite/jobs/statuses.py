"""The status of a job whose master isn't there to ask."""

from __future__ import annotations

from typing import Any, Literal

from dlrover_lite.jobs.store import Result
from dlrover_lite.wire.messages import EvaluationResult, NodeStatus, Status

__all__ = ["blank", "final"]


def final(job_id: str, result: Result) -> Status:
    """The master's last status, with how the job ended."""
    state: Literal["succeeded", "failed", "stopped"] = "failed" if result.state == "lost" else result.state
    known = {**_blank(job_id), **(result.status or {})}
    fields = {name: known[name] for name in Status.__struct_fields__}
    fields["nodes"] = [NodeStatus(**node) for node in fields["nodes"]]
    fields["evaluations"] = [EvaluationResult(**evaluation) for evaluation in fields["evaluations"]]
    return Status(**{**fields, "state": state, "message": result.message or fields["message"]})


def blank(job_id: str, state: Literal["starting", "failed"], message: str = "") -> Status:
    return Status(**{**_blank(job_id), "state": state, "message": message})


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
        "master_restarts": 0,
    }
