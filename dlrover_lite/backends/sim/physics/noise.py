"""What makes a job a little faster or slower than its rate, for some seconds at a time: neighbours, caches, clocks."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["Noise", "Wander"]


@dataclass(frozen=True)
class Noise:
    """How a rate varies: by lognormal factors whose logarithms follow each other as an autoregressive process of first order does."""

    variation: float = 0.03
    """Standard deviation of the factor's logarithm. Training windows of ten seconds on one machine of two cores differ by that."""
    step_seconds: float = 5.0
    """Seconds for which a factor holds."""
    memory_seconds: float = 20.0
    """Seconds after which two factors have a correlation of 1/e. An assumption."""


class Wander:
    """The factors of one job, and its own clock, which goes that much faster or slower: what the job does at steady rates by that clock it
    does at noisy ones by everybody's."""

    def __init__(self, noise: Noise, chance: random.Random) -> None:
        self._noise, self._chance = noise, chance
        self._kept = math.exp(-noise.step_seconds / noise.memory_seconds)
        self._new = noise.variation * math.sqrt(1.0 - self._kept**2)
        self._logarithm = noise.variation * chance.gauss(0.0, 1.0)
        self._factors = [self._factor()]
        self._own = [0.0]
        """Time on its own clock at the beginning of each step that is known."""
        self._last = 0.0, 0.0
        """A time that was asked for, and the time on its own clock then."""

    def _factor(self) -> float:
        return math.exp(self._logarithm - self._noise.variation**2 / 2)

    def _step_at(self, now: float) -> int:
        """Return the number of the step at this time, which is known from now on."""
        step, factors, own = int(now / self._noise.step_seconds), self._factors, self._own
        while len(factors) <= step:
            self._logarithm = self._kept * self._logarithm + self._new * self._chance.gauss(0.0, 1.0)
            own.append(own[-1] + factors[-1] * self._noise.step_seconds)
            factors.append(self._factor())
        return step

    def factor(self, now: float) -> float:
        """Return the factor at a time. The mean of all factors is 1."""
        return self._factors[self._step_at(now)]

    def own_time(self, now: float) -> float:
        """Return the time on its own clock at a time on everybody's."""
        if now != self._last[0]:
            step = self._step_at(now)
            self._last = now, self._own[step] + self._factors[step] * (now - step * self._noise.step_seconds)
        return self._last[1]

    def reaches(self, own: float, until: float) -> float:
        """Return the time on everybody's clock at which its own shows ``own``, or ``until`` if that is sooner."""
        if own >= self.own_time(until):
            return until
        step = bisect_right(self._own, own) - 1
        return step * self._noise.step_seconds + (own - self._own[step]) / self._factors[step]
