"""How long the target of a move rests between chunks, so that training keeps four fifths of its speed. Pure.

What copying costs differs tenfold between machines: where both servers and the workers share a few cores, or memory is slow to be had,
training is slowed by all that it takes. So the source says how fast training is, and the target rests accordingly.
"""

from __future__ import annotations

__all__ = ["REST_FIRST", "REST_LEAST", "REST_MOST", "CopyPace", "KeptSpeed"]

REST_LEAST = 0.5
"""Minimum rest, in seconds for each second of copying: workers are to keep their CPU."""
REST_FIRST = 2.0
"""Rest in seconds for each second of copying while it isn't known what training keeps: half a GiB is copied before that is."""
REST_MOST = 3.0
"""Maximum rest, in seconds for each second of copying, however slow training is: other things may be why, and a move has to end."""
LOW, HIGH = 0.84, 0.92
"""Shares of the speed that training had before the move: below the first the target rests longer, above the second less long."""
_LONGER, _SHORTER = 1.5, 0.8
WINDOW_SECONDS = 1.0
"""Seconds over which the speed of training is measured."""
MOST_TOLD = 10.0
"""Maximum ratio of speeds that is told, where training did next to nothing before the move."""


class CopyPace:
    """How long the target of a move rests."""

    def __init__(self) -> None:
        self.rest = REST_FIRST
        """Seconds of rest for each second of copying."""

    def look(self, kept: float) -> None:
        """Adjust the rest to the share of its speed before the move that training keeps. 0: that isn't known."""
        if 0 < kept < LOW:
            self.rest = min(REST_MOST, _LONGER * self.rest)
        elif kept > HIGH:
            self.rest = max(REST_LEAST, _SHORTER * self.rest)


class KeptSpeed:
    """The source's measurement of what training keeps of its speed: requests of workers a second over the ``usual`` (0: not known),
    measured anew each second."""

    def __init__(self, usual: float, answered: int, now: float) -> None:
        self._usual = usual
        self._answered, self._since = answered, now

    def look(self, answered: int, now: float) -> float:
        """Return the share of its speed that training keeps; 0 where there is nothing new to tell. ``answered``: requests so far."""
        seconds = now - self._since
        if seconds < WINDOW_SECONDS:
            return 0.0
        new, self._answered, self._since = answered - self._answered, answered, now
        return min(MOST_TOLD, new / seconds / self._usual) if self._usual else 0.0
