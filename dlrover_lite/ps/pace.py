"""How much of its time the persister rests. Pure: times are those of whatever clocks the caller has."""

from __future__ import annotations

__all__ = ["LEAST_BYTES_PER_SECOND", "MOST_REST_SECONDS", "Pace"]

LEAST_BYTES_PER_SECOND = float(64 << 20)
"""No part is written more slowly for the time there is: what changes meanwhile costs, too."""
MOST_REST_SECONDS = 0.02
"""Until the spill is looked at again."""


class Pace:
    """Of a part of so many bytes that may take ``seconds`` (0: no longer than need be), from the time ``began``. ``pause``: seconds of rest
    for each of work, at least."""

    def __init__(self, seconds: float, total_bytes: int, began: float, pause: float) -> None:
        self._seconds = min(seconds, total_bytes / LEAST_BYTES_PER_SECOND)
        self._began, self._pause = began, pause

    def hurry(self) -> None:
        """Somebody waits for it."""
        self._seconds = 0.0

    def rest(self, work_seconds: float) -> float:
        """Seconds, after so many of work."""
        return self._pause * work_seconds

    def wait(self, now: float, part_read: float) -> float:
        """Seconds until it may go on, when so much of 1 is done and that is ahead of a straight line to its end; 0: it isn't."""
        return min(max(0.0, self._began + self._seconds * part_read - now), MOST_REST_SECONDS)
