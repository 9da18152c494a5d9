"""Files of a job that are read as they are: its logs and its recipe. On whichever thread asks, and it may take a while."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dlrover_lite.client.handle import JobHandle
from dlrover_lite.client.job_sources import backend_at
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.tui.sources.job_log import JobLogTail
from dlrover_lite.tui.sources.log_tail import LogTail

if TYPE_CHECKING:
    from dlrover_lite.jobs.backend import Log
    from dlrover_lite.tui.model import JobRow

__all__ = ["has_log", "log_of", "resolved_recipe"]


def log_of(row: JobRow, process: str) -> LogTail | JobLogTail:
    """Return the end of the log of a process; "": of all as one. Nothing is read so far."""

    def names() -> Sequence[str]:
        return JobHandle(row.id, backend_at(row.source)).log_names()

    def log(process: str, lines: int) -> Log:
        return JobHandle(row.id, backend_at(row.source)).log(process, last_lines=lines)

    return LogTail(partial(log, process)) if process else JobLogTail(names, log)


def has_log(row: JobRow, process: str) -> bool:
    """Return whether a process of a job of this machine has a log; "": any."""
    try:
        names = JobHandle(row.id).log_names() if row.directory else ()
    except DlroverLiteError:  # its files are gone
        return False
    return process in names if process else bool(names)


def resolved_recipe(row: JobRow) -> str:
    """Return the recipe of a job as YAML, with every default written out. Raises JobError where it can't be read."""
    from dlrover_lite.recipe.load import resolved_yaml

    return resolved_yaml(JobHandle(row.id, backend_at(row.source)).job.recipe)
