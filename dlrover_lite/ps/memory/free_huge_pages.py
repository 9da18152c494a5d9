"""Whether the kernel has huge pages at hand. Where it has none, it puts one together when it is asked for one, which can take a quarter of
a second: a push would wait for that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["FreePages", "huge_pages"]

LEAST = 64
"""Number of huge pages that are to be free when one is asked for: others take some meanwhile."""
EVERY = 16
"""Number of questions that are answered from one look."""
_ORDER = 9
"""Logarithm of small pages in a huge one."""


class FreePages:
    """Looks now and then. ``read`` returns what the kernel says, as in ``/proc/buddyinfo``; raises OSError where it says nothing."""

    def __init__(self, read: Callable[[], str] = lambda: Path("/proc/buddyinfo").read_text(encoding="ascii")) -> None:
        self._read = read
        self._left, self._enough = 0, False

    def enough(self) -> bool:
        """Say whether there are enough huge pages, or nothing is known of that."""
        if not self._left:
            self._left = EVERY
            try:
                self._enough = huge_pages(self._read()) >= LEAST
            except (OSError, ValueError):
                self._enough = True
        self._left -= 1
        return self._enough


def huge_pages(text: str) -> int:
    """Count the huge pages that are free: a line for each zone of memory, with the number of free blocks of 1, 2, 4, … small pages. Raises
    ValueError for what is no such text."""
    found = 0
    for line in text.splitlines():
        _, zone, counts = line.partition(" zone ")
        if not zone:
            raise ValueError(f"no zone of memory: {line!r}")
        blocks = [int(count) for count in counts.split()[1:]]
        found += sum(count << i for i, count in enumerate(blocks[_ORDER:]))
    return found
