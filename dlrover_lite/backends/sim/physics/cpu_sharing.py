"""How processes share the cores of a machine."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["share_cores"]


def share_cores(wanted: Sequence[float], cores: float) -> list[float]:
    """Return the cores that each gets of those that it wants: all of them where there are enough, else as the kernel's scheduler gives
    those of equal weight their turns: what some don't want goes evenly to the others."""
    got = [0.0] * len(wanted)
    left, count = cores, len(wanted)
    for at in sorted(range(count), key=wanted.__getitem__):
        got[at] = min(wanted[at], left / count)
        left -= got[at]
        count -= 1
    return got
