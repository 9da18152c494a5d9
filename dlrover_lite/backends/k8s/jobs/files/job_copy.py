"""A job's directory as it can be read from elsewhere: a copy that is made when somebody first looks into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dlrover_lite.jobs.store import Job

__all__ = ["JobCopy"]


class JobCopy(Job):
    """``Job`` whose files are elsewhere. ``fetch`` brings them to ``place``, once; it raises JobError where they can't be reached."""

    def __init__(self, job: str, place: Path, fetch: Callable[[Path], None]) -> None:
        self.id = job
        self.place = place
        """Where the copy is, or will be."""
        self._fetch = fetch
        self._fetched = False

    @property
    def directory(self) -> Path:  # type: ignore[override]
        if not self._fetched:
            self._fetch(self.place)
            self._fetched = True
        return self.place

    @property
    def logs(self) -> Path:  # type: ignore[override]
        return self.directory / "logs"

    @property
    def export(self) -> Path:  # type: ignore[override]
        return self.directory / "export"
