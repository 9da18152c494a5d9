"""What a group of tables consists of: rows in arenas, an index, and the books that are kept of them. ``table.py`` works on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from dlrover_lite.errors import JobError
from dlrover_lite.ps import move_kernels, optimizers, table_kernels
from dlrover_lite.ps.dedupe import Deduplicator
from dlrover_lite.ps.hashing import init_salt, table_salt
from dlrover_lite.ps.index import CHUNK, Index
from dlrover_lite.ps.journal import Journal, halting
from dlrover_lite.ps.memory import Arenas
from dlrover_lite.ps.optimizer_state import STATE_PARTS
from dlrover_lite.ps.row_arenas import RowArenas
from dlrover_lite.ps.rows import (
    CLOCK,
    FREE,
    I64,
    LOG_LENGTH,
    LOG_ROUND,
    NUMBERS,
    U64,
    USED,
    RowData,
    Store,
    as_input,
    empty_rows,
    no_rows,
    with_room,
)
from dlrover_lite.ps.slot_counters import SlotBook, hash_owned
from dlrover_lite.ps.spill import Area, no_spill
from dlrover_lite.ps.table_kernels import Book
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.slots import SLOTS
from dlrover_lite.wire.ps_messages import TableSpec

__all__ = ["GroupState", "Kept"]


class Kept(NamedTuple):
    """Where a group is kept."""

    arenas: Arenas
    name: str
    """Of its arenas."""
    numbers: NDArray[np.uint64]
    """[``rows.NUMBERS``]"""
    journal: Journal | None = None
    """Of updates; None: a process killed amid one leaves rows half changed."""
    number: int = 0
    """Of the group, in the journal."""


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
        kept: Kept | None = None,
    ) -> None:
        """``kept``: where its rows are, and may have been left; by default nothing outlives the process. Raises JobError for what was left
        and is no group's."""
        self.tables = list(tables)
        self.dim = tables[0].dim
        if any(table.dim != self.dim for table in tables):
            raise ValueError("the tables of a group have one dim")
        self.complete = complete
        self.parts = STATE_PARTS[optimizer.use]
        self._kind = optimizers.KINDS[optimizer.use]
        self._hyper = optimizers.hyperparameters(optimizer)
        self._kept = kept or Kept(Arenas(), f"tables-{self.dim}", np.zeros(NUMBERS, np.uint64))
        numbers = self._kept.numbers
        reserve_bytes = reserve_bytes or psutil.virtual_memory().total
        self._arenas = RowArenas(self._kept.arenas, self._kept.name, self.dim, self.parts, reserve_bytes, numbers)
        self.row_bytes = self._arenas.row_bytes
        """Of arenas; the index comes on top."""
        self._store = Store(
            self._arenas.ids,
            self._arenas.meta,
            self._arenas.values,
            self._arenas.state,
            np.uint64(self.dim),
            np.uint64(self.parts),
            np.array([table_salt(t.name) for t in tables], np.uint64),
            np.array([init_salt(seed, t.name) for t in tables], np.uint64),
            np.array([t.init_scale for t in tables], np.float32),
        )
        self._index = Index(self._store)
        self._slots = SlotBook(len(self.tables))
        self._book = Book(numbers, no_rows(), no_rows(), self._slots.flags, self._slots.row_counts, halting())
        self._free_rises = True
        self._deduplicator = Deduplicator()
        self._hashes = no_rows()
        self._journal: tuple[Any, np.uint64, np.uint64] = (None, np.uint64(0), np.uint64(CHUNK))
        if self._kept.journal is not None:
            words, base, limit = self._kept.journal.arguments(self._kept.number, self._store)
            self._journal = (tuple(words), base, limit)
        self._tracking = False
        self._spill: Area | None = None
        self._spill_arguments = no_spill()
        if self.used:
            self._restore()

    @property
    def used(self) -> int:
        """Row numbers in use, free ones included."""
        return int(self._book.numbers[USED])

    @property
    def rows(self) -> int:
        """Live rows of all slots, owned or not."""
        return self.used - self._free

    @property
    def gaps(self) -> int:
        """Free row numbers below the last row in use."""
        return self._free

    @property
    def slot_rows(self) -> NDArray[np.int64]:
        """Live rows of each slot [4096]."""
        return self._slots.row_counts[:SLOTS].copy()

    @property
    def table_rows(self) -> list[int]:
        """Live rows of each table, whoever owns their slots."""
        return [int(rows) for rows in self._slots.row_counts[SLOTS:]]

    @property
    def bytes(self) -> int:
        """Memory that rows (free ones included), their index and the list of free ones take."""
        return self._arenas.bytes + self._index.bytes + self._book.free.nbytes

    def contains(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of ``keys`` have a row, whoever owns their slots: bool [n]."""
        keys, counts = self._keys(keys, counts)
        out = np.empty(len(keys), np.bool_)
        entries = self._index.entries
        table_kernels.contains(keys, counts, self._store.salts, entries.words, entries.mask, out)
        return out

    @property
    def _free(self) -> int:
        return int(self._book.numbers[FREE])

    @property
    def _clock(self) -> int:
        return int(self._book.numbers[CLOCK])

    @property
    def _round(self) -> np.uint32:
        """As kernels take it; 0: no slot is tracked."""
        return np.uint32(self._book.numbers[LOG_ROUND] if self._tracking else 0)

    def _restore(self) -> None:
        """Rows were left here."""
        if self._kept.journal is not None:
            self._kept.journal.undo(self._kept.number, self._store, self.used)
        free = self._index.restore(self.used, self._slots.row_counts)
        self._book.numbers[FREE] = len(free)
        self._book.numbers[LOG_LENGTH] = 0
        self._book = self._book._replace(free=free)

    def _keys(
        self, keys: NDArray[np.uint64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        # the kernels trust these: a wrong length would read beyond the arrays
        numbers: list[int] = counts.tolist()
        if len(numbers) != len(self.tables) or min(numbers) < 0 or sum(numbers) != len(keys):
            raise ValueError(f"counts {numbers} don't fit {len(keys)} keys in {len(self.tables)} tables")
        return as_input(keys, U64), as_input(counts, I64)

    def _hash_owned(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> bool:
        """Whether the keys' slots are all owned; their hashes are in ``_hashes`` then."""
        if len(self._hashes) < len(keys):
            self._hashes = np.empty(len(keys), np.uint64)
        return bool(hash_owned(keys, counts, self._store.salts, self._slots.flags, self._hashes))

    def _require(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
        """All these rows must be there."""
        present = self.contains(keys, counts)
        if not present.all():
            first = int(np.argmin(present))
            table = self.tables[int(np.searchsorted(np.cumsum(counts), first, side="right"))]
            raise JobError(
                f"{table.name}: there is no row {keys[first]}",
                hint="Whoever uses it has to give its initial values first.",
            )

    def _make_room(self, new_rows: int) -> None:
        """In arenas' address space, index and log."""
        used, free, logged = self._book.numbers[:3].tolist()
        if used + max(0, new_rows - free) > self._arenas.capacity:
            raise JobError(
                f"embedding tables of dim {self.dim} are full: {used - free} rows",
                hint="Give the parameter servers more memory, or use more of them.",
            )
        self._index.make_room(used - free + new_rows, used)
        if self._tracking:
            self._book = self._book._replace(log=with_room(self._book.log, logged, new_rows))

    def _grow(self, new_rows: int) -> None:
        """Beside these rows that have come."""
        if new_rows or self._index.changing:
            self._index.advance(new_rows, self.rows, self.used)

    def _begin_round(self) -> None:
        # goes on where the process before this one stopped: its rounds stand in the rows it logged
        self._book.numbers[LOG_ROUND] += np.uint64(1)
        self._book.numbers[LOG_LENGTH] = 0

    def _range(self, start: int, limit: int) -> int:
        if start < 0 or limit < 0:
            raise ValueError(f"rows from {start}, {limit} of them")
        return max(start, min(start + limit, self.used))

    def _copy(self, rows: NDArray[np.uint64], *, with_state: bool, into: RowData | None = None) -> RowData:
        n = len(rows)
        if n and rows.max() >= self.used:
            raise ValueError(f"row {rows.max()} of {self.used}")
        store = self._store if with_state else self._store._replace(parts=np.uint64(0))
        data = into or empty_rows(n, self.dim, self.dim * int(store.parts))
        clock = np.uint32(self._clock)
        if not move_kernels.read(store, as_input(rows, U64), clock, *(array.reshape(-1) for array in data)):
            raise ValueError("a free row can't be read")
        return data
