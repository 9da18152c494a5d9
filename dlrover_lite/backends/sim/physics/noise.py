"""What makes a job a little faster or slower than its rate, for some seconds at a time: neighbours, caches, clocks."""

from __future__ import annotations

import math
import random
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
    """The factors of one job, in the order of time."""

    def __init__(self, noise: Noise, chance: random.Random) -> None:
        self._noise, self._chance = noise, chance
        self._step = -1
        self._logarithm = noise.variation * chance.gauss(0.0, 1.0)

    def factor(self, now: float) -> float:
        """Return the factor at a time that isn't before the last one's. The mean of all factors is 1."""
        kept = math.exp(-self._noise.step_seconds / self._noise.memory_seconds)
        new = self._noise.variation * math.sqrt(1.0 - kept**2)
        step = int(now / self._noise.step_seconds)
        for _ in range(max(0, step - max(0, self._step))):
            self._logarithm = kept * self._logarithm + new * self._chance.gauss(0.0, 1.0)
        self._step = max(step, self._step)
        return math.exp(self._logarithm - self._noise.variation**2 / 2)

    def changes_at(self, now: float) -> float:
        """Return when there is another factor."""
        return (int(now / self._noise.step_seconds) + 1) * self._noise.step_seconds
