"""Embedding tables, and dense parameters in blocks: the tables of one dim, an index over rows that lie side by side.

A row is a number and a record (``core.records``). A pull never writes: an unknown key reads as its initial value, and its row is
made at the first push.

Slots move while all this goes on: rows of some slots are found, copied, logged when they change, and dropped, a bounded number at
a time. Row numbers that become free are used again first; ``compact`` closes the gaps.

The arena, the index and a few numbers can outlive the process (``Kept``): the group that follows in another process finds its rows there.
What isn't there, or was about to change, it finds out from them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError
from dlrover_lite.core.records import EPOCHS_MOST, hashes_of, pack_rows, positions_of, unpack_rows
from dlrover_lite.core.rows import RowData
from dlrover_lite.core.slot_sets import SLOTS, SlotSet
from dlrover_lite.ps.journal.journal import stopped
from dlrover_lite.ps.memory.arena import Arena
from dlrover_lite.ps.snapshots.copy_on_write_log import Area, GroupSnapshot, no_spill
from dlrover_lite.ps.tables import move_kernels, table_kernels
from dlrover_lite.ps.tables.group_state import GroupState, Kept
from dlrover_lite.ps.tables.row_arrays import EPOCH, F32, FREE, LOG_LENGTH, U32, U64, as_input, no_rows
from dlrover_lite.ps.tables.slot_counters import OWNED, TRACKED, Counters, as_members
from dlrover_lite.tables.optimizers import first_state

_APPEND_BYTES = 1 << 16
"""Bytes of new records below which they are written one by one."""

__all__ = ["Counters", "Kept", "NotOwned", "RowData", "TableGroup"]


class NotOwned(Exception):
    """A request touches a slot that isn't owned here: nothing was done."""


class TableGroup(GroupState):
    """All tables of one dim. ``counts`` arguments are int64 [tables]: how many of the keys belong to each table, in order.

    In a ``complete`` group all rows are there before they are used, by ``insert`` or ``write``: to gather or update an unknown key is a
    JobError. All slots are owned until ``set_owned`` says otherwise.
    """

    # --- training -------------------------------------------------------------------------------------------------

    def set_owned(self, owned: SlotSet) -> None:
        """Own these slots only: keys of others are refused from now on; their rows stay."""
        self._slots.flag(OWNED, as_members(owned))

    def gather(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the values of ``keys`` [n]: float32 [n, dim]; initial values for those without a row.

        Raises NotOwned, and JobError for a key that a complete group doesn't have.
        """
        keys, counts = self._keys(keys, counts)
        if self.complete:
            if not self._hash_owned(keys, counts):
                raise NotOwned
            self._require(keys, counts)
        out = np.empty((len(keys), self.dim), np.float32)
        if not table_kernels.gather(
            keys, counts, tuple(self._store), tuple(self._index.buckets), self._slots.flags, out.reshape(-1)
        ):
            raise NotOwned
        self._slots.count(keys, counts, self._store.salts, updated=False)
        return out

    def update(
        self,
        keys: NDArray[np.uint64],
        counts: NDArray[np.int64],
        grads: NDArray[np.float32],
        *,
        learning_rate_factor: float = 1.0,
    ) -> None:
        """Apply ``grads`` [n, dim]; no key comes twice.

        Raises NotOwned, and JobError for a key that a complete group doesn't have or when the arena's address space is used up; then
        nothing has changed.
        """
        keys, counts = self._keys(keys, counts)
        if grads.shape != (len(keys), self.dim):
            raise ValueError(f"gradients of shape {grads.shape}, expected {(len(keys), self.dim)}")
        if not self._hash_owned(keys, counts):
            raise NotOwned
        if self.complete:
            self._require(keys, counts)
        self._make_room(len(keys))
        self._arena.touch(min(len(keys), self._new_rows))
        new_rows = table_kernels.update(
            counts,
            self._hashes[: len(keys)],
            as_input(grads, F32).reshape(-1),
            tuple(self._store),
            tuple(self._index.buckets),
            tuple(self._book),
            *self._journal,
            self._pushed,
            *self._spill_arguments,
            self._kind,
            self._hyper,
            np.float32(learning_rate_factor),
            self._epoch,
            self._tracking,
        )
        stopped(-min(0, new_rows))
        self._new_rows = max(1, new_rows)
        self._grow(new_rows)
        self._kept_index.note_whole()
        self._slots.count(keys, counts, self._store.salts, updated=True)

    def changed_last(self, most: int) -> tuple[NDArray[np.uint16], NDArray[np.uint64]]:
        """Return the tables and hashes of the first ``most`` keys that the last update has changed. Raises JobError where their rows can't
        be those."""
        rows = self._pushed[:most].astype(np.uint64)
        if len(rows) < most or (most and rows.max() >= self.used):
            raise JobError(f"the journal is damaged: {most} keys were updated, and one's row isn't there")
        records = self._store.records[: self.used * self.shape.words].reshape(-1, self.shape.words)[rows]
        positions = positions_of(records)
        if most and not positions.all():
            raise JobError(f"the journal is damaged: {most} keys were updated, and one's row is free")
        return (positions - np.uint32(1)).astype(np.uint16), hashes_of(records)

    def insert(self, keys: NDArray[np.uint64], counts: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Insert new rows with ``values`` [n, dim] that were not updated yet, whoever owns their slots.

        Raises ValueError for a key that has a row, or that comes twice.
        """
        tables = np.repeat(np.arange(len(counts), dtype=np.uint16), counts)
        present = self.contains(keys, counts)
        distinct = np.unique(np.stack([tables.astype(np.uint64), keys]), axis=1)
        if present.any() or distinct.shape[1] < len(keys):
            raise ValueError("a row is inserted that is there already")
        values = np.asarray(values, np.float32)
        if values.shape != (len(keys), self.dim):
            raise ValueError(f"values of shape {values.shape}, expected {(len(keys), self.dim)}")
        if not len(keys):
            return
        self._kept_index.note_change()
        free = self.gaps
        if self._spill is not None:
            self._book.numbers[FREE] = 0  # behind all rows of the snapshot: free numbers among them are to stay free
        try:
            untouched = np.zeros(len(keys), np.uint32)
            data = RowData(keys, tables, untouched, values, first_state(self._optimizer, values))
            self._write(pack_rows(data, self.shape, self._store.salts))
        finally:
            if self._spill is not None:
                self._book.numbers[FREE] = free
        self._kept_index.note_whole()

    def take_counters(self) -> Counters:
        """Return what was asked for since the last call, by slot."""
        return self._slots.take()

    def scan(self, start: int, limit: int, *, state: bool = False) -> tuple[RowData, int]:
        """Return the live rows of owned slots among row numbers [start, start + limit), and where to go on; without ``state``, theirs is
        [n, 0]."""
        rows, following = self.find(self._slots.flagged(OWNED), start, scan_limit=limit, row_limit=limit)
        return unpack_rows(self.read_records(rows), self.shape, self._store.salts, with_state=state), following

    # --- moving ---------------------------------------------------------------------------------------------------

    def track(self, slots: SlotSet) -> None:
        """Log from now on each row of these slots, and of no others, that is updated or made: once, until the log is taken."""
        self._slots.flag(TRACKED, as_members(slots))
        self._tracking = True
        self._forget_log()

    def untrack(self) -> None:
        """Log no more, and forget the log."""
        self._slots.flag(TRACKED, np.zeros(SLOTS, np.bool_))
        self._tracking = False
        self._book.numbers[LOG_LENGTH] = 0
        self._book = self._book._replace(log=no_rows(), logged=no_rows())

    def logged(self) -> int:
        """Return the number of rows in the log."""
        return int(self._book.numbers[LOG_LENGTH])

    def take_log(self) -> NDArray[np.uint64]:
        """Return the numbers of the rows logged, and empty the log; rows that change again come into it again."""
        rows = self._book.log[: self.logged()].copy()
        self._forget_log()
        return rows

    def _forget_log(self) -> None:
        """Empty the log. Only rows in it have their bits set."""
        self._book.logged[self._book.log[: self.logged()] >> np.uint64(6)] = 0
        self._book.numbers[LOG_LENGTH] = 0

    def find(self, slots: SlotSet, start: int, *, scan_limit: int, row_limit: int) -> tuple[NDArray[np.uint64], int]:
        """Return numbers of live rows of these slots from ``start`` on, and where to go on (``used``: nowhere); looks at up to
        ``scan_limit`` rows, returns up to ``row_limit``."""
        stop = self._range(start, scan_limit)
        rows = np.empty(max(0, min(row_limit, stop - start)), np.uint64)
        found, following = move_kernels.find_rows(
            self._store, as_members(slots), np.uint64(start), np.uint64(stop), rows
        )
        return rows[: int(found)], int(following)

    def sort_out(
        self,
        batches: NDArray[np.uint16],
        start: int,
        *,
        scan_limit: int,
        rows: NDArray[np.uint32],
        ends: NDArray[np.uint64],
        limits: NDArray[np.uint64],
    ) -> int:
        """Put the numbers of live rows from ``start`` on where those of their slot's batch end in ``rows``. Returns where to go on
        (``used``: nowhere). ``batches`` [4096] is the number of each slot's batch, 0: none; ``ends`` advance, up to ``limits``.

        Raises ValueError for more rows of a batch than it has room for.
        """
        if (
            batches.shape != (SLOTS,)
            or batches.max() >= len(ends)
            or len(limits) != len(ends)
            or limits.max() > len(rows)
        ):
            raise ValueError(f"{batches.max()} batches of slots, room for {len(ends)}")
        stop = self._range(start, scan_limit)
        if move_kernels.sort_out(self._store, batches, np.uint64(start), np.uint64(stop), rows, ends, limits):
            raise ValueError("slots have more rows than were counted")
        return stop

    def among(self, slots: SlotSet, rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return those of ``rows`` that are live rows of these slots."""
        chosen = np.empty(len(rows), np.bool_)
        move_kernels.among(self._store, as_members(slots), as_input(rows, U64), chosen)
        return rows[chosen]

    def write(self, data: RowData) -> None:
        """Write rows as ``write_records`` does. Raises ValueError for shapes that don't fit, too."""
        n = len(data.ids)
        shapes = [(n,), (n,), (n,), (n, self.dim), (n, self.dim * self.parts)]
        if [array.shape for array in data] != shapes:
            raise ValueError(f"rows of shapes {[array.shape for array in data]}, expected {shapes}")
        if n and data.tables.max() >= len(self.tables):
            raise ValueError(f"rows of table {data.tables.max()} in a group of {len(self.tables)}")
        self.write_records(pack_rows(data, self.shape, self._store.salts))

    def write_records(self, records: NDArray[np.uint32]) -> None:
        """Insert rows or overwrite them, whoever owns their slots, with these records [n, words]; they have changed now.

        Raises ValueError for records of another shape or of no table, and JobError when the arena's address space is used up, and while
        a snapshot is taken.
        """
        self._refuse_in_snapshot("written over")
        if records.ndim != 2 or records.shape[1] != self.shape.words:
            raise ValueError(f"records of shape {records.shape}, expected {self.shape.words} words each")
        positions = positions_of(records)
        if len(positions) and not 0 < positions.min() <= positions.max() <= len(self.tables):
            raise ValueError(f"rows of tables {positions.min()} to {positions.max()} in a group of {len(self.tables)}")
        self._kept_index.note_change()
        self._write(as_input(records, U32))
        self._kept_index.note_whole()

    def _write(self, records: NDArray[np.uint32]) -> None:
        """Write records; the index changes until the caller notes that it is whole."""
        n = len(records)
        self._make_room(n)
        rows = self.rows
        if (appended := self._append(records)) < n:
            self._arena.touch(max(0, n - appended - self.gaps))
            given = as_input(records[appended:], U32).reshape(-1)
            stopped(
                move_kernels.write(self._store, self._index.buckets, self._book, self._epoch, self._tracking, given)
            )
        self._grow(self.rows - rows)

    def reserve(self, more_rows: int) -> None:
        """Begin to have an index large enough for so many more rows."""
        self._index.reserve(self.rows + more_rows)
        self._kept_index.note_whole()

    def drop(self, slots: SlotSet, start: int, *, scan_limit: int) -> int:
        """Free the live rows of these slots among [start, start + scan_limit). Returns where to go on (``used``: nowhere).

        Raises ValueError for slots that are tracked, JobError while a snapshot is taken.
        """
        self._refuse_in_snapshot("dropped")
        slots = as_members(slots)
        if (slots & self._slots.flagged(TRACKED)).any():
            raise ValueError("rows of tracked slots can't be dropped")
        stop = self._range(start, scan_limit)
        if self.gaps + stop - start > len(self._book.free):
            self._rebase()
        self._kept_index.note_change()
        rising, step = move_kernels.drop(
            self._store, self._index.buckets, self._book, slots, np.uint64(start), np.uint64(stop)
        )
        stopped(step)
        self._free_rises = self._free_rises and bool(rising)
        self._kept_index.note_whole()
        return stop

    def compact(self, limit: int) -> bool:
        """Move at most ``limit`` of the last rows into free ones; when none is left, have the index shrink. True when there is nothing more
        to do but to ``give_back``. Raises ValueError while slots are tracked: the log holds row numbers; JobError while a snapshot is
        taken."""
        self._refuse_in_snapshot("moved")
        if self._tracking:
            raise ValueError("rows can't be moved while slots are tracked")
        self._arena.note_used()
        free = self._book.free
        if not self._free_rises:
            free[: self.gaps].sort()
            self._free_rises = True
        self._kept_index.note_change()
        taken, step = move_kernels.compact(self._store, self._index.buckets, self._book, np.uint64(limit))
        stopped(step)
        self._book = self._book._replace(free=free[int(taken) :])
        self._kept_index.note_whole()
        if self.gaps:
            return False
        self._rebase()
        self._free_numbers.give_back()
        done = self._index.shrink(limit, self.rows)
        self._kept_index.note_whole()
        return done

    def give_back(self) -> bool:
        """Return some memory of row numbers that are no longer used to the system: at most 32 MiB. True when there is no more."""
        return self._arena.give_back()

    def _rebase(self) -> None:
        """Have the stack of free row numbers where it has room for all there can be: numbers are taken from its bottom, too."""
        whole = self._free_numbers.array
        whole[: self.gaps] = self._book.free[: self.gaps]
        self._book = self._book._replace(free=whole)

    # --- snapshots ------------------------------------------------------------------------------------------------

    def begin_snapshot(self) -> GroupSnapshot:
        """Return the group as it is in a snapshot that begins now, without room in a spill, and begin the next epoch. Raises JobError when
        there have been too many epochs."""
        epoch = int(self._epoch)
        if epoch == EPOCHS_MOST:
            raise JobError(
                f"{epoch:,} checkpoints have been taken without a pause, and a parameter server can't tell more of them apart",
                hint="Stop the job, and go on with it: dlrover-lite run --resume JOB",
            )
        self._book.numbers[EPOCH] = epoch + 1
        return GroupSnapshot(self.shape, self.used, epoch, self._store.salts.tobytes())

    @property
    def file(self) -> Arena:
        """The arena of records, for another process to read."""
        return self._arena.file

    def spill(self, area: Area | None) -> None:
        """Copy to ``area`` what an update changes for the first time, before it does, from now on until this is called with None: a
        snapshot is taken of the rows as they are now. Meanwhile rows are neither dropped nor moved, nor written but by ``insert``."""
        self._spill = area
        self._spill_arguments = no_spill() if area is None else area

    def _refuse_in_snapshot(self, what: str) -> None:
        if self._spill is not None:
            raise JobError(f"rows of dim {self.dim} can't be {what} while a snapshot is taken of them")

    # --- inner ----------------------------------------------------------------------------------------------------

    def _append(self, records: NDArray[np.uint32]) -> int:
        """Write the first of ``records`` at once behind all others, if that can be: where many come at a time, and until one has a row
        already. Returns how many."""
        if records.nbytes < _APPEND_BYTES or self.gaps or self._tracking:
            return 0
        if self._has_row(records[0]):
            return 0  # so have most that follow: they were sent before
        appended, step = 0, 0
        if self._arena.append(records):
            appended, step = move_kernels.enter_new(
                self._store, self._index.buckets, self._book, self._epoch, np.uint64(len(records))
            )
            stopped(step)
        self._arena.free_beyond()
        return int(appended)

    def _has_row(self, record: NDArray[np.uint32]) -> bool:
        data = unpack_rows(record.reshape(1, -1), self.shape, self._store.salts, with_state=False)
        counts = np.zeros(len(self.tables), np.int64)
        counts[data.tables[0]] = 1
        return bool(self.contains(data.ids, counts)[0])
