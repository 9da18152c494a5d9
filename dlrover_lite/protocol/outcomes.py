"""What came of a job: made of the last status that its master has given, by the master itself or from the job's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dlrover_lite.core.bounds import ByKey, Bytes, Count, Name, Number, Rate, Seconds


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a job. A value that is 0 or None isn't known."""

    seconds: Seconds = 0.0
    """Seconds from the job's beginning to its end."""
    samples_per_second: Rate = 0.0
    """Mean throughput over the whole job."""
    auc: Number | None = None
    """AUC of the last evaluation, or of training while there is none."""
    peak_memory: ByKey[Name, Bytes] = {}
    """Role -> the most bytes of memory that any one of its nodes has used."""
    nodes: ByKey[Name, Count] = {}
    """Role -> number of nodes that it has had, those that took another's place included."""
    oom_kills: Count = 0
    """Number of nodes that were killed for memory."""


def outcome_of(status: Mapping[str, Any]) -> JobOutcome:
    """Make an outcome of a master's ``Status`` by field names (``protocol.questions.to_builtins``), of whatever version: what it hasn't is
    unknown."""
    samples, seconds = status.get("samples") or 0, status.get("elapsed_seconds") or 0.0
    peaks: dict[str, int] = {}
    counts: dict[str, int] = {}
    oom_kills = 0
    for node in status.get("nodes") or ():
        role = node.get("role", "")
        counts[role] = counts.get(role, 0) + 1
        peaks[role] = max(peaks.get(role, 0), node.get("peak_memory") or 0)
        oom_kills += node.get("state", "").startswith("ended (OOMKilled")
    evaluations = status.get("evaluations") or ()
    return JobOutcome(
        seconds=float(seconds),
        samples_per_second=samples / seconds if seconds else 0.0,
        auc=evaluations[-1].get("auc") if evaluations else status.get("auc"),
        peak_memory={role: peak for role, peak in peaks.items() if peak},
        nodes=counts,
        oom_kills=oom_kills,
    )
