"""How busy a parameter server is with pulls and pushes, and how long they wait for it: totals since it started, for the profile of the job.

Nothing says when a request arrived. Those found when the server looks have arrived since it looked last: on average, halfway between; if it
had been waiting for them, just now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["BusyMeter", "TrainingWatch"]

_AT_ONCE_SECONDS = 1e-4
"""Seconds up to which a pause has ended at once, because something was there already."""


class BusyMeter:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_at = clock()
        self._arrived_at = self._looked_at
        """Average time at which the requests being answered now arrived."""
        self.requests = 0
        """Number of pulls and pushes answered."""
        self.busy_seconds = 0.0
        """Seconds of wall time in which pulls and pushes were answered."""
        self.queue_seconds = 0.0
        """Seconds that pulls and pushes waited before they were begun, all together."""

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Measure a pause: within, the server waits until something arrives."""
        began = self._clock()
        yield
        now = self._clock()
        if now - began > _AT_ONCE_SECONDS:
            self._looked_at = now

    def found(self, *, all_of_them: bool) -> None:
        """Note that the server has taken the requests that are there, or, unless ``all_of_them``, some."""
        now = self._clock()
        self._arrived_at = (self._looked_at + now) / 2
        if all_of_them:
            self._looked_at = now

    def answered(self, began: float) -> None:
        """Note that a pull or push has been answered, with which the server began at ``began``."""
        self.requests += 1
        self.queue_seconds += max(0.0, began - self._arrived_at)
        self.busy_seconds += self._clock() - began


class TrainingWatch:
    """Whether workers train, by how many pulls and pushes have been answered: they do until ``seconds`` after that has last risen."""

    def __init__(self, answered: int, seconds: float) -> None:
        self._answered, self._seconds, self._until = answered, seconds, -math.inf

    def goes_on(self, answered: int, now: float) -> bool:
        """Say whether training goes on. ``answered``: pulls and pushes by now."""
        if answered != self._answered:
            self._answered, self._until = answered, now + self._seconds
        return now < self._until
