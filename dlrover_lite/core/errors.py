"""Every exception that dlrover-lite raises on purpose.

::

    DlroverLiteError            what happened, where, and what to do next; never shown as a traceback
    ├── RecipeError             a recipe that can't be run as written          exit code 2
    ├── TraceError              a file of jobs or machines to be simulated     exit code 2
    ├── UsageError              a command or call with unusable arguments      exit code 2
    ├── DataError               training data that can't be read               exit code 1
    ├── ModelError              a model that can't be built or trained         exit code 1
    ├── JobError                a job that failed, or can't be found           exit code 1
    │   ├── DiskFull            something of the job can't be written for want of room
    │   ├── CheckpointDamaged   a checkpoint whose files aren't as they were written
    │   └── CheckpointForeign   a checkpoint in a format that this version can't read
    ├── BrainError              the brain's daemon can't be started or used    exit code 1
    ├── HistoryError            the brain's database can't be used             exit code 1
    │   ├── HistoryBusy         not now: it is locked, or its disk is full
    │   └── RowRefused          it can, but what was to be written makes no sense
    ├── BackendError            nodes that can't be launched or reached        exit code 1
    │   ├── CantResize          not in place: another node could have the new limits
    │   └── ResizeUnderWay      not yet: the node doesn't have its new limits
    └── WireError               a peer that can't be reached or understood     exit code 1
        ├── DeadlineExceeded    no answer within the deadline
        └── RemoteError         the peer answered with an error
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from dlrover_lite.core.problems import Problem

__all__ = [
    "BackendError",
    "BrainError",
    "CantResize",
    "CheckpointDamaged",
    "CheckpointForeign",
    "DataError",
    "DeadlineExceeded",
    "DiskFull",
    "DlroverLiteError",
    "HistoryBusy",
    "HistoryError",
    "JobError",
    "ModelError",
    "RecipeError",
    "RemoteError",
    "ResizeUnderWay",
    "RowRefused",
    "TraceError",
    "UsageError",
    "WireError",
]


class DlroverLiteError(Exception):
    """Base of all errors meant for a person. ``hint`` says what to do next, if anything is known."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class RecipeError(DlroverLiteError):
    """A recipe is wrong. ``message`` has a line for each problem; ``problems`` holds the same for programs. ``user_traceback``: as of
    ModelError, where a model that was tried has failed."""

    exit_code = 2

    def __init__(
        self, message: str, *, hint: str = "", problems: tuple[Problem, ...] = (), user_traceback: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems
        self.user_traceback = user_traceback


class TraceError(DlroverLiteError):
    """A trace, or a file of machines, can't be simulated as it is written: a line for each problem, as of RecipeError."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class UsageError(DlroverLiteError):
    exit_code = 2


class DataError(DlroverLiteError):
    pass


class ModelError(DlroverLiteError):
    """A model fails. ``user_traceback`` holds the traceback of the user's own code, trimmed to its frames; empty if there is none."""

    def __init__(self, message: str, *, hint: str = "", user_traceback: str = "") -> None:
        super().__init__(message, hint=hint)
        self.user_traceback = user_traceback


class JobError(DlroverLiteError):
    pass


class DiskFull(JobError):
    """The disk is full, or the quota is used up. It may be tried again: there may be room by then, in ``directory``."""

    def __init__(self, message: str, *, directory: Path, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.directory = directory


class CheckpointDamaged(JobError):
    """A checkpoint is damaged. ``file`` is the damaged one; an older checkpoint may be whole."""

    def __init__(self, message: str, *, file: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.file = file


class CheckpointForeign(JobError):
    """A checkpoint was written by a version of another major format. Nothing else is wrong with it."""


class BrainError(DlroverLiteError):
    pass


class HistoryError(DlroverLiteError):
    pass


class HistoryBusy(HistoryError):
    """The database is locked or its disk is full: trying again later may do."""


class RowRefused(HistoryError):
    """The database refuses a row: trying again is no use. Nothing of the transaction is written."""


class BackendError(DlroverLiteError):
    pass


class CantResize(BackendError):
    """A node isn't given other limits where it is: another one could have them."""


class ResizeUnderWay(BackendError):
    """A node is being resized, and doesn't have its new limits yet: ask again."""


class WireError(DlroverLiteError):
    pass


class DeadlineExceeded(WireError):
    pass


class RemoteError(WireError):
    """The peer refused a request. ``code`` is its stable name for the reason."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code
