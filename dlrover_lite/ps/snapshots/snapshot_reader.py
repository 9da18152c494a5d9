"""The rows of a snapshot, read by another process while they change: from the arena, or from the spill if they were faster.

Needs nothing but numpy, and is a generator of steps: who drives it may sleep, or stop, between any two. Of each piece of a group:

1. Its records are copied.
2. Those that had changed by then are left out, they are *late*: rows whose epoch is later than the snapshot, and rows in the spill. The
   parameter server puts each row there, exactly once, before it sets the epoch, and sets that before it changes anything else of the row;
   so whatever was copied of a row while it changed, the row is in the spill by now.
3. ``PASSED`` is published: the server needn't spill these rows any more.
4. What waits in the spill is taken, and late rows, as they were, are among it. Entries are taken all the time, of all groups, so that
   their room can be used again.

An increment has only rows of epochs after the checkpoint that it builds on.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.part_writer import PartWriter
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.records import epochs_of, positions_of, slots_of
from dlrover_lite.core.slot_sets import SlotSet
from dlrover_lite.core.units import format_bytes
from dlrover_lite.ps.memory.memory_fence import barrier
from dlrover_lite.ps.snapshots.copy_on_write_log import ENTRY_RECORD, PASSED, CopyOnWriteLog, GroupSnapshot

__all__ = ["LateRows", "Overflown", "RecordSource", "SnapshotReader"]

PIECE_BYTES = 1 << 20
"""Bytes of records copied in one step, at least one record: they stay in a cache until they are where they are written from."""


class Overflown(JobError):
    """The spill had no room for a row. ``spill_bytes``: what it may take; 0: not known here. It is half of what was left of the server's
    memory limit, so that twice as much of it takes twice these bytes more memory."""

    def __init__(self, spill_bytes: int = 0) -> None:
        kept = f" ({format_bytes(spill_bytes)})" if spill_bytes else ""
        memory = f": {format_bytes(2 * spill_bytes)} more let twice as many be kept" if spill_bytes else ""
        super().__init__(
            f"more rows changed while the snapshot was written than may be kept meanwhile{kept}",
            hint=f"It is tried again. A faster destination helps, and so does more memory for parameter servers{memory}.",
        )


class RecordSource:
    """``fd``: the file of the arena. It is read, not mapped: that takes no page faults, and no memory that would count as this
    process's too."""

    def __init__(self, fd: int, words: int, most: int) -> None:
        """Set the ``words`` of a record, and the maximum number of records that are read at once."""
        self._fd = fd
        self._room = np.empty((most, words), np.uint32)

    def read(self, start: int, count: int) -> NDArray[np.uint32]:
        """Return records [count, words] from row number ``start`` on. They hold until the next call."""
        found = self._room[:count]
        left, at = found.reshape(-1).data.cast("B"), start * self._room.shape[1] * 4
        while left:
            done = os.preadv(self._fd, [left], at)
            if not done:
                raise JobError("the memory of the parameter server is smaller than its rows")
            left, at = left[done:], at + done
        return found


class LateRows:
    """Rows below ``at`` have been looked at. Those of them that were *late* are in the spill, each exactly once, or have been taken from
    there; so are those further on that have changed by now, which are going to be late. Other entries are of rows that changed after they
    had been copied: nothing of them is missing."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self.at = 0
        self._recent: deque[tuple[int, NDArray[np.int64]]] = deque()
        """Late rows, and the number of entries that there were when they were seen to be late: theirs are among them."""
        self._late, self._found = [0, 0], [0, 0]
        """Number of rows, and sum of their numbers: of the late ones, and of those found in the spill."""

    def looked_at(self, stop: int, late: NDArray[np.int64], entries: int) -> None:
        """Note that rows up to ``stop`` have been looked at, and which of them were late. ``entries``: number of entries in the spill by
        then."""
        self.at = stop
        if len(late):
            self._recent.append((entries, late))
            _add(self._late, late)

    def chosen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for entries of these rows whether they, and nothing else, hold the rows as they were when the snapshot began."""
        found = rows >= self.at
        if not found.all() and self._recent:
            behind = np.flatnonzero(~found)
            late = np.concatenate([late for _, late in self._recent])
            found[behind] = np.isin(rows[behind], late)
        _add(self._found, rows[found])
        return found

    def taken(self, entries: int) -> bool:
        """Note that ``entries`` entries have been taken by now. Returns True if all late rows must be among them."""
        while self._recent and self._recent[0][0] <= entries:
            self._recent.popleft()
        return not self._recent

    def check(self) -> None:
        """Check that exactly the late rows were in the spill: when all rows have been looked at, and all entries been taken that there were
        then. Raises JobError."""
        if self._late != self._found:
            raise JobError(
                f"a snapshot isn't whole: {self._late[0]} rows of dim {self._dim} had changed before they were copied, and "
                f"{self._found[0]} of them, or others, were in the spill",
                hint="This is a bug of dlrover-lite: please report it. The checkpoints before are not affected.",
            )


def _add(to: list[int], rows: NDArray[np.int64]) -> None:
    to[0] += len(rows)
    to[1] += int(rows.sum())


class SnapshotReader:
    """Reads the rows of a snapshot. ``files``: descriptors of the groups' arenas. ``owned``: slots whose rows are wanted; ``whole``: those
    of them in which an increment has all rows. ``kernels``: whether numba is to be used, which should be there then."""

    def __init__(
        self,
        groups: Sequence[GroupSnapshot],
        files: Sequence[int],
        spill: CopyOnWriteLog,
        owned: SlotSet,
        whole: SlotSet,
        *,
        kernels: bool = False,
    ) -> None:
        self._kernels = kernels
        self._groups, self._files = list(groups), list(files)
        self._spill = spill
        self._owned, self._whole = owned.copy(), whole.copy()
        self._tables = [len(group.salts) // 8 for group in groups]
        self._late = [LateRows(group.shape.dim) for group in groups]
        self._now = 0
        """The group whose turn it is."""
        self.rows = 0
        """Number of rows taken so far."""

    @property
    def part_read(self) -> float:
        """Share of the rows that has been looked at, from 0 to 1."""
        pairs = list(zip(self._groups, self._late, strict=True))
        total = sum(group.used * group.row_bytes for group, _ in pairs)
        return sum(late.at * group.row_bytes for group, late in pairs) / total if total else 1.0

    def steps(self, part: PartWriter) -> Iterator[str]:
        """Put everything into ``part``, little by little: yields ``block`` or ``spill`` after each step. Raises Overflown, JobError, and
        what ``part`` raises."""
        for g, group in enumerate(self._groups):
            self._now = g
            if group.used:
                for passed in self._pieces(g, part):
                    barrier()
                    self._spill.areas[g].words[PASSED] = passed
                    yield "block"
                    for _ in self.drain(part):
                        yield "spill"
                while not self._late[g].taken(self._spill.taken(g)):
                    for _ in self.drain(part):  # the server may be about to say that they have changed
                        pass
                    yield "spill"
                self._late[g].check()
        self._now = len(self._groups)

    def _pieces(self, g: int, part: PartWriter) -> Iterator[int]:
        """Copy the records of a group, piece by piece. Yields the row number up to which rows are passed."""
        group, late = self._groups[g], self._late[g]
        most = max(1, PIECE_BYTES // group.row_bytes)
        source = RecordSource(self._files[g], group.shape.words, min(most, group.used))
        for start in range(0, group.used, most):
            stop = min(group.used, start + most)
            found = source.read(start, stop - start)
            barrier()
            entries, waiting = self._spill.count(g), self._spill.waiting_rows(g)
            if self._spill.overflown:
                raise Overflown
            is_late = epochs_of(found) > group.epoch
            is_late[waiting[(waiting >= start) & (waiting < stop)] - start] = True
            late.looked_at(stop, start + np.flatnonzero(is_late), entries)
            self._put(g, found, 0, ~is_late, part)
            yield stop

    # --- from the spill -------------------------------------------------------------------------------------------------

    def drain(self, part: PartWriter) -> Iterator[None]:
        """Take what waits in the spill, little by little. Raises Overflown."""
        for g in range(self._now, len(self._groups)):
            group, late = self._groups[g], self._late[g]
            most = max(1, PIECE_BYTES // group.entry_bytes)
            while len(entries := self._spill.waiting(g, most)):
                self._take(g, entries, part)
                self._spill.take(g, len(entries))
                late.taken(self._spill.taken(g))
                yield
        if self._spill.overflown:
            raise Overflown

    def _take(self, g: int, entries: NDArray[np.uint32], part: PartWriter) -> None:
        numbers = entries[:, 0].astype(np.uint64) | entries[:, 1].astype(np.uint64) << np.uint64(32)
        was_free = numbers >> np.uint64(63) != 0
        chosen = self._late[g].chosen((numbers & np.uint64((1 << 63) - 1)).astype(np.int64)) & ~was_free
        self._put(g, entries, ENTRY_RECORD, chosen, part)

    # --- to the part ------------------------------------------------------------------------------------------------------

    def _put(self, g: int, found: NDArray[np.uint32], first: int, chosen: NDArray[np.bool_], part: PartWriter) -> None:
        """Put into ``part`` those of the records [n, stride], each from the word ``first`` on, that are ``chosen``, live and wanted."""
        group, records = self._groups[g], found[:, first:]
        positions = positions_of(records)
        if (odd := chosen & (positions > self._tables[g])).any():
            raise JobError(f"rows of dim {group.shape.dim} are damaged: one is of table {int(positions[odd][0])}")
        if self._kernels and g == self._now:
            self._scatter(g, found, first, chosen, part)
            return
        slots = slots_of(records)
        wanted = (epochs_of(records) > group.since) | self._whole.take(slots)
        which = np.flatnonzero(chosen & (positions != 0) & wanted & self._owned.take(slots))
        if len(which):
            (part.add if g == self._now else part.set_aside)(g, records[which])
            self.rows += len(which)

    def _scatter(
        self, g: int, found: NDArray[np.uint32], first: int, chosen: NDArray[np.bool_], part: PartWriter
    ) -> None:
        from dlrover_lite.ps.snapshots.snapshot_kernels import scatter

        group, at = self._groups[g], 0
        buckets = part.buckets(g)
        while at < len(found):
            at, put = scatter(found, first, at, chosen, group.since, self._owned, self._whole, buckets)
            self.rows += put
            part.flush_full()
