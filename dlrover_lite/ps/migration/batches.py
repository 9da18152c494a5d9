"""The slots of a move in batches: which go together, and the row numbers of the next ones, from one pass over all rows.

Row numbers stay true until rows are dropped or moved together, so who lists them tidies up between two listings only. Rows that come
later are behind all that were listed, as no number is free meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core import slot_sets
from dlrover_lite.core.slot_sets import SLOTS, SlotSet
from dlrover_lite.ps.journal.applied_minibatches import mask_of
from dlrover_lite.ps.memory.scratch import Scratch
from dlrover_lite.ps.tables.table import TableGroup

__all__ = ["BATCH_BYTES", "SCAN_ROWS", "Batch", "Listing", "cut_batches", "in_order", "most_listed"]

BATCH_BYTES = 64 << 20
"""Bytes of rows in a batch: what is copied in a quarter of a second beside training."""
LEAST_LISTED_ROWS = 4 << 20
LISTED_SHARE = 2
"""One in this many rows at most has its number held at a time, or ``LEAST_LISTED_ROWS`` where that is more: two bytes for each row. So a
move of half of the slots takes one listing, and no tidying up amid it."""
SCAN_ROWS = 1 << 17
"""Number of rows that are looked at for one reply: half a millisecond."""


def most_listed(rows: int) -> int:
    """Return the maximum number of row numbers that a server with so many rows holds at a time."""
    return max(LEAST_LISTED_ROWS, rows // LISTED_SHARE)


Numbers = NDArray[np.int64]
"""Numbers of slots, in the order in which the slots go."""


def in_order(members: SlotSet, busy: NDArray[np.float64], *, coldest_first: bool) -> Numbers:
    """Sort these slots: those that keep the server the busiest first, or last if ``coldest_first``."""
    held = np.flatnonzero(members)
    ranks = busy[held] if coldest_first else -busy[held]
    return held[np.argsort(ranks, kind="stable")]


def cut_batches(
    order: Numbers, size: NDArray[np.float64], rows: NDArray[np.int64], *, most_bytes: int, most_rows: int
) -> list[Numbers]:
    """Cut the next slots of ``order`` into batches of at most ``most_bytes`` each, and ``most_rows`` in all; a single slot that has more is
    a batch, too. ``size`` [4096] is the bytes of each slot, ``rows`` [4096] its rows."""
    batches: list[Numbers] = []
    start, listed = 0, 0
    while start < len(order):
        rest = order[start:]
        fit = min(
            int(np.searchsorted(np.cumsum(size[rest]), most_bytes, side="right")),
            int(np.searchsorted(np.cumsum(rows[rest]), most_rows - listed, side="right")),
        )
        if not fit and batches and listed + rows[rest[0]] > most_rows:
            break
        batch = rest[: max(1, fit)]
        batches.append(batch)
        listed += int(rows[batch].sum())
        start += len(batch)
    return batches


class Listing:
    """The row numbers of these batches, in all groups there are."""

    def __init__(self, groups: Sequence[TableGroup], batches: Sequence[Numbers]) -> None:
        self.batches = batches
        self.stops = [group.used for group in groups]
        """Row number of each group from which on rows aren't listed."""
        self._groups = list(groups)
        self._of = np.zeros(SLOTS, np.uint16)
        for number, batch in enumerate(batches, 1):
            self._of[batch] = number
        self._limits, self._ends, self._rows = [], [], []
        for group in groups:
            counts = np.bincount(self._of, group.slot_rows, len(batches) + 1).astype(np.uint64)
            counts[0] = 0
            limits = np.cumsum(counts, dtype=np.uint64)
            self._limits.append(limits)
            self._ends.append(limits - counts)
            self._rows.append(Scratch(int(limits[-1]), np.uint32).array)
        self._cursors = [0] * len(self._groups)

    @property
    def complete(self) -> bool:
        return self._cursors == self.stops

    def step(self) -> None:
        """Look at some more rows."""
        for g, group in enumerate(self._groups):
            if (at := self._cursors[g]) < (stop := self.stops[g]):
                limit = min(SCAN_ROWS, stop - at)
                self._cursors[g] = group.sort_out(
                    self._of, at, scan_limit=limit, rows=self._rows[g], ends=self._ends[g], limits=self._limits[g]
                )
                return

    def rows(self, i: int) -> list[NDArray[np.uint64]]:
        """Return the row numbers of batch i, by group."""
        return [
            rows[int(limits[i]) : int(limits[i + 1])].astype(np.uint64)
            for rows, limits in zip(self._rows, self._limits, strict=True)
        ]


class Batch:
    """Slots that are copied together. ``listed``: numbers of their rows, by group, below ``stops``; it begins when they are tracked, so
    that rows made later are in the log."""

    def __init__(
        self,
        number: int,
        slots: Numbers,
        groups: Sequence[TableGroup],
        listed: Sequence[NDArray[np.uint64]],
        stops: Sequence[int],
    ) -> None:
        self.number = number
        self.slots = slots
        self.members = slot_sets.of(slots.tolist())
        self.mask = mask_of(slot_sets.pack(self.members))
        self.round = 1
        self.to_send: deque[tuple[int, NDArray[np.uint64]]] = deque(
            (g, rows) for g, rows in enumerate(listed) if len(rows)
        )
        """Groups, and numbers of their rows that are still to be sent in this round."""
        self._later = self._made_since(groups, stops)

    def first(self) -> tuple[int, NDArray[np.uint64]] | None:
        """Return rows made between the listing and the beginning, those within one range of row numbers at a time; None: no more."""
        return next(self._later, None)

    def half(self, number: int, groups: Sequence[TableGroup]) -> Batch:
        """Return a batch with one half of the slots, of which the first rows have been sent. Nothing is to be sent of the other slots any
        more."""
        batch = Batch(number, self.slots[: len(self.slots) // 2], [], [], [])
        batch.round = self.round
        for g, rows in self.to_send:
            if len(kept := groups[g].among(batch.members, rows)):
                batch.to_send.append((g, kept))
        return batch

    def _made_since(
        self, groups: Sequence[TableGroup], stops: Sequence[int]
    ) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        # a worker may have configured the server since the listing
        ranges = [(stops[g] if g < len(stops) else 0, group.used) for g, group in enumerate(groups)]
        return (
            (g, groups[g].find(self.members, at, scan_limit=min(SCAN_ROWS, stop - at), row_limit=SCAN_ROWS)[0])
            for g, (start, stop) in enumerate(ranges)
            for at in range(start, stop, SCAN_ROWS)
        )
