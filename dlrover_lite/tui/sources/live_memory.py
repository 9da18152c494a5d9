"""What the parameter servers of a job will need, foreseen again with each interval that was measured, as the brain does it: from its
database. It imports numpy, when there is something to foresee."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.brain.explain.explanation_data import MemoryCurve, Used
from dlrover_lite.brain.store.watch import Reader

if TYPE_CHECKING:
    from dlrover_lite.protocol.demands import Demand
    from dlrover_lite.protocol.profiles import Level

__all__ = ["LiveMemory"]

_KEPT = 256
"""Maximum number of intervals that are kept; of more, every second of the older half is dropped."""


class _Limit(msgspec.Struct):
    """As much of a node event's data as is needed here."""

    memory: int | None = None


class _Features(msgspec.Struct):
    """As much of a job's features as is needed here: what it asks for is understood later."""

    demand: msgspec.Raw = msgspec.Raw(b"null")


class LiveMemory(Reader):
    """Foresees the memory of one ``job``. A look reads what is new; without any it returns the same curve as before."""

    def __init__(self, path: Path, job: str) -> None:
        super().__init__(path)
        self.job = job
        self._curve: MemoryCurve | None = None
        self._forget()

    def _forget(self) -> None:
        self._at, self._event = 0.0, 0
        self._levels: list[Level] = []
        self._limits: dict[str, list[Used]] = {}
        self._demand: Demand | None = None

    def look(self) -> MemoryCurve | None:
        """Return the curve; None while nothing can be foreseen. Raises HistoryError when the database can't be read."""
        with self.opened() as anew:
            if self._connection is None or not self.changed(anew):
                return self._curve
            if anew:
                self._forget()
            stored = self._stored()
            is_new = self._take_limits() or bool(stored)
            asked = b"null" if self._demand is not None or not stored else self._asked()
        if is_new:
            self._take(stored, asked)
            self._foresee()
        return self._curve

    def _stored(self) -> list[str]:
        """Return the profiles that are new, the oldest first."""
        question = "select at, data from profiles where job = ? and at > ? order by at desc limit ?"
        rows = self.all(question, (self.job, self._at, _KEPT))
        if rows:
            self._at = rows[0][0]
        return [data for _, data in rows[::-1]]

    def _take_limits(self) -> bool:
        question = (
            "select id, at, node, data from node_events where job = ? and id > ? and event in ('launched', 'resized') "
            "order by id"
        )
        rows = self.all(question, (self.job, self._event))
        for number, at, node, data in rows:
            self._event = number
            with suppress(msgspec.MsgspecError):  # of another version
                if (memory := msgspec.json.decode(data, type=_Limit).memory) is not None:
                    self._limits.setdefault(node, []).append(Used(at, memory))
        return bool(rows)

    def _asked(self) -> bytes:
        """Return what the job asks for, as it is stored."""
        for (features,) in self.all("select features from jobs where id = ?", (self.job,)):
            with suppress(msgspec.MsgspecError):
                return bytes(msgspec.json.decode(features, type=_Features).demand)
        return b"null"

    def _take(self, stored: list[str], asked: bytes) -> None:
        from dlrover_lite.protocol.demands import Demand
        from dlrover_lite.protocol.profiles import Level, Profile

        with suppress(msgspec.MsgspecError):
            self._demand = msgspec.json.decode(asked, type=Demand | None) or self._demand
        for data in stored:
            with suppress(msgspec.MsgspecError):
                profile = msgspec.json.decode(data, type=Profile)
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
