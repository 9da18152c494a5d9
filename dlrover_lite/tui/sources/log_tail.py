"""The end of a node's log, which grows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlrover_lite.jobs.backend import Log

__all__ = ["KEPT_LINES", "LogTail"]

KEPT_LINES = 5000


class LogTail:
    """The last lines of a log: of those there are at first, and of those that come. ``log`` opens it when it is read, with at most so many
    lines."""

    def __init__(self, log: Callable[[int], Log]) -> None:
        self._open = log
        self._opened: Log | None = None
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._told: tuple[str, ...] = ()
        self._restarts = 0
        self._begun = ""

    def read(self) -> tuple[str, ...]:
        """Return all lines that are kept; the same object as before if nothing is new. Raises JobError when the log can't be read."""
        if self._opened is None:
            self._opened = self._open(KEPT_LINES)
        log = self._opened
        new = [_cleaned(line) for line in log.new_lines()]
        if anew := log.restarts != self._restarts:
            self._restarts = log.restarts
            self._lines.clear()
        if new or anew or log.begun != self._begun or not self._told:
            self._begun = log.begun
            self._lines.extend(new)
            begun = (_cleaned(self._begun),) if self._begun else ()
            self._told = (*self._lines, *begun) or ("(nothing so far)",)
        return self._told


def _cleaned(text: str) -> str:
    """Return a line without what would move a terminal's cursor."""
    shown = text.expandtabs().rstrip("\r")
    return "".join(character if character.isprintable() else "�" for character in shown)
