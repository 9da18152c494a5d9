"""How long a checkpoint holds training up: the longest step of a worker while it is taken, over the usual one.

Workers tell with each report the longest step since the one before. Reports that cover any of the time from the cut's order until it is
durable count; what the same workers told of as much time before is what it would have been without one.

As pure as the fleet: times are those of the caller's steady clock.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import msgspec

__all__ = ["Stall", "Steps"]

_KEPT_SECONDS = 30.0
"""Seconds for which reports are kept, to know what is usual."""
_PATIENCE_SECONDS = 3.0
"""Seconds that workers get to report the end of a cut: one that doesn't has nothing to do, or is gone."""


class Stall(msgspec.Struct, frozen=True):
    """How long a cut has held training up, in seconds."""

    cut: int
    seconds: float
    usual_seconds: float | None
    """Seconds by which training was held up in a time of equal length just before the cut; None: nothing was reported of such a time."""


class _Told(NamedTuple):
    node: str
    since: float
    until: float
    minibatches: int
    longest: float


class _Cut(NamedTuple):
    number: int
    began: float
    ended: float | None
    """Time when the cut was durable; None: it is under way."""
    waits_for: frozenset[str]
    """Workers that haven't told of the cut's end."""


class Steps:
    """Training steps before and during cuts. It is told of workers' reports and of cuts as they come; ``take`` gives what came of a cut."""

    def __init__(self) -> None:
        self._told: deque[_Told] = deque()
        """Reports of times without a cut, the oldest first."""
        self._at: dict[str, float] = {}
        """Time of each worker's last report."""
        self._longest: dict[str, float] = {}
        """Seconds of the longest step during the cut, by worker."""
        self._cut: _Cut | None = None

    def worked(self, node: str, *, minibatches: int, longest: float, now: float) -> None:
        """Handle a worker's report."""
        before, self._at[node] = self._at.get(node), now
        if before is None or minibatches <= 0 or not 0 < longest < math.inf:
            return
        cut = self._cut
        if cut is not None and (cut.ended is None or before < cut.ended):
            self._longest[node] = max(longest, self._longest.get(node, 0.0))
        else:
            self._told.append(_Told(node, before, now, minibatches, longest))
            while now - self._told[0].until > _KEPT_SECONDS and len(self._told) > 1:
                self._told.popleft()
        if cut is not None and cut.ended is not None:
            self._cut = cut._replace(waits_for=cut.waits_for - {node})

    def forget(self, node: str) -> None:
        """Forget a worker that is gone."""
        self._at.pop(node, None)
        if (cut := self._cut) is not None:
            self._cut = cut._replace(waits_for=cut.waits_for - {node})

    def begins(self, cut: int, now: float) -> None:
        """Note that a cut is ordered: parameter servers begin with it."""
        self._cut = _Cut(cut, now, None, frozenset())
        self._longest = {}

    def ends(self, cut: int, now: float) -> None:
        """Note that a cut is durable."""
        known = self._cut
        if known is not None and known.number == cut and known.ended is None:
            late = frozenset(node for node, at in self._at.items() if now - at <= _PATIENCE_SECONDS)
            self._cut = known._replace(ended=now, waits_for=late)

    def gives_up(self) -> None:
        """Note that the cut under way comes to nothing."""
        if self._cut is not None and self._cut.ended is None:
            self._cut = None

    def take(self, now: float) -> Stall | None:
        """Return the stall of the last durable cut, once, as soon as all have reported its end; None where nothing was trained
        meanwhile."""
        cut = self._cut
        if cut is None or cut.ended is None or (cut.waits_for and now - cut.ended < _PATIENCE_SECONDS):
            return None
        self._cut = None
        usual = self._usual()
        over = [longest - usual[node] for node, longest in self._longest.items() if node in usual]
        if not over:
            return None
        seconds = cut.ended - cut.began
        without = [
            told.longest - usual[told.node] for told in self._told if cut.began - seconds < told.until <= cut.began
        ]
        return Stall(cut.number, max(0.0, *over), max(0.0, *without) if without else None)

    def _usual(self) -> dict[str, float]:
        """Return the usual seconds from one step to the next, by worker."""
        seconds: dict[str, float] = {}
        minibatches: dict[str, int] = {}
        for told in self._told:
            seconds[told.node] = seconds.get(told.node, 0.0) + told.until - told.since
            minibatches[told.node] = minibatches.get(told.node, 0) + told.minibatches
        return {node: seconds[node] / count for node, count in minibatches.items()}
