"""What the parameter servers (PS) of a job held, by time, in little memory: a thousand jobs with many tables have many such numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.protocol.profiles import Level, PsLevel, TableUse

__all__ = ["MemoryHistory"]

T = TypeVar("T")
IntArray = NDArray[np.int64]
_UNKNOWN = -1


class MemoryHistory(Sequence[Level]):
    """Levels by time. The last one is as it was told. Of those before, each table's rows are those of all PS together, named ""."""

    def __init__(self, levels: Iterable[Level] = ()) -> None:
        self._at: list[tuple[float, int, float]] = []
        """Time, samples so far and samples/s."""
        self._tables, self._dims = _Columns(), dict[str, int]()
        self._rows, self._row_bytes, self._used_bytes = _Columns(), _Columns(), _Columns()
        self._last: Level | None = None
        self.version = 0
        """Rises when levels are left out."""
        self.kept: dict[str, tuple[Hashable, Any]] = {}
        """What was computed from the levels, each with what it holds for: by those who compute it (``keep``)."""
        for level in levels:
            self.append(level)

    @staticmethod
    def of(levels: Sequence[Level]) -> MemoryHistory:
        return levels if isinstance(levels, MemoryHistory) else MemoryHistory(levels)

    def append(self, level: Level) -> None:
        self._at.append((level.at, level.samples_so_far, level.samples_per_second))
        self._dims |= {table.table: table.dim for table in level.tables}
        self._tables.append({table.table: table.total_rows for table in level.tables})
        self._rows.append({use.node: use.rows for use in level.ps})
        self._row_bytes.append({use.node: use.row_bytes for use in level.ps})
        self._used_bytes.append({use.node: use.used_bytes for use in level.ps})
        self._last = level

    def thin(self, most: int) -> None:
        """Leave out every second one of the older half, if there are more than ``most``. The last one stays."""
        if len(self._at) <= most:
            return
        half = most // 2
        kept = np.array([*range(0, half, 2), *range(half, len(self._at))])
        self._at = [self._at[at] for at in kept]
        for columns in (self._tables, self._rows, self._row_bytes, self._used_bytes):
            columns.keep(kept)
        self.version += 1

    def keep(self, name: str, holds_for: Hashable, compute: Callable[[], T]) -> T:
        """Return what was computed under a name, if it holds; else compute it, in place of what was kept."""
        kept = self.kept.get(name)
        if kept is None or kept[0] != holds_for:
            kept = self.kept[name] = holds_for, compute()
        found: T = kept[1]
        return found

    def __len__(self) -> int:
        return len(self._at)

    @overload
    def __getitem__(self, at: int) -> Level: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Level]: ...
    def __getitem__(self, at: int | slice) -> Level | Sequence[Level]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        position = range(len(self))[at]
        if position == len(self) - 1:
            assert self._last is not None
            return self._last
        rows, held, used = (one.at(position) for one in (self._rows, self._row_bytes, self._used_bytes))
        time, samples, rate = self._at[position]
        return Level(
            time,
            samples,
            rate,
            tuple(PsLevel(node, rows[node], held[node], used[node]) for node in rows),
            tuple(
                TableUse(table, self._dims[table], {"": count}) for table, count in self._tables.at(position).items()
            ),
        )

    # --- as forecasts take it -------------------------------------------------------------------------------------------

    @property
    def last_at(self) -> float:
        """Time of the last level; 0 where there is none."""
        return self._at[-1][0] if self._at else 0.0

    @property
    def samples(self) -> NDArray[np.float64]:
        """Samples so far at each level."""
        return np.array([samples for _, samples, _ in self._at], np.float64)

    @property
    def some_ps(self) -> NDArray[np.bool_]:
        """Whether there were PS, at each level."""
        return np.asarray((self._rows.values >= 0).any(axis=1))

    def table_rows(self, tables: Sequence[str]) -> IntArray:
        """Return the rows of these tables [levels, tables]; -1 where they aren't known."""
        return self._tables.of(tables)

    def all_rows(self) -> IntArray:
        """Return the rows of all tables together [levels, 1]."""
        return np.asarray(np.maximum(self._rows.values, 0).sum(axis=1, keepdims=True))

    def most_used(self, node: str) -> int:
        """Return the most bytes that a PS used at any level; 0 where none has it."""
        return max(0, int(self._used_bytes.of([node]).max(initial=0)))

    def beside_rows(self, node: str) -> tuple[IntArray, IntArray]:
        """Return the bytes that a PS used, and those of its rows, at the levels that have it, but for those at which rows have just left:
        it may have had their memory still."""
        used, held = self._used_bytes.of([node])[:, 0], self._row_bytes.of([node])[:, 0]
        there = held >= 0
        used, held = used[there], held[there]
        stayed = np.concatenate([[True], held[1:] >= held[:-1]])[: len(held)]
        return used[stayed], held[stayed]


class _Columns:
    """Numbers by name, a row for each level: [levels, names]."""

    def __init__(self) -> None:
        self._column: dict[str, int] = {}
        self._length = 0
        self._held: IntArray = np.empty((0, 0), np.int64)
        """With room for more."""

    @property
    def values(self) -> IntArray:
        return self._held[: self._length]

    def append(self, numbers: Mapping[str, int]) -> None:
        for name in numbers:
            self._column.setdefault(name, len(self._column))
        rows, columns = self._held.shape
        if self._length == rows or len(self._column) > columns:
            grown = np.full((max(rows, self._length + 16), len(self._column)), _UNKNOWN, np.int64)
            grown[: self._length, :columns] = self.values
            self._held = grown
        row = self._held[self._length]
        for name, number in numbers.items():
            row[self._column[name]] = number
        self._length += 1

    def keep(self, rows: IntArray) -> None:
        """Leave out the other rows, and names that are in none of these."""
        kept = self.values[rows]
        there = np.flatnonzero((kept != _UNKNOWN).any(axis=0))
        names = list(self._column)
        self._column = {names[at]: column for column, at in enumerate(there.tolist())}
        self._held, self._length = np.ascontiguousarray(kept[:, there]), len(kept)

    def of(self, names: Sequence[str]) -> IntArray:
        found = np.full((self._length, len(names)), _UNKNOWN, np.int64)
        for at, name in enumerate(names):
            if (column := self._column.get(name)) is not None:
                found[:, at] = self._held[: self._length, column]
        return found

    def at(self, row: int) -> dict[str, int]:
        numbers = self._held[row].tolist()
        return {name: numbers[column] for name, column in self._column.items() if numbers[column] != _UNKNOWN}
