"""The rows of a snapshot, read by another process while they change: from the arenas, or from the spill if they were faster.

Needs nothing but numpy, and is a generator of steps: who drives it may sleep, or stop, between any two. Of each piece of a group:

1. Everything about the rows is copied, their metadata last.
2. ``CHANGED`` is read again. The parameter server sets it before it changes anything else of a row, so rows that are still not newer than
   the snapshot were copied as they were at its beginning; the others are *late*.
3. ``PASSED`` is published: the server needn't spill these rows any more.
4. What waits in the spill is taken: the server puts each row there before it sets ``CHANGED``, exactly once. Entries are taken all the
   time, of all groups, so that their room can be used again.

With all rows, pieces are ranges of row numbers, written as they lie; late ones among them say so by their ``CHANGED``. An increment looks
at metadata, and copies those rows only that have changed since the cut that it builds on, in blocks of neighbouring slots. Late rows follow
as they were, also as they lie, if they are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.buckets import Buckets
from dlrover_lite.checkpoint.raw_rows import RawRoom, RawRows, newer_than, slots_of_ids
from dlrover_lite.errors import JobError
from dlrover_lite.ps.barrier import barrier
from dlrover_lite.ps.cut_columns import Columns, GroupFiles
from dlrover_lite.ps.late_rows import LateRows
from dlrover_lite.ps.rows import CHANGED, COUNT, TABLE
from dlrover_lite.ps.spill import ENTRY_HEAD_WORDS, ENTRY_ID, ENTRY_META, PASSED, GroupCut, Spill
from dlrover_lite.rows import RowData
from dlrover_lite.slots import SlotSet

__all__ = ["CutReader", "GroupFiles", "Overflown", "Part"]

PIECE_BYTES = 2 << 20
"""Rows copied in one step, at least one."""
SCAN_ROWS = 1 << 16
"""Rows whose metadata an increment looks at in one step."""
FEW_ROWS = 1 << 14
"""The same without kernels."""
_SCANNED = 8
"""So many rows are looked at in the time, and with the memory, that one is copied with."""


class Overflown(JobError):
    """The spill had no room for a row."""

    def __init__(self) -> None:
        super().__init__(
            "more rows changed while the snapshot was written than may be kept meanwhile",
            hint="It is tried again. A faster destination helps, and so does more memory for parameter servers.",
        )


class Part(Protocol):
    """What takes the rows: ``checkpoint.part_writer.PartWriter``."""

    def room(self, group: int) -> RawRoom: ...

    def lay(self, room: RawRoom, used: int) -> None: ...

    def counted(self, group: int, rows: int) -> None: ...

    def buckets(self, group: int) -> Buckets: ...

    def flush_full(self) -> None: ...

    def add(
        self, group: int, rows: RowData, slots: NDArray[np.uint16], which: NDArray[np.intp] | None = None
    ) -> None: ...


class CutReader:
    """``owned``: slots whose rows are wanted; ``whole``: those of them in which an increment has all rows. ``kernels``: whether numba is to
    be used, which should be there then."""

    def __init__(
        self,
        groups: Sequence[GroupCut],
        files: Sequence[GroupFiles],
        spill: Spill,
        owned: SlotSet,
        whole: SlotSet,
        *,
        kernels: bool = False,
    ) -> None:
        self._kernels = kernels
        self._put_entries = _lay_entries
        if kernels:
            from dlrover_lite.ps.cut_kernels import lay_entries

            self._put_entries = lay_entries
        self._groups = list(groups)
        self._columns = [Columns(cut, of_group) for cut, of_group in zip(groups, files, strict=True)]
        self._spill = spill
        self._owned, self._whole = owned, whole
        self._owns_all, self._any_whole = bool(owned.all()), bool(whole.any())
        self._salts = [np.frombuffer(group.salts, np.uint64) for group in groups]
        self._late = [LateRows(group.dim) for group in groups]
        self._open: dict[int, tuple[RawRoom, int]] = {}
        """By group: a block of rows from the spill, and how many are in it."""
        self._done = 0
        """Groups."""
        self.rows = 0
        """Taken so far."""

    @property
    def part_read(self) -> float:
        """How much of the rows has been looked at, of 1."""
        pairs = list(zip(self._groups, self._late, strict=True))
        total = sum(cut.used * cut.row_bytes for cut, _ in pairs)
        return sum(late.at * cut.row_bytes for cut, late in pairs) / total if total else 1.0

    def steps(self, part: Part) -> Iterator[str]:
        """Everything into ``part``, little by little: yields ``block`` or ``spill`` after each step. Raises Overflown, JobError, and what
        ``part`` raises."""
        for g, cut in enumerate(self._groups):
            before = self.rows
            if cut.used:
                for passed in self._pieces(g, part):
                    barrier()
                    self._spill.areas[g].words[PASSED] = passed
                    self._columns[g].unmap()
                    yield "block"
                    for _ in self.drain(part):
                        yield "spill"
                while not self._late[g].taken(self._spill.taken(g)):
                    for _ in self.drain(part):  # the server may be about to say that they have changed
                        pass
                    yield "spill"
                self._late[g].check()
            self._lay(g, part)
            self._done = g + 1
            if cut.since is None:
                self.rows = before + cut.rows
                part.counted(g, cut.rows)

    # --- from the spill -------------------------------------------------------------------------------------------------

    def drain(self, part: Part) -> Iterator[None]:
        """Take what waits in the spill, little by little. Raises Overflown."""
        for g in range(self._done, len(self._groups)):
            cut, late = self._groups[g], self._late[g]
            most = max(1, PIECE_BYTES // cut.entry_bytes)
            while len(entries := self._spill.waiting(g, most)):
                self._take(g, entries, part)
                self._spill.take(g, len(entries))
                late.taken(self._spill.taken(g))
                yield
        if self._spill.overflown:
            raise Overflown

    def _take(self, g: int, entries: NDArray[np.uint32], part: Part) -> None:
        cut = self._groups[g]
        numbers = entries[:, 0].astype(np.uint64) | entries[:, 1].astype(np.uint64) << np.uint64(32)
        was_free = numbers >> np.uint64(63) != 0
        chosen = self._late[g].chosen((numbers & np.uint64((1 << 63) - 1)).astype(np.int64))
        meta = entries[:, ENTRY_META:ENTRY_HEAD_WORDS]
        chosen &= ~was_free & (meta[:, TABLE] != 0)
        if cut.since is not None:
            chosen &= self._wanted(g, entries, meta, chosen)
        count = int(np.count_nonzero(chosen))
        self.rows += count
        if cut.since is not None:
            part.counted(g, count)
        at = 0
        while count:
            room, used = self._open.pop(g) if g in self._open else (part.room(g), 0)
            at, now = self._put_entries(entries, chosen, at, room.rows, used)
            count -= now - used
            self._open[g] = room, now
            if now == room.capacity:
                self._lay(g, part)

    def _wanted(
        self, g: int, entries: NDArray[np.uint32], meta: NDArray[np.uint32], live: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """By an increment."""
        cut = self._groups[g]
        wanted = _since(meta[:, CHANGED], cut)
        if self._owns_all and not self._any_whole:
            return wanted
        ids = np.ascontiguousarray(entries[:, ENTRY_ID:ENTRY_META]).view(np.uint64).reshape(-1)
        slots = self._slots(g, ids, np.where(live, meta[:, TABLE], np.uint32(1)))
        return self._owned.take(slots) & (wanted | self._whole.take(slots))

    def _slots(self, g: int, ids: NDArray[np.uint64], tables: NDArray[np.uint32]) -> NDArray[np.uint16]:
        """``tables``: as metadata has them. Raises JobError for one that there isn't."""
        if tables.max(initial=0) > len(self._salts[g]):
            raise JobError(f"rows of dim {self._groups[g].dim} are damaged: one is of table {int(tables.max())}")
        return slots_of_ids(ids, self._salts[g].take(np.maximum(tables, np.uint32(1)) - np.uint32(1)))

    def _lay(self, g: int, part: Part) -> None:
        if g in self._open:
            part.lay(*self._open.pop(g))

    # --- pieces ---------------------------------------------------------------------------------------------------------

    def _pieces(self, g: int, part: Part) -> Iterator[int]:
        """Yields how far rows are passed."""
        if self._groups[g].since is None:
            return self._as_they_lie(g, part)
        return self._by_kernels(g, part) if self._kernels else self._changed(g, part)

    def _as_they_lie(self, g: int, part: Part) -> Iterator[int]:
        cut, columns = self._groups[g], self._columns[g]
        start = 0
        while start < cut.used:
            room = part.room(g)
            rows = slice(start, min(cut.used, start + room.capacity))
            count = rows.stop - start
            found = room.first(count)
            columns.copy_range(start, found)
            changed = columns.changed(rows)
            newer = newer_than(changed, cut.clock)
            late = np.flatnonzero(newer)
            found.meta[late, CHANGED] = changed[late]
            self._late[g].looked_at(rows.stop, start + late, self._spill.count(g))
            tables = found.meta[:, TABLE]
            live = (tables != 0) & ~newer
            if (odd := live & (tables > len(self._salts[g]))).any():
                raise JobError(f"rows of dim {cut.dim} are damaged: one is of table {int(tables[odd][0])}")
            self.rows += int(np.count_nonzero(live))
            part.lay(room, count)
            start = rows.stop
            yield start

    def _by_kernels(self, g: int, part: Part) -> Iterator[int]:
        from dlrover_lite.ps.cut_kernels import Copier

        cut, columns = self._groups[g], self._columns[g]
        assert cut.since is not None
        most = max(1, PIECE_BYTES // cut.row_bytes)
        copier = Copier(
            columns.source(self._salts[g]),
            part.buckets(g),
            clock=cut.clock,
            since=cut.since,
            owned=self._owned,
            whole=self._whole,
            most_rows=max(most, SCAN_ROWS),
            most_copies=most,
        )
        at = read = 0
        while at < cut.used:
            start = at
            at, is_odd = copier.copy(start, cut.used)
            barrier()
            newer, copied = copier.drop_late()
            self.rows += copied
            if is_odd:
                newer = np.append(newer, self._odd(g, at))
                at += 1
            self._late[g].looked_at(at, newer, self._spill.count(g))
            part.flush_full()
            count = max(copied, (at - start) // _SCANNED)
            columns.has_read(start, at, count)
            read += count
            if read >= most or at == cut.used:
                read = 0
                yield at

    def _odd(self, g: int, row: int) -> int:
        """A row of a table that there wasn't must be newer."""
        cut = self._groups[g]
        barrier()
        found = self._columns[g].read_meta(slice(row, row + 1))
        if not newer_than(found[:, CHANGED], cut.clock).all():
            raise JobError(f"rows of dim {cut.dim} are damaged: one is of table {int(found[0, TABLE])}")
        return row

    def _changed(self, g: int, part: Part) -> Iterator[int]:
        """As ``_by_kernels``, with numpy."""
        cut, columns = self._groups[g], self._columns[g]
        step = max(1, PIECE_BYTES // cut.row_bytes)
        for start in range(0, cut.used, FEW_ROWS):
            scanned = slice(start, min(cut.used, start + FEW_ROWS))
            meta = columns.read_meta(scanned)
            newer = newer_than(meta[:, CHANGED], cut.clock)
            late = [start + np.flatnonzero(newer)]
            wanted = (meta[:, TABLE] != 0) & ~newer
            since = _since(meta[:, CHANGED], cut)
            if self._any_whole:
                # of rows that are free, or change right now, it may be any
                salts = self._salts[g][np.clip(meta[:, TABLE], 1, len(self._salts[g])) - np.uint32(1)]
                since |= self._whole[slots_of_ids(columns.read_ids(scanned), salts)]
            candidates = start + np.flatnonzero(wanted & since)
            for first in range(0, len(candidates), step):
                rows = candidates[first : first + step]
                found = columns.copy(rows)
                newer = newer_than(columns.changed(rows), cut.clock)
                late.append(rows[newer])
                self._add(g, found, ~newer, part)
            self._late[g].looked_at(scanned.stop, np.concatenate(late), self._spill.count(g))
            yield scanned.stop

    def _add(self, g: int, found: RawRows, right: NDArray[np.bool_], part: Part) -> None:
        """Those of the rows that are as they were, that live, and that are wanted."""
        cut = self._groups[g]
        tables, changed = found.meta[:, TABLE], found.meta[:, CHANGED]
        chosen = right & (tables != 0)
        tables = np.where(chosen, tables, np.uint32(1))
        slots = self._slots(g, found.ids, tables)
        if not self._owns_all:
            chosen &= self._owned.take(slots)
        chosen &= _since(changed, cut) | self._whole.take(slots)
        which = None if chosen.all() else np.flatnonzero(chosen)
        count = len(slots) if which is None else len(which)
        if count:
            ages = np.uint32(cut.clock & 0xFFFFFFFF) - changed
            positions = (tables - np.uint32(1)).astype(np.uint16)
            rows = RowData(found.ids, positions, found.meta[:, COUNT], ages, found.values, found.state)
            part.add(g, rows, slots, which)
            self.rows += count


def _lay_entries(
    entries: NDArray[np.uint32], chosen: NDArray[np.bool_], at: int, rows: RawRows, start: int
) -> tuple[int, int]:
    """As ``cut_kernels.lay_entries``."""
    which = at + np.flatnonzero(chosen[at:])[: len(rows.ids) - start]
    found, stop = entries[which], start + len(which)
    values = ENTRY_HEAD_WORDS + rows.values.shape[1]
    rows.ids.view(np.uint32).reshape(-1, 2)[start:stop] = found[:, ENTRY_ID:ENTRY_META]
    rows.meta[start:stop] = found[:, ENTRY_META:ENTRY_HEAD_WORDS]
    rows.values.view(np.uint32)[start:stop] = found[:, ENTRY_HEAD_WORDS:values]
    rows.state.view(np.uint32)[start:stop] = found[:, values:]
    return (int(which[-1]) + 1 if len(which) else len(entries)), stop


def _since(changed: NDArray[np.uint32], cut: GroupCut) -> NDArray[np.bool_]:
    """Changed after the cut that this one builds on: less long ago than that."""
    assert cut.since is not None
    return np.uint32(cut.clock & 0xFFFFFFFF) - changed < np.uint32((cut.clock - cut.since) & 0xFFFFFFFF)
