"""What a group of tables consists of: rows in an arena, an index, and the books that are kept of them. ``table.py`` works on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError, UsageError
from dlrover_lite.core.records import TABLES_MOST, RecordShape, table_salt
from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.ps.journal.journal import Journal, halting
from dlrover_lite.ps.memory.row_arena import RowArena
from dlrover_lite.ps.memory.scratch import Scratch
from dlrover_lite.ps.memory.state_memory import Arenas
from dlrover_lite.ps.snapshots.copy_on_write_log import Area, no_spill
from dlrover_lite.ps.tables import attach_kernels, move_kernels, table_kernels
from dlrover_lite.ps.tables.bucket_index import CHUNK
from dlrover_lite.ps.tables.kept_index import KeptIndex
from dlrover_lite.ps.tables.row_arrays import (
    EPOCH,
    FREE,
    I64,
    LOG_LENGTH,
    NUMBERS,
    U64,
    USED,
    Store,
    as_input,
    no_rows,
    with_room,
)
from dlrover_lite.ps.tables.slot_counters import SlotBook, hash_owned
from dlrover_lite.ps.tables.table_kernels import Book
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables import optimizers
from dlrover_lite.tables.hashing import init_salt
from dlrover_lite.tables.optimizer_state import COUNTING, STATE_PARTS

__all__ = ["GroupState", "Kept"]


class Kept(NamedTuple):
    """Where a group is kept."""

    arenas: Arenas
    name: str
    """Name of its arena."""
    numbers: NDArray[np.uint64]
    """uint64 [``row_arrays.NUMBERS``]: the numbers of the group."""
    journal: Journal | None = None
    """Journal of updates; None: a process killed amid one leaves rows half changed."""
    number: int = 0
    """Number of the group in the journal."""


class GroupState:
    """All tables of one dim, as ``TableGroup`` has them."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        optimizer: Optimizer,
        *,
        seed: int,
        reserve_bytes: int | None = None,
        complete: bool = False,
        counted: bool = False,
        kept: Kept | None = None,
    ) -> None:
        """``counted``: each row has a count of its updates, whether or not the optimizer needs it. ``kept``: where its rows are, and may
        have been left; by default nothing outlives the process. Raises JobError for what was left and is no group's."""
        self.tables = list(tables)
        self.dim = tables[0].dim
        if any(table.dim != self.dim for table in tables):
            raise ValueError("the tables of a group have one dim")
        if len(tables) > TABLES_MOST:
            raise UsageError(
                f"{len(tables)} embedding tables of dim {self.dim}",
                hint=f"There may be {TABLES_MOST} of each dim: give some of them another one.",
            )
        self.complete = complete
        self.parts = STATE_PARTS[optimizer.use]
        self.shape = RecordShape(self.dim, self.dim * self.parts, counted or optimizer.use in COUNTING)
        self._optimizer = optimizer
        self._kind = optimizers.KINDS[optimizer.use]
        self._hyper = optimizers.hyperparameters(optimizer)
        self._kept = kept or Kept(Arenas(), f"tables-{self.dim}", np.zeros(NUMBERS, np.uint64))
        numbers = self._kept.numbers
        numbers[EPOCH] = max(numbers[EPOCH], np.uint64(1))
        reserve_bytes = reserve_bytes or psutil.virtual_memory().total
        self._arena = RowArena(self._kept.arenas, self._kept.name, self.shape.words, reserve_bytes, numbers)
        self.row_bytes = self.shape.bytes
        """Bytes of a record; the index comes on top."""
        self._store = Store(
            self._arena.records,
            self._arena.records.view(np.float32),
            np.uint64(self.shape.words),
            np.uint64(self.shape.values_at),
            np.uint64(self.shape.counted),
            np.uint64(self.dim),
            np.array([table_salt(t.name) for t in tables], np.uint64),
            np.array([init_salt(seed, t.name) for t in tables], np.uint64),
            np.array([t.init_scale for t in tables], np.float32),
        )
        self._kept_index = KeptIndex(
            self._kept.arenas,
            self._kept.name,
            self._arena.records,
            self.shape.words,
            self._arena.capacity,
            len(self.tables),
            numbers,
        )
        self._index = self._kept_index.index
        self._slots = SlotBook(self._kept_index.row_counts)
        self._free_numbers = Scratch(self._arena.capacity, np.uint64)
        """Memory that the book's stack of free row numbers lies in."""
        free, counts = self._free_numbers.array, self._slots.row_counts
        self._book = Book(numbers, free, no_rows(), no_rows(), self._slots.flags, counts, halting())
        self._free_rises = True
        self._hashes = no_rows()
        self._journal: tuple[Any, np.uint64, np.uint64] = (None, np.uint64(0), np.uint64(CHUNK))
        self._pushed = np.empty(0, np.uint32)
        """Numbers of the rows of the last update, in the order of its keys."""
        if self._kept.journal is not None:
            words, base, limit = self._kept.journal.arguments(self._kept.number, self.shape.words)
            self._journal = (tuple(words), base, limit)
            self._pushed = self._kept.journal.pushed
        self._new_rows = 1
        """Number of rows that the last update has made: the next one gets memory for as many ahead, which costs half of what faults do."""
        self._tracking = False
        self._spill: Area | None = None
        self._spill_arguments = no_spill()
        if self.used:
            self._restore()

    @property
    def used(self) -> int:
        """Number of row numbers in use, free ones included."""
        return int(self._book.numbers[USED])

    @property
    def rows(self) -> int:
        """Number of live rows of all slots, owned or not."""
        return self.used - self.gaps

    @property
    def gaps(self) -> int:
        """Number of free row numbers below the last row in use."""
        return int(self._book.numbers[FREE])

    @property
    def slot_rows(self) -> NDArray[np.int64]:
        """Number of live rows of each slot [4096]."""
        return self._slots.row_counts[:SLOTS].copy()

    @property
    def table_rows(self) -> list[int]:
        """Number of live rows of each table, whoever owns their slots."""
        return [int(rows) for rows in self._slots.row_counts[SLOTS:]]

    @property
    def bytes(self) -> int:
        """Bytes of memory that rows (free ones included), their index and the list of free ones take."""
        return self._arena.bytes + self._index.bytes + 8 * self.gaps

    def contains(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of ``keys`` have a row, whoever owns their slots: bool [n]."""
        keys, counts = self._keys(keys, counts)
        out = np.empty(len(keys), np.bool_)
        store = self._store
        table_kernels.contains(keys, counts, store.salts, self._index.buckets, store.records, store.row_words, out)
        return out

    @property
    def _epoch(self) -> np.uint32:
        """Epoch of the group, as kernels take it."""
        return np.uint32(self._book.numbers[EPOCH])

    def _restore(self) -> None:
        """Take up the rows that were left here."""
        used = self.used
        if self._kept.journal is not None:
            self._kept.journal.undo(self._kept.number, self._store, used)
        self._book.numbers[LOG_LENGTH] = 0
        if not self._kept_index.whole:
            self._index_rows(used)

    def _index_rows(self, used: int) -> None:
        """Make index, free numbers and counts from the rows. Raises JobError for rows that are none."""
        self._index.make_room(used)
        self._arena.file.map(used * self.row_bytes)
        index, filled = self._index.buckets, self._index.filled(used)
        freed, right = attach_kernels.restore(
            self._store, np.uint64(used), index, filled, self._slots.row_counts, self._book.free
        )
        if right < used:
            raise JobError(
                f"rows of a parameter server that has ended are damaged: row {right} of {used} is of no table"
            )
        self._book.numbers[FREE] = freed
        self._kept_index.note_whole()

    def _keys(
        self, keys: NDArray[np.uint64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        # the kernels trust these: a wrong length would read beyond the arrays
        numbers: list[int] = counts.tolist()
        if len(numbers) != len(self.tables) or min(numbers) < 0 or sum(numbers) != len(keys):
            raise ValueError(f"counts {numbers} don't fit {len(keys)} keys in {len(self.tables)} tables")
        return as_input(keys, U64), as_input(counts, I64)

    def _hash_owned(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> bool:
        """Return whether the keys' slots are all owned; their hashes are in ``_hashes`` then."""
        if len(self._hashes) < len(keys):
            self._hashes = np.empty(len(keys), np.uint64)
        return bool(hash_owned(keys, counts, self._store.salts, self._slots.flags, self._hashes))

    def _require(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
        """Raise JobError unless all these rows are there."""
        present = self.contains(keys, counts)
        if not present.all():
            first = int(np.argmin(present))
            table = self.tables[int(np.searchsorted(np.cumsum(counts), first, side="right"))]
            raise JobError(
                f"{table.name}: there is no row {keys[first]}",
                hint="Whoever uses it has to give its initial values first.",
            )

    def _make_room(self, new_rows: int) -> None:
        """Make room for new rows in the arena's address space, index and log."""
        used, free, length = self._book.numbers[:3].tolist()
        if used + max(0, new_rows - free) > self._arena.capacity:
            raise JobError(
                f"embedding tables of dim {self.dim} are full: {used - free} rows",
                hint="Give the parameter servers more memory, or use more of them.",
            )
        self._index.make_room(used - free, new_rows)
        if self._tracking:
            log = with_room(self._book.log, length, new_rows)
            missing = (used + new_rows) // 64 + 1 - len(self._book.logged)
            logged = self._book.logged
            if missing > 0:
                logged = np.concatenate([logged, np.zeros(missing + len(logged) // 4, np.uint64)])
            self._book = self._book._replace(log=log, logged=logged)

    def _grow(self, new_rows: int) -> None:
        """Let the index grow beside these rows that have come."""
        if new_rows or self._index.changing:
            self._index.advance(new_rows, self.rows)

    def _range(self, start: int, limit: int) -> int:
        if start < 0 or limit < 0:
            raise ValueError(f"rows from {start}, {limit} of them")
        return max(start, min(start + limit, self.used))

    def read_records(self, rows: NDArray[np.uint64], into: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
        """Return copies of the records [n, words] of these rows, ``into`` an array of that shape if given. Raises ValueError for numbers
        that aren't those of live rows."""
        n = len(rows)
        if n and rows.max() >= self.used:
            raise ValueError(f"row {rows.max()} of {self.used}")
        if into is not None and (into.shape != (n, self.shape.words) or not into.flags.c_contiguous):
            raise ValueError(f"room of shape {into.shape} for {n} records of {self.shape.words} words")
        records = np.empty((n, self.shape.words), np.uint32) if into is None else into
        if not move_kernels.read(self._store, as_input(rows, U64), records.reshape(-1)):
            raise ValueError("a free row can't be read")
        return records
