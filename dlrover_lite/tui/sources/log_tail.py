"""The end of a node's log, which grows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from dlrover_lite.tui.text import Line, line

if TYPE_CHECKING:
    from dlrover_lite.jobs.backend import Log

__all__ = ["KEPT_LINES", "NOTHING", "LogLines", "LogTail", "cleaned"]

KEPT_LINES = 5000


class LogLines(NamedTuple):
    """The last lines of a log, or of several."""

    lines: tuple[Line, ...]
    gone: int
    """Number of lines that were there before these, since the log was opened, and aren't kept any more."""


NOTHING = line(("(nothing so far)", "dim"))


class LogTail:
    """The last lines of a log: of those there are at first, and of those that come. ``log`` opens it when it is read, with at most so many
    lines."""

    def __init__(self, log: Callable[[int], Log]) -> None:
        self._open = log
        self._opened: Log | None = None
        self._lines: deque[Line] = deque(maxlen=KEPT_LINES)
        self._gone = 0
        self._told: LogLines | None = None
        self._restarts = 0
        self._begun = ""

    def read(self) -> LogLines:
        """Return all lines that are kept; the same object as before if nothing is new. Raises JobError when the log can't be read."""
        if self._opened is None:
            self._opened = self._open(KEPT_LINES)
        log = self._opened
        new = [line(cleaned(text)) for text in log.new_lines()]
        if anew := log.restarts != self._restarts:
            self._restarts = log.restarts
            self._gone += len(self._lines)
            self._lines.clear()
        if new or anew or log.begun != self._begun or self._told is None:
            self._begun = log.begun
            self._gone += max(0, len(self._lines) + len(new) - KEPT_LINES)
            self._lines.extend(new)
            begun = (line(cleaned(self._begun)),) if self._begun else ()
            self._told = LogLines((*self._lines, *begun) or (NOTHING,), self._gone)
        return self._told


def cleaned(text: str) -> str:
    """Return a line without what would move a terminal's cursor."""
    shown = text.expandtabs().rstrip("\r")
    return "".join(character if character.isprintable() else "�" for character in shown)
