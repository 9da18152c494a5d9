"""How much of its time the persister rests. Pure: times are those of whatever clocks the caller has.

It is to have the CPU that the server's limit and the machine leave over. Its priority is lower, so how long it waits for a CPU while it
could work says how much that is: where it hardly waits, it rests less; where it waits it rests longer, as another turn of it would be
taken from training, or have the server's control group run into its limit.
"""

from __future__ import annotations

__all__ = ["LEAST_BYTES_PER_SECOND", "MOST_REST_SECONDS", "TRAINING_SECONDS", "Leftover", "Pace"]

TRAINING_SECONDS = 0.25
"""Seconds for which training goes on at least after a request has been answered."""
LEAST_BYTES_PER_SECOND = float(64 << 20)
"""Minimum bytes per second that a part is written at, however much time there is: what changes meanwhile costs, too."""
MOST_REST_SECONDS = 0.02
"""Maximum seconds until the spill is looked at again."""


_LOOK_SECONDS = 0.05
"""Seconds of working and waiting between two looks at both."""
_WAITED, _WAITED_LITTLE = 0.5, 0.15
"""Shares of waiting in the time for which it could have worked: above the first it rests longer, below the second less long."""
_LONGER, _SHORTER = 1.5, 0.9
"""Factors of the rest when it gets longer or shorter: slowly towards more work, since a limit that is run into holds training up."""


class Leftover:
    """Seconds of rest for each of work: ``pause`` at first, later between ``least`` and ``most``, by what the CPUs leave over."""

    def __init__(self, pause: float, least: float, most: float) -> None:
        self.pause = pause
        self._least, self._most = least, most
        self._seen: tuple[float, float] | None = None

    def look(self, worked_seconds: float, waited_seconds: float) -> None:
        """Adjust the rest to the seconds for which it has worked so far, and waited for a CPU."""
        if self._seen is None:
            self._seen = worked_seconds, waited_seconds
        worked, waited = worked_seconds - self._seen[0], waited_seconds - self._seen[1]
        if worked + waited < _LOOK_SECONDS:
            return
        self._seen = worked_seconds, waited_seconds
        share = waited / (worked + waited)
        if share > _WAITED:
            self.pause = min(self._most, _LONGER * self.pause)
        elif share < _WAITED_LITTLE:
            self.pause = max(self._least, _SHORTER * self.pause)


class Pace:
    """The pace of a part of ``total_bytes`` that may take ``seconds`` (0: no longer than need be), from the time ``began``."""

    def __init__(self, seconds: float, total_bytes: int, began: float, leftover: Leftover) -> None:
        self._seconds = min(seconds, total_bytes / LEAST_BYTES_PER_SECOND)
        self._began, self._leftover = began, leftover

    def hurry(self) -> None:
        """Hurry: somebody waits for the part."""
        self._seconds = 0.0

    def rest(self, work_seconds: float) -> float:
        """Return the seconds of rest after so many seconds of work."""
        return self._leftover.pause * work_seconds

    def wait(self, now: float, part_read: float) -> float:
        """Return the seconds until it may go on, when so much of 1 is done and that is ahead of a straight line to its end; 0: it isn't."""
        return min(max(0.0, self._began + self._seconds * part_read - now), MOST_REST_SECONDS)
