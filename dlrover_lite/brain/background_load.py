"""What others than the brain's jobs take of a host, as far as the intervals tell it that a job was measured in."""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import NamedTuple

__all__ = ["BackgroundLoad", "UsedCores"]

_SECONDS = 20.0
"""Length in seconds of what is remembered, at least: what starts there takes a core for two or three seconds, and no longer."""
_NOTICED = 1 / 64
"""Part of a host's cores by which what strangers take there has to change to count: less is noise, and would have all be decided anew."""


class UsedCores(NamedTuple):
    """Cores that jobs used on a host, as far as it is known."""

    least: float
    most: float


class BackgroundLoad:
    """What others than the brain's jobs take of one host, as one of these jobs has measured it: the median of late, by time. What takes the
    host's cores in passing, as programs do that start, doesn't count."""

    def __init__(self, cores: float = 0.0) -> None:
        self.cores = cores
        """Cores that they take; ``cores`` until an interval is measured."""
        self._taken: deque[tuple[float, float]] = deque()
        """Length in seconds of each interval, and the cores that they took in it."""

    def measured(self, seconds: float, *, of: float, others: float, jobs: UsedCores) -> None:
        """Take in an interval, in which all but the job that was measured took ``others`` of the host's ``of`` cores, and the brain's other
        jobs took ``jobs``. As these aren't known if they have come, changed or ended meanwhile, strangers are believed to have taken what
        they did before, as far as that can be."""
        taken = max(0.0, min(max(self.cores, others - jobs.most), others - jobs.least))
        self._taken.append((seconds, taken))
        while sum(its for its, _ in self._taken) - self._taken[0][0] >= _SECONDS:
            self._taken.popleft()
        median = self._median()
        if abs(median - self.cores) > _NOTICED * of:
            self.cores = median

    def _median(self) -> float:
        """Return the most that they took in half of the time, or less."""
        half, so_far = sum(seconds for seconds, _ in self._taken) / 2, 0.0
        for seconds, cores in sorted(self._taken, key=itemgetter(1)):
            so_far += seconds
            if so_far >= half:
                return cores
        return self.cores  # nothing was measured
