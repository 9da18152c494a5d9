"""What moves leave behind: rows of slots that are another's, gaps where they were, and memory that nobody needs."""

from __future__ import annotations

from dlrover_lite.core import slot_sets
from dlrover_lite.ps.journal.applied_minibatches import to_bitmap
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.tables.table import TableGroup

__all__ = ["GIVE_BACK_SECONDS", "Cleanup"]

AT_ONCE = 8
"""Number of times that at most 32 MiB of memory are given back without a pause."""
GIVE_BACK_SECONDS = 0.32
"""Seconds from one return of at most 32 MiB of a group's memory to the next. A virtual machine that tells its host of gigabytes at once
stands still for 100 ms a GiB, two seconds after they were freed."""


class Cleanup:
    """Removes rows of slots that are another's, then moves rows together and gives some memory back, a little at each ``step``; what is
    left of it, where it is much, after that, while all else goes on."""

    def __init__(self, engine: Engine) -> None:
        self.unwanted = 0
        """Slots whose rows are to be removed."""
        self._engine = engine
        self._group = 0
        self._cursor = 0
        self.done = True
        self._at_once = AT_ONCE
        self._give_back_at: float | None = None
        """When some memory is to be given back; None: there is none."""

    @property
    def gives_back(self) -> bool:
        """Whether memory is left to be given back, with all else done."""
        return self.done and self._give_back_at is not None

    def remove(self, slots: int) -> None:
        """Begin to remove the rows of these slots; 0: there are only gaps to close."""
        self.unwanted |= slots
        self._group = self._cursor = 0
        self._at_once = AT_ONCE
        self.done = False

    def keep(self, slots: int) -> None:
        """Keep the rows of these slots, which have come back."""
        self.unwanted &= ~slots

    def step(self, rows: int) -> None:
        """Look at about so many rows."""
        groups = self._engine.groups
        if self._group < len(groups):
            group = groups[self._group]
            if self.unwanted and self._cursor < group.used:
                members = slot_sets.unpack(to_bitmap(self.unwanted))
                self._cursor = group.drop(members, self._cursor, scan_limit=rows)
            elif group.compact(rows // 8) and self._has_given_back(group):
                self._group, self._cursor = self._group + 1, 0
            return
        self.unwanted = 0
        self.done = True
        self._give_back_at = None if self._at_once else self._engine.clock()

    def _has_given_back(self, group: TableGroup) -> bool:
        """Give some of the group's memory back. Returns whether there is none left, or the rest has to wait."""
        if self._at_once:
            self._at_once -= 1
            return group.give_back()
        return True

    def give_back(self) -> float | None:
        """Give some memory back, if it is time and rows are where they belong. Returns after how many seconds there is more to do; None:
        there is none left."""
        if self._give_back_at is None or not self.done:
            return None
        now = self._engine.clock()
        if now >= self._give_back_at:
            left = [not group.give_back() for group in self._engine.groups]
            self._give_back_at = now + GIVE_BACK_SECONDS if any(left) else None
        return self._give_back_at - now if self._give_back_at is not None else None
