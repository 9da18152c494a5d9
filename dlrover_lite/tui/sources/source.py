"""Where what is shown comes from: jobs that run, or a recording."""

from __future__ import annotations

from typing import Protocol

from dlrover_lite.tui.model import Explanation, JobDetail, JobsView

__all__ = ["Source"]


class Source(Protocol):
    """Read by threads that may wait: ``jobs`` always by one, ``job`` and ``forget`` by another. What a call can't find out it says in a
    ``problem``, or raises a DlroverLiteError; the next call tries again. Nothing that is returned changes afterwards."""

    def jobs(self) -> JobsView:
        """Return all jobs. Rows, and the whole view, are the same objects as before where nothing has changed."""

    def job(self, job: str) -> JobDetail | None:
        """Return one job in detail; None where it isn't known (any more). The same object as before if nothing has changed."""

    def explain(self, job: str, number: int) -> Explanation | None:
        """Return the explanation of a decision; None where it isn't kept (any more). On whichever thread asks, and it may take a while."""

    def forget(self) -> None:
        """Forget the job that was looked at: none is any more, and what was kept for it may go."""

    def close(self) -> None:
        """Close the source, on whichever thread is the last."""
