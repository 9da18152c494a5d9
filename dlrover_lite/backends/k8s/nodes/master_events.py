"""What a job's master says, as it waits to be written as events: few of them, each with all that has come since the last. Pure."""

from __future__ import annotations

from typing import NamedTuple

from dlrover_lite.protocol.questions import About

__all__ = ["MasterEvent", "MasterEvents"]

EVENT_SECONDS = 30.0
"""Seconds between two times that events are written: they are calls of the API that nobody needs for training."""
_MOST_LINES = 5
_REASONS: dict[About, str] = {"decision": "Decided", "checkpoint": "Checkpoint", "": "Noted"}
"""Reason of an event, as Kubernetes has them, by what its lines are about."""


class MasterEvent(NamedTuple):
    reason: str
    message: str


class MasterEvents:
    """Times are seconds of a steady clock."""

    def __init__(self) -> None:
        self._lines: dict[About, list[str]] = {}
        self._passed_over: dict[About, int] = {}
        self._next_at = float("-inf")

    def add(self, line: str, about: About) -> None:
        """Have a line written. Of many about the same the newest are, with how many there were beside them."""
        lines = self._lines.setdefault(about, [])
        lines.append(line)
        if len(lines) > _MOST_LINES:
            del lines[0]
            self._passed_over[about] = self._passed_over.get(about, 0) + 1

    def take(self, now: float) -> list[MasterEvent]:
        """Return the events that are to be written now, one for all that is about the same."""
        if not self._lines or now < self._next_at:
            return []
        found = []
        for about, lines in self._lines.items():
            passed_over = self._passed_over.get(about, 0)
            before = [f"{passed_over} before these are in `dlrover-lite story`"] if passed_over else []
            found.append(MasterEvent(_REASONS[about], "; ".join([*before, *lines])))
        self._lines, self._passed_over, self._next_at = {}, {}, now + EVENT_SECONDS
        return found
