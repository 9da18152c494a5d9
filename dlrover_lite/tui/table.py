"""Rows under headings as data: which columns there is room for, what cells say, the order of rows, and which are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Generic, NamedTuple, TypeVar

from dlrover_lite.tui.text import Line, Span, padded, plain

__all__ = ["Column", "Order", "Placed", "Table", "numbers", "place", "text_of"]

R = TypeVar("R")
GAP = 2
_MARGIN = 2
"""Width of the margin before the first column, for the mark of the chosen row."""


class Column(NamedTuple, Generic[R]):
    """A column of a table. ``cell`` makes a row's text for a width."""

    name: str
    title: str
    cell: Callable[[R, int], Line]
    sort: Callable[[R], Any] | None = None
    """Function that returns what rows are sorted by; unknown values (None) come last, whichever the direction."""
    least: int = 4
    """Minimum width: with less room than this the column is left out."""
    wanted: int = 0
    """Width that is enough; 0: the least is."""
    most: int = 0
    """Maximum width that it may grow to where there is room to spare; 0: not beyond what it wants."""
    right: bool = False
    rank: int = 0
    """Rank of the column: those of the highest give way first; 0: never."""
    down: bool = False
    """Whether the largest come first when it is sorted by."""
    has: Callable[[R], bool] | None = None
    """Function that returns whether there is something in it for a row: with nothing for any, the column is left out. None: it never
    is."""


def numbers(
    name: str,
    title: str,
    cell: Callable[[R, int], Line],
    sort: Callable[[R], Any],
    *,
    least: int,
    wanted: int = 0,
    most: int = 0,
    rank: int = 0,
) -> Column[R]:
    """Make a column of numbers: flush right, and the largest come first when it is sorted by."""
    return Column(name, title, cell, sort, least, wanted, most, right=True, rank=rank, down=True)


class Placed(NamedTuple):
    """A column's place in a line."""

    at: int
    """Position in the table's columns."""
    x: int
    width: int


def place(columns: Sequence[Column[Any]], width: int, *, without: Set[str] = frozenset()) -> list[Placed]:
    """Place the columns that fit, ``without`` some: of too many those of the highest rank give way; what room is left over goes to those
    that may grow."""
    kept = [at for at, column in enumerate(columns) if column.name not in without]

    def room(sizes: Iterable[int]) -> int:
        return width - _MARGIN - GAP * (len(kept) - 1) - sum(sizes)

    while room(columns[at].least for at in kept) < 0:
        droppable = [at for at in kept if columns[at].rank]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda at: (columns[at].rank, at)))
    dropped = [at for at, column in enumerate(columns) if column.name not in without and at not in kept]
    for at in sorted(dropped, key=lambda at: columns[at].rank):
        if room([*(columns[at].least for at in kept), columns[at].least + GAP]) >= 0:  # where a wider one had to go
            kept = sorted([*kept, at])
    sizes = {at: columns[at].least for at in kept}
    by_rank = sorted(kept, key=lambda at: columns[at].rank)
    for at in by_rank:
        sizes[at] += max(0, min(room(sizes.values()), columns[at].wanted - sizes[at]))
    for at in by_rank:
        sizes[at] += max(0, min(room(sizes.values()), columns[at].most - sizes[at]))
    placed, x = [], _MARGIN
    for at in kept:
        placed.append(Placed(at, x, sizes[at]))
        x += sizes[at] + GAP
    return placed


class Order(NamedTuple):
    """Order of rows: by a column, in its own direction or the other one. None: as they come."""

    column: str | None = None
    turned: bool = False


AS_THEY_COME = Order()


class Table(Generic[R]):
    """Rows by id, of which those that ``matches`` are shown, in an order. Rows are values: one that is the same object hasn't changed.

    ``found`` is the text of a row that a filter looks in.
    """

    def __init__(self, columns: Sequence[Column[R]], found: Callable[[R], str], *, order: Order = AS_THEY_COME) -> None:
        self.columns = tuple(columns)
        self._found = found
        self.rows: dict[str, R] = {}
        self.shown: list[str] = []
        """Ids of the rows that are shown, in order."""
        self.order = order
        self.filter = ""
        self._is_left_out: Callable[[R], bool] | None = None
        self.left_out = 0
        """Number of rows that are left out, whatever the filter."""
        self.empty = self._without()
        """Names of columns that are left out, as there is nothing in them."""

    def put(self, rows: Mapping[str, R]) -> set[str] | None:
        """Take these rows, and no others. Returns the ids of rows that have changed, or None where their order or number may have, too."""
        before, self.rows = self.rows, dict(rows)
        changed = {name for name, row in rows.items() if before.get(name) is not row}
        if not changed and len(before) == len(rows):
            return changed
        self.empty = self._without()
        shown, self.shown = self.shown, self._arranged()
        return changed if shown == self.shown else None

    def place(self, width: int) -> list[Placed]:
        """Place the columns in which there is something."""
        return place(self.columns, width, without=self.empty)

    def _without(self) -> frozenset[str]:
        rows = self.rows.values()
        return frozenset(one.name for one in self.columns if one.has is not None and not any(map(one.has, rows)))

    def look_for(self, text: str) -> None:
        """Show only rows with all these words, whatever their case; a word with ``!`` before it must not be there."""
        self.filter = text
        self.shown = self._arranged()

    def leave_out(self, is_left_out: Callable[[R], bool] | None) -> None:
        """Leave out the rows of which this is true; None: show all."""
        self._is_left_out = is_left_out
        self.shown = self._arranged()

    def sort(self, order: Order) -> None:
        self.order = order
        self.shown = self._arranged()

    def sort_by(self, column: str) -> Order:
        """Sort by this column; once more turns it round."""
        self.sort(Order(column, column == self.order.column and not self.order.turned))
        return self.order

    def _arranged(self) -> list[str]:
        words = self.filter.lower().split()
        rows, left_out = self.rows, self._is_left_out
        if left_out is not None:
            rows = {name: row for name, row in rows.items() if not left_out(row)}
        self.left_out = len(self.rows) - len(rows)
        names = [name for name, row in rows.items() if not words or self._matches(row, words)]
        column = next((one for one in self.columns if one.name == self.order.column), None)
        if column is None or column.sort is None:
            return names
        sort = column.sort
        keyed = [(sort(self.rows[name]), name) for name in names]
        known = sorted((pair for pair in keyed if pair[0] is not None), key=lambda pair: pair[0])
        if column.down != self.order.turned:
            known.reverse()
        return [name for _, name in known] + [name for key, name in keyed if key is None]

    def _matches(self, row: R, words: Sequence[str]) -> bool:
        text = self._found(row).lower()
        return all((word[1:] not in text) if word[0] == "!" and len(word) > 1 else word in text for word in words)

    def head(self, placed: Sequence[Placed], width: int) -> Line:
        """Write the headings; that of the column sorted by has an arrow."""
        parts: list[Span] = [Span(" " * _MARGIN)]
        for number, one in enumerate(placed):
            column = self.columns[one.at]
            title = column.title
            if column.name == self.order.column:
                title += "↓" if column.down != self.order.turned else "↑"
            parts += [Span(" " * GAP)] if number else []
            parts += padded((Span(title, "title"),), one.width, right=column.right)
        return padded(parts, width)

    def line(self, name: str, placed: Sequence[Placed], width: int, *, chosen: bool = False) -> Line:
        row = self.rows[name]
        parts: list[Span] = [Span("▸ " if chosen else "  ", "accent")]
        for number, one in enumerate(placed):
            column = self.columns[one.at]
            parts += [Span(" " * GAP)] if number else []
            parts += padded(column.cell(row, one.width), one.width, right=column.right)
        return padded(parts, width)

    def text(self, width: int) -> list[Line]:
        """Write all of the table, for where nothing scrolls."""
        placed = self.place(width)
        return [self.head(placed, width), *(self.line(name, placed, width) for name in self.shown)]


def text_of(lines: Iterable[Line]) -> str:
    """Return lines as a plain file has them."""
    return "".join(plain(one).rstrip() + "\n" for one in lines)
