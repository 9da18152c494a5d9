"""What the parameter servers of a job will need, foreseen again with each interval that was measured, as the brain does it: from the
history. It imports numpy, when there is something to foresee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.brain.explain.explanation_data import MemoryCurve, Used
from dlrover_lite.brain.store.history import Rows
from dlrover_lite.brain.store.queries import kept
from dlrover_lite.protocol.history_messages import (
    JobsQuestion,
    KeptJob,
    KeptProfile,
    ProfilesQuestion,
)
from dlrover_lite.protocol.news import WatchedJob

if TYPE_CHECKING:
    from dlrover_lite.protocol.demands import Demand
    from dlrover_lite.protocol.profiles import Level

__all__ = ["LiveMemory"]

_KEPT = 256
"""Maximum number of intervals that are kept; of more, every second of the older half is dropped."""


class _Features(msgspec.Struct):
    """As much of a job's features as is needed here: what it asks for is understood later."""

    demand: msgspec.Raw = msgspec.Raw(b"null")


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
        stored = kept(self._history, ProfilesQuestion(self.job, since, most=_KEPT), KeptProfile)
        asked = b"null" if self._demand is not None or not stored else self._asked()
        self._unread = False
        if stored:
            self._at = stored[0].at
            self._take_profiles(stored[::-1], asked)
            self._is_old = True

    def _asked(self) -> bytes:
        """Return what the job asks for, as it is stored."""
        for entry in kept(self._history, JobsQuestion(id=self.job), KeptJob):
            with suppress(msgspec.MsgspecError):
                return bytes(msgspec.json.decode(entry.features, type=_Features).demand)
        return b"null"

    def _take_profiles(self, stored: Sequence[KeptProfile], asked: bytes) -> None:
        from dlrover_lite.protocol.demands import Demand
        from dlrover_lite.protocol.profiles import Level, Profile

        with suppress(msgspec.MsgspecError):
            self._demand = msgspec.json.decode(asked, type=Demand | None) or self._demand
        for one in stored:
            with suppress(msgspec.MsgspecError):
                profile = msgspec.json.decode(one.data, type=Profile)
                if profile.ps and profile.seconds > 0:
                    self._levels.append(Level.of(profile))
        if len(self._levels) > _KEPT:
            half = _KEPT // 2
            self._levels = self._levels[:half:2] + self._levels[half:]

    def _foresee(self) -> None:
        if not self._levels:
            return
        from dlrover_lite.brain.explain.memory_outlook import outlook
        from dlrover_lite.protocol.demands import Demand

        self._curve = outlook(self._levels, self._demand or Demand(), self._limits)
