"""Which cuts are kept."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["CutFacts", "retained"]


class CutFacts(NamedTuple):
    number: int
    at: float
    """Seconds since the epoch."""
    builds_on: int | None
    abandoned: bool = False
    """The job has gone on without the cut, from an older one."""


def retained(cuts: Iterable[CutFacts], keep: int, every_hours: float | None = None) -> set[int]:
    """Return the numbers of the cuts to keep, of these whole ones: the newest ``keep``; the first of each ``every_hours`` on the clock; and
    whatever one of these builds on. Abandoned ones take nobody's place: they are kept as long as one of the newest is older.

    The first, since no later cut can take its place: what is kept today for an hour is the same tomorrow.
    """
    known = {cut.number: cut for cut in cuts}
    numbers = [number for number in sorted(known) if not known[number].abandoned]
    newest = numbers[-keep:] if keep > 0 else []
    oldest = newest[0] if newest else math.inf if numbers else -math.inf
    kept = {*newest, *(cut.number for cut in known.values() if cut.abandoned and cut.number > oldest)}
    if every_hours is not None:
        first: dict[int, int] = {}
        for number in numbers:
            first.setdefault(math.floor(known[number].at / (every_hours * 3600)), number)
        kept.update(first.values())
    pending = list(kept)
    while pending:
        below = known[pending.pop()].builds_on
        if below in known and below not in kept:
            kept.add(below)
            pending.append(below)
    return kept
