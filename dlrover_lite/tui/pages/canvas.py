"""A field of characters that values are drawn on: curves in dots, limits, bands, and lines from top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dlrover_lite.tui.text import Line, Span, Tone, cut, joined

__all__ = ["LABEL", "Canvas", "ends_line", "label"]

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character's dots: rows from the top, each with its left and right dot."""
_BRAILLE = 0x2800
LABEL = 7
"""Width of the numbers beside a field, in characters."""


class Canvas:
    """A field of ``width`` and ``height`` characters, from ``low`` to ``high`` across and from 0 to ``top`` upwards. What is drawn ``over``
    hides dots, dots hide what is ``put``, that hides rules, and those what is filled."""

    def __init__(self, width: int, height: int, low: float, high: float, top: float) -> None:
        self.width, self.height, self.low, self.high, self.top = width, height, low, high, top
        self._filled: dict[tuple[int, int], Span] = {}
        self._rules: dict[int, Span] = {}
        self._put: dict[tuple[int, int], Span] = {}
        self._dots: dict[tuple[int, int], tuple[int, Tone]] = {}
        self._over: dict[tuple[int, int], Span] = {}

    def column(self, x: float) -> int:
        """Return the column that an x is in; the first or last one for what lies beyond."""
        if self.high <= self.low:
            return 0
        return min(self.width - 1, max(0, int((x - self.low) / (self.high - self.low) * self.width)))

    def x(self, column: float) -> float:
        """Return the x in the middle of a column."""
        return self.low + (column + 0.5) / self.width * (self.high - self.low)

    def _row(self, value: float, steps: int) -> int:
        if self.top <= 0:
            return steps - 1
        return min(steps - 1, max(0, round((1 - value / self.top) * (steps - 1))))

    def put(self, column: int, value: float, symbol: str, tone: Tone) -> None:
        self._put[self._row(value, self.height), column] = Span(symbol, tone)

    def place(self, row: int, column: int, look: tuple[str, Tone]) -> None:
        """Put a symbol into a row and a column."""
        self._put[row, column] = Span(*look)

    def over(self, column: int, value: float, symbol: str, tone: Tone) -> None:
        self._over[self._row(value, self.height), column] = Span(symbol, tone)

    def fill(self, column: int, lower: float, upper: float) -> None:
        for row in range(self._row(upper, self.height), self._row(lower, self.height) + 1):
            self._filled[row, column] = Span("░", "dim")

    def rule(self, column: int, symbol: str, tone: Tone) -> None:
        self._rules[column] = Span(symbol, tone)

    def dot(self, x: int, value: float, tone: Tone, before: float | None = None) -> None:
        """Draw a dot at one of the two places that each column has; with the dots between it and the one before."""
        y = self._row(value, self.height * 4)
        other = y if before is None else self._row(before, self.height * 4)
        for at in range(min(y, other), max(y, other) + 1):
            bits, _ = self._dots.get((at // 4, x // 2), (0, tone))
            self._dots[at // 4, x // 2] = bits | _DOTS[at % 4][x % 2], tone

    def labels(self, written: Callable[[float], str], *values: float) -> dict[int, str]:
        """Return what stands beside the rows of some values. Of several in a row the first does."""
        found: dict[int, str] = {}
        for value in values:
            found.setdefault(self._row(value, self.height), label(written(value)))
        return found

    def lines(self, labels: Mapping[int, str]) -> list[Line]:
        """Return the field's lines, with what stands beside some of its rows."""
        return [
            joined(
                [
                    Span(labels.get(row, "").rjust(LABEL) + ("┤" if row in labels else "│"), "dim"),
                    *(self._cell(row, column) for column in range(self.width)),
                ]
            )
            for row in range(self.height)
        ]

    def _cell(self, row: int, column: int) -> Span:
        at = row, column
        if (over := self._over.get(at)) is not None:
            return over
        if (dots := self._dots.get(at)) is not None:
            return Span(chr(_BRAILLE + dots[0]), dots[1])
        return self._put.get(at) or self._rules.get(column) or self._filled.get(at) or Span(" ")


def label(text: str) -> str:
    """Write a number beside a field: where it is too long without the space before its unit."""
    return cut(text if len(text) <= LABEL else text.replace(" ", ""), LABEL)


def ends_line(ends: tuple[str, str], plot: int, between: Line = ()) -> Line:
    """Write what is at the ends of an axis; ``between`` them, where there is room, what symbols mean."""
    left, right = ends
    words = sum(len(span.text) for span in between)
    room = plot - len(left) - len(right) - words
    if not between or room < 2:
        gap = plot - len(left) - len(right)
        return (Span(" " * (LABEL + 1) + left + " " * max(1, gap) + right, "dim"),)
    before = room // 2
    return (
        Span(" " * (LABEL + 1) + left + " " * before, "dim"),
        *between,
        Span(" " * (room - before) + right, "dim"),
    )
