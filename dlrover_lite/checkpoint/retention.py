"""Which checkpoints are kept."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["CheckpointFacts", "retained"]


class CheckpointFacts(NamedTuple):
    number: int
    at: float
    """Seconds since the epoch."""
    builds_on: int | None
    abandoned: bool = False
    """The job has gone on without the checkpoint, from an older one."""


def retained(checkpoints: Iterable[CheckpointFacts], keep: int, every_hours: float | None = None) -> set[int]:
    """Return the numbers of the checkpoints to keep, of these whole ones: the newest ``keep``; the first of each ``every_hours`` on the
    clock; and whatever one of these builds on. Abandoned ones take nobody's place: they are kept as long as one of the newest is older.

    The first, since no later checkpoint can take its place: what is kept today for an hour is the same tomorrow.
    """
    known = {one.number: one for one in checkpoints}
    numbers = [number for number in sorted(known) if not known[number].abandoned]
    newest = numbers[-keep:] if keep > 0 else []
    oldest = newest[0] if newest else math.inf if numbers else -math.inf
    kept = {*newest, *(one.number for one in known.values() if one.abandoned and one.number > oldest)}
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
