"""What the parameter servers of a job will need, foreseen again with each interval that was measured, as the brain does it: from the
history. It imports numpy, when there is something to foresee."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dlrover_lite.brain.explain.explanation_data import MemoryCurve, Used
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.history import Rows
from dlrover_lite.brain.store.records import demand_in
from dlrover_lite.protocol.history_messages import JobsQuestion
from dlrover_lite.protocol.news import WatchedJob

if TYPE_CHECKING:
    from dlrover_lite.protocol.demands import Demand
    from dlrover_lite.protocol.profiles import Level

__all__ = ["LiveMemory"]

_KEPT = 256
"""Maximum number of intervals that are kept; of more, every second of the older half is dropped."""


class LiveMemory:
    """Foresees the memory of one ``job``. Without any news the curve is the same as before."""

    def __init__(self, history: Rows, job: str) -> None:
        self.job = job
        self._history = history
        self._curve: MemoryCurve | None = None
        self._forget()

    def _forget(self) -> None:
        self._at = 0.0
        self._levels: list[Level] = []
        self._limits: dict[str, list[Used]] = {}
        self._demand: Demand | None = None
        self._unread = self._is_old = False

    def take(self, news: WatchedJob) -> None:
        """Take what is new of the job."""
        if news.anew:
            self._forget()
        self._unread |= bool(news.rates)
        for one in news.nodes:
            if one.memory is not None and one.event in ("launched", "resized"):
                self._limits.setdefault(one.node, []).append(Used(one.at, one.memory))
                self._is_old = True

    def look(self) -> MemoryCurve | None:
        """Return the curve; None while nothing can be foreseen. Raises HistoryError when the history can't be read."""
        if self._unread:
            self._read()
        if self._is_old:
            self._foresee()
            self._is_old = False
        return self._curve

    def _read(self) -> None:
        """Read the profiles that are new."""
        since = math.nextafter(self._at, math.inf)
        profiles = queries.readable_profiles(self._history, self.job, since=since, newest=_KEPT)
        if profiles and self._demand is None:
            entries = queries.jobs(self._history, JobsQuestion(id=self.job))
            self._demand = demand_in(entries[0].features) if entries else None
        self._unread = False
        if profiles:
            from dlrover_lite.protocol.profiles import Level

            self._at, self._is_old = profiles[-1].at, True
            self._levels += [Level.of(profile) for profile in profiles if profile.ps and profile.seconds > 0]
        if len(self._levels) > _KEPT:
            half = _KEPT // 2
            self._levels = self._levels[:half:2] + self._levels[half:]

    def _foresee(self) -> None:
        if not self._levels:
            return
        from dlrover_lite.brain.explain.memory_outlook import outlook
        from dlrover_lite.protocol.demands import Demand

        self._curve = outlook(self._levels, self._demand or Demand(), self._limits)
