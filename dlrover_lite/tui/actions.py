"""What a person may do to jobs from the screens."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dlrover_lite.tui.model import JobRow

__all__ = ["Actions", "LocalActions", "why_not"]


class Actions(Protocol):
    """Called on a thread that may wait. Raises DlroverLiteError for what can't be done."""

    def stop(self, row: JobRow) -> str:
        """Ask the job to stop; what follows from it, in words."""


def why_not(row: JobRow | None) -> str:
    """Why nothing can be done to it; empty: it can."""
    if row is None:
        return "no job is chosen"
    if row.over:
        return f"{row.id} has ended"
    if not row.directory:
        return f"{row.id} isn't on this machine"
    return ""


class LocalActions:
    """To jobs of this machine."""

    def stop(self, row: JobRow) -> str:
        from dlrover_lite.jobs.handle import JobHandle
        from dlrover_lite.jobs.store import Job

        JobHandle(Job(Path(row.directory))).stop()
        return f"{row.id} takes a last checkpoint, if it takes any, and stops"
