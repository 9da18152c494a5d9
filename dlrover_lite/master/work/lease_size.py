"""How many minibatches a lease holds: about two seconds of its worker's measured speed, and ever less towards the end of a pass.

Guided self-scheduling (Polychronopoulos and Kuck 1987), weighted by speed as in factoring: a lease never holds more than half of what
would be each worker's share of the rest, neither by head nor by speed. So whoever is slow gets little, and near the end everyone does.
"""

from __future__ import annotations

import math

import msgspec

__all__ = ["LeasePolicy", "WorkerRates", "lease_size", "updated_rate"]


class LeasePolicy(msgspec.Struct, frozen=True):
    lease_seconds: float = 2.0
    """Seconds that a lease should take its worker."""
    first_minibatches: int = 2
    """Minibatches in a lease of a worker whose speed isn't known yet."""
    largest_minibatches: int = 1 << 20
    memory_seconds: float = 6.0
    """Memory of a measured speed in seconds: it counts half as much after about two thirds of this."""


def lease_size(rate: float | None, *, total_rate: float, workers: int, remaining: int, policy: LeasePolicy) -> int:
    """Return how many minibatches to lease to a worker that does ``rate`` minibatches/s (None: unknown), at least 1.

    ``total_rate`` is that of all ``workers`` together (0: unknown); ``remaining`` is what is not leased yet of the pass.
    """
    if rate is None:
        wanted = policy.first_minibatches
    else:
        seconds = policy.lease_seconds
        if total_rate > 0:
            seconds = min(seconds, remaining / (2 * total_rate))
        wanted = int(rate * seconds)
    return max(1, min(wanted, policy.largest_minibatches, remaining // (2 * max(1, workers))))


def updated_rate(rate: float | None, minibatches: int, seconds: float, memory_seconds: float) -> float:
    """Return a worker's minibatches/s after it did ``minibatches`` in ``seconds``: an exponentially weighted mean over time."""
    seconds = max(seconds, 1e-6)
    now = minibatches / seconds
    if rate is None:
        return now
    return rate + (now - rate) * -math.expm1(-seconds / memory_seconds)


class _Pace(msgspec.Struct, gc=False):
    since: float | None = None
    """Time when the work began that the next report is about; None: not known."""
    rate: float | None = None


class WorkerRates:
    """The measured speed of each worker, in minibatches/s; times are seconds of any steady clock."""

    def __init__(self, memory_seconds: float) -> None:
        self._memory_seconds = memory_seconds
        self._paces: dict[str, _Pace] = {}
        self._measured = 0
        self._sum = 0.0

    def rate(self, worker: str) -> float | None:
        pace = self._paces.get(worker)
        return pace.rate if pace else None

    def total(self, workers: int) -> float:
        """Return the minibatches/s of ``workers`` workers together, those not measured taken as the mean of the others; 0 if none is."""
        return self._sum / self._measured * max(workers, self._measured) if self._measured else 0.0

    def granted(self, worker: str, now: float, *, idle: bool) -> None:
        """Note that a lease was given to a worker; ``idle``: it had no other one, so that its time runs from now."""
        pace = self._paces.get(worker)
        if pace is None:
            pace = self._paces[worker] = _Pace()
        if idle:
            pace.since = now

    def reported(self, worker: str, minibatches: int, now: float) -> None:
        pace = self._paces.get(worker)
        if pace is None or minibatches <= 0:
            return
        if pace.since is not None:
            before = pace.rate
            pace.rate = updated_rate(before, minibatches, now - pace.since, self._memory_seconds)
            self._sum += pace.rate - (before or 0.0)
            self._measured += before is None
        pace.since = now

    def forget(self, worker: str) -> None:
        if self._paces.pop(worker, None):
            rates = [pace.rate for pace in self._paces.values() if pace.rate is not None]
            self._measured, self._sum = len(rates), sum(rates)
