"""The log of a process: lines with the time in front, on its standard output."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

__all__ = ["log", "log_to"]

_LOGGER = logging.getLogger("dlrover_lite")


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to what the standard stream is by then: a forked process has one of its own. What can't be written, as on a full disk, ends
    nothing."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.name_of_stream: Literal["stdout", "stderr"] = "stdout"
        self.setFormatter(logging.Formatter("{asctime} {message}", "%Y-%m-%d %H:%M:%S", style="{"))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return getattr(sys, self.name_of_stream)  # type: ignore[no-any-return]

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


_HANDLER = _Handler()
_LOGGER.addHandler(_HANDLER)
_LOGGER.setLevel(logging.INFO)
_LOGGER.propagate = False


def log(line: str) -> None:
    """Write a line, or several with one time."""
    _LOGGER.info("%s", line)


def log_to(stream: Literal["stdout", "stderr"]) -> None:
    """Choose where this process, and those forked from it, write from now on."""
    _HANDLER.name_of_stream = stream
