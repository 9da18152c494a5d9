"""Whether the next memory of an arena comes in huge pages or in small ones: what has taken less CPU of late. Pure.

The kernel clears a huge page at once, and random rows in huge pages miss the TLB less often. But where a hypervisor takes back what its
guest has free, it takes free huge pages only: touching one of those again takes several times what a small page does that the guest has
kept. And where memory is in pieces, the kernel looks for a huge page for up to a quarter of a second, in vain.
"""

from __future__ import annotations

__all__ = ["PageChoice"]

WORTH, WORTH_AT_ONCE = 5.0, 1.5
"""CPU that memory in huge pages may take, over what it takes in small ones: what it takes more is made up for when each row has been read
a few times. Less where much comes at once and somebody waits for it, as in a restore or a move."""
AGAIN = 32
"""Number of choices after which the other kind is tried again."""
SKIPPED, SKIPPED_MOST = 16, 512
"""Number of choices for which huge pages aren't tried after one that couldn't be had, at first and at most."""
_NEWS = 0.25
"""Weight of the newest measurement in the averages."""


class PageChoice:
    """One choice after the other: ``huge``, then ``took`` or ``failed``."""

    def __init__(self) -> None:
        self._seconds: dict[bool, float] = {}
        """CPU seconds a byte in huge pages (True) and in small ones, averages of late."""
        self._alike = 0
        """Number of choices of the same kind, one after the other."""
        self._skip, self._skip_next = 0, SKIPPED
        self._never = False

    def huge(self, *, at_once: bool = False) -> bool:
        """Choose. ``at_once``: somebody waits for it."""
        if self._never or self._skip:
            self._skip = max(0, self._skip - 1)
            return False
        if len(self._seconds) < 2:
            return True not in self._seconds
        better = self._seconds[True] <= (WORTH_AT_ONCE if at_once else WORTH) * self._seconds[False]
        self._alike += 1
        if self._alike > AGAIN:
            self._alike = 0
            return not better
        return better

    def took(self, size: int, cpu_seconds: float, *, huge: bool) -> None:
        """Note that ``size`` bytes have taken so much CPU."""
        each = cpu_seconds / size
        before = self._seconds.get(huge, each)
        self._seconds[huge] = before + _NEWS * (each - before)
        if huge:
            self._skip_next = SKIPPED

    def failed(self, *, for_good: bool) -> None:
        """Note that a huge page couldn't be had. ``for_good``: nor can any other."""
        self._skip, self._skip_next = self._skip_next, min(SKIPPED_MOST, 2 * self._skip_next)
        self._never = for_good
