"""What moves leave behind: rows of slots that are another's, gaps where they were, and memory that nobody needs."""

from __future__ import annotations

from dlrover_lite.core import slot_sets
from dlrover_lite.ps.journal.applied_minibatches import to_bitmap
from dlrover_lite.ps.server.engine import Engine

__all__ = ["Cleanup"]


class Cleanup:
    """Removes rows of slots that are another's, then moves rows together and gives memory back; a little at each ``step``."""

    def __init__(self, engine: Engine) -> None:
        self.unwanted = 0
        """Slots whose rows are to be removed."""
        self._engine = engine
        self._group = 0
        self._cursor = 0
        self.done = True

    def remove(self, slots: int) -> None:
        """Begin to remove the rows of these slots; 0: there are only gaps to close."""
        self.unwanted |= slots
        self._group = self._cursor = 0
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
            elif group.compact(rows // 8):
                self._group, self._cursor = self._group + 1, 0
            return
        self.unwanted = 0
        self.done = True
