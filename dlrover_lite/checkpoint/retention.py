"""Which checkpoints are kept."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from dlrover_lite.checkpoint.manifest import Manifest

__all__ = ["retained"]


def retained(
    whole: Iterable[Manifest], abandoned: Collection[int], keep: int, every_hours: float | None = None
) -> set[int]:
    """Return the numbers of the checkpoints to keep, of these whole ones: the newest ``keep``; the first of each ``every_hours`` on the
    clock; and whatever one of these builds on. ``abandoned``: numbers of those that the job has gone on without. They take nobody's place:
    they are kept as long as one of the newest is older.

    The first, since no later checkpoint can take its place: what is kept today for an hour is the same tomorrow.
    """
    known = {one.cut: one for one in whole}
    numbers = [number for number in sorted(known) if number not in abandoned]
    newest = numbers[-keep:] if keep > 0 else []
    oldest = newest[0] if newest else math.inf if numbers else -math.inf
    kept = {*newest, *(number for number in known if number in abandoned and number > oldest)}
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
