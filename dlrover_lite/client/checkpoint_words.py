"""What is to be said of a job's checkpoints, in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import at_time, count, duration, pause, plural

if TYPE_CHECKING:
    from dlrover_lite.jobs.store import Job
    from dlrover_lite.protocol.questions import CheckpointProblem, CheckpointStall, CheckpointStatus, Status

__all__ = [
    "checkpoint_lines",
    "newest_text",
    "open_problem",
    "problem_text",
    "saving",
    "stalls_of",
]


def saving(status: Status) -> str:
    """Say what is being saved, for the progress line: ``saving 3``; empty while nothing is written."""
    known = status.checkpoints
    if known is None or known.under_way is None:
        return ""
    under_way = known.under_way
    if under_way.state == "waiting":
        return f"checkpoint {under_way.number} waits"
    return f"saving {under_way.number}"


def open_problem(status: Status) -> CheckpointProblem | None:
    """Return what went wrong with checkpoints since the newest one, if anything did."""
    known = status.checkpoints
    if known is None or known.problem is None:
        return None
    over = known.newest is not None and known.newest.number > known.problem.number
    return None if over else known.problem


def problem_text(problem: CheckpointProblem) -> str:
    """Say what is wrong with checkpoints: ``checkpoint 4 failed: …``."""
    if problem.too_slow:
        return f"{problem.why}. {problem.hint}"
    what = f"checkpoint {problem.number}" if problem.number else "checkpoints"
    how = "failed" if problem.failures else "was given up" if problem.number else "failed"
    return f"{what} {how}: {problem.why}"


def checkpoint_lines(status: Status) -> list[str]:
    """List lines for the summary: the newest checkpoint, and what has gone wrong since."""
    known = status.checkpoints
    if known is None:
        return []
    lines = [newest_text(known.newest)] if known.newest is not None else []
    if known.under_way is not None:
        under_way = known.under_way
        rows = f", {plural(under_way.rows, 'row')}" if under_way.rows else ""
        lines.append(f"{under_way.number} is {under_way.state}{rows}")
    if (problem := open_problem(status)) is not None:
        lines.append(f"{problem_text(problem)} ({at_time(problem.at)})")
    return lines


def newest_text(newest: CheckpointStatus) -> str:
    """Describe the newest checkpoint: ``3, at 2,150,400 samples (2026-11-21 12:10:08): 208,009 rows, 30 MiB in 1.2 s``."""
    took = f" in {duration(newest.seconds)}" if newest.seconds else ""
    held = "" if newest.stall_seconds is None else f", held training up by {pause(newest.stall_seconds)}"
    size = f"{plural(newest.rows, 'row')}, {format_bytes(newest.bytes)}{took}{held}"
    return f"{newest.number}, at {count(newest.samples)} samples ({at_time(newest.at)}): {size}"


def stalls_of(job: Job) -> dict[int, CheckpointStall]:
    """Return how its last checkpoints held training up, by number: as its master wrote last."""
    from dlrover_lite.protocol.questions import CheckpointStall

    result = job.result()
    kept = (result.status if result is not None else None) or job.status() or {}
    known = (kept.get("checkpoints") or {}).get("stalls", ())
    return {one["number"]: CheckpointStall(**one) for one in known}
