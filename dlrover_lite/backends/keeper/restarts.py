"""How often a process of the job's own that was killed is started again, and when. Pure: the clock is handed in."""

from __future__ import annotations

from dlrover_lite.protocol.nodes import COUNTED_SECONDS

__all__ = ["Restarts"]

_FIRST_DELAY_SECONDS = 0.5


class Restarts:
    """Restarts of a process, up to ``most`` within an hour: the first at once, the second after half a second, each further one after
    twice as long. ``now`` is seconds of a steady clock."""

    def __init__(self, most: int, longest_delay_seconds: float) -> None:
        self.due_at: float | None = None
        """Time of the next restart; None: none is due."""
        self.most = most
        self._longest_delay_seconds = longest_delay_seconds
        self._deaths: list[float] = []
        """Times of those that count."""

    def after_death(self, now: float) -> bool:
        """Plan the next one; False: there have been enough."""
        self._deaths = [at for at in self._deaths if now - at <= COUNTED_SECONDS]
        before = len(self._deaths)
        if before >= self.most:
            return False
        delay = _FIRST_DELAY_SECONDS * 2.0 ** (before - 1) if before else 0.0
        self._deaths.append(now)
        self.due_at = now + min(self._longest_delay_seconds, delay)
        return True

    def take(self, now: float) -> bool:
        """Return whether a restart is due now; it isn't any more then."""
        if self.due_at is None or now < self.due_at:
            return False
        self.due_at = None
        return True
