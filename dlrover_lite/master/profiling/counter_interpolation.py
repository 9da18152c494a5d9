"""Totals that rise with time, told now and then: what they were in between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

__all__ = ["Series", "Values"]

Values = Mapping[str, float]


class Series:
    """Several totals of one source over time, told together. A total that isn't told of is 0 so far."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._values: list[Values] = []

    @property
    def last(self) -> Values:
        return self._values[-1] if self._values else {}

    @property
    def until(self) -> float:
        """Time that the totals were last told of; before all times, if never."""
        return self._times[-1] if self._times else float("-inf")

    @property
    def since(self) -> float:
        """The first time that is still known; after all times, if it was never told of."""
        return self._times[0] if self._times else float("inf")

    def tell(self, at: float, values: Values) -> None:
        """Record the totals at a time. Times don't fall."""
        if self._times and at <= self._times[-1]:
            self._values[-1] = values
            return
        self._times.append(at)
        self._values.append(values)

    def at(self, time: float) -> dict[str, float]:
        """Return the totals at a time: between two times that were told of, interpolated linearly; outside of them, those of the
        nearest."""
        after = bisect_right(self._times, time)
        if after == len(self._times):
            return dict(self.last)
        if after == 0:
            return dict(self._values[0])
        began, ended = self._times[after - 1], self._times[after]
        share = (time - began) / (ended - began)
        before, now = self._values[after - 1], self._values[after]
        return {name: (was := before.get(name, 0.0)) + (value - was) * share for name, value in now.items()}

    def one_at(self, time: float, name: str) -> float:
        """Return one of the totals at a time, as ``at`` has it."""
        after = bisect_right(self._times, time)
        if after == len(self._times):
            return self.last.get(name, 0.0)
        if (now := self._values[after].get(name)) is None:
            return 0.0
        if after == 0:
            return now
        began, ended = self._times[after - 1], self._times[after]
        before = self._values[after - 1].get(name, 0.0)
        return before + (now - before) * ((time - began) / (ended - began))

    def forget(self, before: float) -> None:
        """Forget what isn't needed to know the totals from then on."""
        keep = max(0, bisect_right(self._times, before) - 1)
        del self._times[:keep], self._values[:keep]
