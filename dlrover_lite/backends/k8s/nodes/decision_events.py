"""What a job's master decides, as it waits to be written as events: few of them, each with all that has come since the last. Pure."""

from __future__ import annotations

__all__ = ["DecisionEvents"]

EVENT_SECONDS = 30.0
"""Seconds between two events: they are calls of the API that nobody needs for training."""
_MOST_LINES = 5


class DecisionEvents:
    """Times are seconds of a steady clock."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._passed_over = 0
        self._next_at = float("-inf")

    def add(self, line: str) -> None:
        """Have a line written. Of many the newest are, with how many there were beside them."""
        self._lines.append(line)
        if len(self._lines) > _MOST_LINES:
            del self._lines[0]
            self._passed_over += 1

    def take(self, now: float) -> str:
        """Return the message of an event that is to be written now; empty: none is."""
        if not self._lines or now < self._next_at:
            return ""
        before = [f"{self._passed_over} before these are in `dlrover-lite story`"] if self._passed_over else []
        message = "; ".join([*before, *self._lines])
        self._lines, self._passed_over, self._next_at = [], 0, now + EVENT_SECONDS
        return message
