"""Numbers as characters: sparklines, bars, a curve in braille dots with marks on its axis, a strip of shades.

All of it is text of a given size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dlrover_lite.core.words import compact
from dlrover_lite.tui.pages.canvas import LABEL, Canvas, ends_line
from dlrover_lite.tui.text import EMPTY, Line, Span, Tone, joined, line

__all__ = [
    "Band",
    "Mark",
    "Measured",
    "Point",
    "bar",
    "curve",
    "round_up",
    "scatter",
    "sparkline",
    "strip",
]

_BLOCKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = "▏▎▍▌▋▊▉█"
_LEAST_SPAN = 1e-9
"""Smallest span of x that is spread over columns; below it all is in one column."""
_HALF_FROM = 5
"""Number of rows from which on half of what an axis has at its top is written, too."""
_MOST_ABOVE = 1.5
"""The most that an axis goes beyond what was measured and foreseen, as a factor: a band may end anywhere."""


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the newest values, one character each, from 0 to their largest; to the right, with spaces before."""
    newest = [max(0.0, value) if math.isfinite(value) else 0.0 for value in values[-width:]] if width > 0 else []
    top = max(newest, default=0.0)
    if top <= 0:
        return ("▁" * len(newest)).rjust(width)
    return "".join(_BLOCKS[min(7, int(value / top * 7.999))] for value in newest).rjust(width)


def bar(used: float, limit: float, width: int, *, full: float = 0.95, high: float = 0.8) -> Line:
    """Draw ``used`` of ``limit`` in eighths of characters, between marks: ``▕███▌  ▏``. What is beyond the limit is full. The tone repeats
    what a number beside it is to say."""
    inside = width - 2
    if inside < 1:
        return EMPTY
    share = used / limit if limit > 0 and math.isfinite(used) else 0.0
    tone: Tone = "bad" if share >= full else "warn" if share >= high else "good"
    eighths = round(max(0.0, min(1.0, share)) * inside * 8)
    if eighths == 0 and used > 0:
        eighths = 1
    filled = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")
    return line(("▕", "dim"), (filled.ljust(inside), tone), ("▏", "dim"))


class Mark(NamedTuple):
    """A mark on the axis of a curve."""

    x: float
    symbol: str
    """Symbol of the mark, one character."""
    tone: Tone = "accent"
    chosen: bool = False
    """Whether the mark is the one that is looked at."""


class Measured(NamedTuple):
    """A value that holds from ``start`` to ``stop``."""

    start: float
    stop: float
    value: float


class Band(NamedTuple):
    """What was foreseen from ``start`` to ``stop``: the value, and the ends of its band."""

    start: float
    stop: float
    value: float
    lower: float
    upper: float


def curve(
    intervals: Sequence[Measured],
    width: int,
    height: int,
    *,
    marks: Sequence[Mark] = (),
    span: tuple[float, float] | None = None,
    ends: tuple[str, str] = ("", ""),
    means: Sequence[Measured] = (),
    band: Band | None = None,
    legend: Line = (),
) -> list[Line]:
    """Draw ``height`` lines: each value from where it begins to where it ends, and nothing where none was measured; a line of marks under
    the curve, and one with the ``ends`` of the axis (what is at its left, at its right), between which is the ``legend``. Marks stand in
    the curve as lines from top to bottom. ``span``: of x; else that of the intervals. ``means`` are drawn over the curve, the ``band``
    behind it.

    >>> curve([Measured(0, 5, 1), Measured(7, 10, 4)], 40, 5, ends=("12:00", "12:10"))  # doctest: +SKIP
    """
    plot, rows = width - LABEL - 1, height - 2
    if plot < 4 or rows < 1:
        return []
    low, high = span or ((intervals[0].start, intervals[-1].stop) if intervals else (0.0, 1.0))
    scale = plot * 2 / (high - low) if high - low > _LEAST_SPAN else 0.0
    highest = max((one.value for one in intervals), default=0.0)
    top = round_up(highest if band is None else max(highest, min(band.upper, _MOST_ABOVE * max(highest, band.value))))
    canvas = Canvas(plot, rows, low, high if scale else low, top)
    if band is not None:
        _draw_band(canvas, band)
    for mark in marks:
        if low <= mark.x <= high:
            canvas.rule(canvas.column(mark.x), "┃" if mark.chosen else "╎", "accent" if mark.chosen else "dim")
    before: float | None = None
    for x, value in enumerate(_columns(intervals, low, scale, plot * 2)):
        if value is not None:
            canvas.dot(x, value, "good", before)
        before = value
    for mean in means:
        for column in range(canvas.column(mean.start) + 1, canvas.column(mean.stop), 2):
            canvas.over(column, mean.value, "━", "accent")
    between = (top / 2,) if rows >= _HALF_FROM else ()
    return [
        *canvas.lines(canvas.labels(_written, top, 0.0, *between)),
        _axis(marks, canvas),
        ends_line(ends, plot, legend),
    ]


def _written(value: float) -> str:
    return compact(value) if value else "0"


def _draw_band(canvas: Canvas, band: Band) -> None:
    for column in range(canvas.column(band.start) + 1, canvas.column(band.stop) + 1):
        canvas.fill(column, band.lower, band.upper)
        canvas.put(column, band.value, "┄", "plain")


def _columns(intervals: Sequence[Measured], low: float, scale: float, columns: int) -> list[float | None]:
    """Return the value in each column: the mean of what was measured there, by how much of the column it holds for. None where nothing
    was measured. An interval is in one column at least."""
    sums, weights = [0.0] * columns, [0.0] * columns
    for one in intervals:
        start, stop = (one.start - low) * scale, (one.stop - low) * scale
        if start > columns or (stop <= 0 and start < 0):
            continue
        first = min(columns - 1, max(0, math.floor(start)))
        last = min(columns - 1, max(first, math.ceil(stop) - 1))
        for at in range(first, last + 1):
            weight = max(min(stop, at + 1) - max(start, at), 1e-9)
            sums[at] += weight * one.value
            weights[at] += weight
    return [total / weight if weight else None for total, weight in zip(sums, weights, strict=True)]


def round_up(value: float) -> float:
    """Round up to the next 1, 1.5, 2, 3, 4, 5, 6 or 8 of its power of ten."""
    if value <= 0 or not math.isfinite(value):
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8) if step * power >= value * 0.9999), 10 * power)


def _axis(marks: Sequence[Mark], canvas: Canvas) -> Line:
    cells = [Span("─", "dim")] * canvas.width
    for mark in sorted(marks, key=lambda mark: mark.chosen):
        if canvas.low <= mark.x <= canvas.high:
            cells[canvas.column(mark.x)] = Span(mark.symbol, mark.tone)
    return joined([Span(" " * LABEL + "└", "dim"), *cells])


_SHADES = " ░▒▓█"
_MEDIUM, _MUCH = 0.6, 0.85
"""Shares of the time at work from which on what is hot is worth a look, and is in short supply."""


def strip(values: Sequence[float], width: int, *, top: float | None = None, busy: float = 1.0) -> Line:
    """Draw many values as shades, the largest of those that share a character; ``top`` is full (else their largest). What is above 0 is
    never blank. ``busy``: share of its time that whatever has them is at work: while there is much of it left, no shade is alarming."""
    if not values or width < 1:
        return EMPTY
    width = min(width, len(values))
    most = top if top is not None else max(values)
    spans: list[Span] = []
    for at in range(width):
        part = values[at * len(values) // width : max((at + 1) * len(values) // width, at * len(values) // width + 1)]
        share = max(part) / most if most > 0 else 0.0
        shade = _SHADES[min(4, math.ceil(share * 4))] if share > 0 else "·"
        alarm = share if busy > _MUCH else min(share, 0.75) if busy > _MEDIUM else 0.0
        tone: Tone = "bad" if alarm > 0.75 else "warn" if alarm > 0.5 else "good" if share > 0 else "dim"
        spans.append(Span(shade, tone))
    return joined(spans)


class Point(NamedTuple):
    """A point of a scatter plot."""

    x: float
    y: float
    symbol: str
    """Symbol of the point, one character."""
    tone: Tone = "plain"
    name: str = ""
    """What is written beside the point, where there is room."""


def scatter(
    points: Sequence[Point],
    width: int,
    height: int,
    *,
    diagonal: bool = False,
    rule: tuple[float, str] | None = None,
) -> list[Line]:
    """Draw ``height`` lines: from 0 to the largest of each axis, with ticks; with ``diagonal`` both have the same scale, and where x is y
    there are dots. ``rule``: an x with a line from top to bottom, and what is written beside it. Of points in the same place the last one
    is seen, and names hide no point."""
    plot, rows = width - LABEL - 1, height - 2
    if plot < 4 or rows < 2:
        return []
    right = round_up(max([point.x for point in points] + ([rule[0]] if rule else []), default=0.0)) or 1.0
    top = round_up(max((point.y for point in points), default=0.0)) or 1.0
    if diagonal:
        right = top = max(right, top)
        points = [*(Point(right * at / (plot - 1), right * at / (plot - 1), "·", "dim") for at in range(plot)), *points]
    field = _Field(plot, rows, right, top)
    if rule is not None:
        field.rule(*rule)
    for point in points:
        field.put(point)
    for point in reversed(points):
        field.name(point)
    labels = {0: _written(top), rows - 1: "0"}
    if rows >= _HALF_FROM:
        labels[round((rows - 1) / 2)] = _written(top / 2)
    found = []
    for row in range(rows):
        head = Span(labels.get(row, "").rjust(LABEL) + ("┤" if row in labels else "│"), "dim")
        found.append((head, *field.row(row)))
    return [*found, *_ticks(right, plot)]


class _Field:
    """Places of points, by row and column of characters."""

    def __init__(self, width: int, height: int, right: float, top: float) -> None:
        self._width, self._height, self._right, self._top = width, height, right, top
        self._cells: dict[tuple[int, int], Span] = {}
        self._rule = -1
        """Column of the line from top to bottom; -1: there is none."""

    def _place(self, x: float, y: float) -> tuple[int, int]:
        column = min(self._width - 1, max(0, round(x / self._right * (self._width - 1))))
        return min(self._height - 1, max(0, round((1 - y / self._top) * (self._height - 1)))), column

    def rule(self, x: float, name: str) -> None:
        self._rule = self._place(x, 0.0)[1]
        self._write(self._height - 1, self._rule, name, "warn")

    def put(self, point: Point) -> None:
        self._cells[self._place(point.x, point.y)] = Span(point.symbol, point.tone)

    def name(self, point: Point) -> None:
        """Write the name of a point beside it; where there is no room for all of it, what comes before a colon."""
        if point.name:
            place = self._place(point.x, point.y)
            _ = self._write(*place, point.name, point.tone) or self._write(
                *place, point.name.partition(":")[0], point.tone
            )

    def _write(self, row: int, column: int, text: str, tone: Tone) -> bool:
        """Write beside a place, to its right or else to its left, where nothing is there so far."""
        for start in (column + 2, column - 1 - len(text)):
            there = [(row, start + at) for at in range(len(text))]
            if start >= 0 and start + len(text) <= self._width and not any(at in self._cells for at in there):
                self._cells.update((at, Span(letter, tone)) for at, letter in zip(there, text, strict=True))
                return True
        return False

    def row(self, row: int) -> Line:
        """Return a row's characters: points and names before the line."""
        line_there = {self._rule: Span("╎", "warn")}
        return tuple(
            self._cells.get((row, column)) or line_there.get(column) or Span(" ") for column in range(self._width)
        )


_TICK_WIDTH = 12
"""Least number of characters from one tick to the next."""


def _ticks(right: float, plot: int) -> list[Line]:
    """Draw an axis from 0 with ticks at round values, and write those below it."""
    step = round_up(right / max(1, plot // _TICK_WIDTH))
    axis, below = ["─"] * plot, [" "] * (plot + LABEL + 1)
    for tick in range(int(right / step + 1e-9) + 1):
        column = min(plot - 1, round(tick * step / right * (plot - 1)))
        text = f"{tick * step:g}" if right < 1000 else compact(tick * step) if tick else "0"
        start = max(0, min(plot - len(text), column - len(text) // 2)) + LABEL + 1
        axis[column] = "┴"
        below[start : start + len(text)] = text
    return [
        line((" " * LABEL + "└" + "".join(axis), "dim")),
        line(("".join(below[: plot + LABEL + 1]).rstrip(), "dim")),
    ]
