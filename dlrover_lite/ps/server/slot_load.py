"""How much each slot is asked for: smoothed over the last seconds, from counters that pulls and pushes keep anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.ps.tables.table import TableGroup

__all__ = ["Loads"]

_KEPT = 0.5
"""Weight of the window before in each new one."""


class Loads:
    """How much each slot is asked for. Busy time is measured by group and operation, and shared out by rows: rows of one group cost the
    same."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._gather_seconds: dict[int, float] = {}
        self._update_seconds: dict[int, float] = {}
        self._rates: NDArray[np.float64] | None = None
        self._requests = 0
        self.answered = 0
        """Number of pulls and pushes answered since the start."""
        self.requests_per_second = 0.0
        """Requests per second in the last window that has ended, smoothed as the rates of slots."""

    def requested(self) -> None:
        """Note that a pull or a push has been answered."""
        self._requests += 1
        self.answered += 1

    def gathered(self, group: int, seconds: float) -> None:
        self._gather_seconds[group] = self._gather_seconds.get(group, 0.0) + seconds

    def updated(self, group: int, seconds: float) -> None:
        self._update_seconds[group] = self._update_seconds.get(group, 0.0) + seconds

    @property
    def busy(self) -> NDArray[np.float64]:
        """Busy seconds per second of each slot [4096], in the last window that has ended."""
        return np.zeros(SLOTS) if self._rates is None else self._rates[2]

    def window(self, groups: Sequence[TableGroup]) -> NDArray[np.float64]:
        """End a window: return [3, 4096] requests/s, rows/s and busy seconds/s of each slot, smoothed over the last windows."""
        now = self._clock()
        seconds, self._since = max(1e-9, now - self._since), now
        counted: NDArray[np.float64] = np.zeros((3, SLOTS))
        for g, group in enumerate(groups):
            counters = group.take_counters()
            counted[0] = np.maximum(counted[0], counters.requests)  # a request asks all groups
            counted[1] += counters.gathered
            counted[1] += counters.updated
            counted[2] += _share(self._gather_seconds.get(g, 0.0), counters.gathered)
            counted[2] += _share(self._update_seconds.get(g, 0.0), counters.updated)
        self._gather_seconds.clear()
        self._update_seconds.clear()
        rates: NDArray[np.float64] = counted / seconds
        requests, self._requests = self._requests / seconds, 0
        if self._rates is not None:
            rates = _KEPT * self._rates + (1 - _KEPT) * rates
            requests = _KEPT * self.requests_per_second + (1 - _KEPT) * requests
        self._rates, self.requests_per_second = rates, requests
        return self._rates


def _share(seconds: float, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(rows * (seconds / max(1, int(rows.sum()))), np.float64)
