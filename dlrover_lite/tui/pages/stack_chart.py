"""What jobs have had over time, one upon the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dlrover_lite.tui.pages.canvas import LABEL, Canvas, ends_line
from dlrover_lite.tui.pages.charts import round_up
from dlrover_lite.tui.text import Line, Span, Tone, line

__all__ = ["Layer", "Look", "key_of", "look_of", "stack_chart"]

_HALF_FROM = 6
"""Number of rows from which on half of what is at the top is written, too."""
_SHADES = "█▓▒░"
_TONES: tuple[Tone, ...] = ("good", "accent", "warn")


class Look(NamedTuple):
    """How a layer is drawn."""

    symbol: str
    tone: Tone


class Layer(NamedTuple):
    """What one job had."""

    name: str
    look: Look
    steps: tuple[tuple[float, float], ...]
    """Times and values, each of which holds until the next."""
    until: float
    """Time from which on it has nothing any more."""

    def at(self, time: float) -> float:
        known = bisect_right(self.steps, time, key=lambda step: step[0])
        return self.steps[known - 1][1] if known and time < self.until else 0.0


def look_of(number: int) -> Look:
    """Return the look of the layer of this number: neighbours differ in shade and colour."""
    return Look(_SHADES[number % len(_SHADES)], _TONES[number % len(_TONES)])


def stack_chart(
    layers: Sequence[Layer],
    width: int,
    height: int,
    *,
    span: tuple[float, float],
    ends: tuple[str, str],
    most: float | None,
    written: Callable[[float], str],
) -> list[Line]:
    """Draw ``height`` lines: the layers upon each other, the first at the bottom, each with its name where there is room. ``span`` and
    ``ends``: of the axis. ``most``: what there is, drawn as a line; None: not known. ``written``: how a value is written."""
    plot, rows = width - LABEL - 1, height - 2
    if plot < 8 or rows < 2:
        return []
    low, high = span
    values = [[layer.at(low + (column + 0.5) / plot * (high - low)) for layer in layers] for column in range(plot)]
    highest = max((sum(column) for column in values), default=0.0)
    top = max(highest, most) if most is not None else round_up(highest)
    canvas = Canvas(plot, rows, low, high, top)
    places: dict[int, dict[int, list[int]]] = {}
    """Columns by layer and row."""
    for column, its in enumerate(values):
        for row, at in _cells(its, rows, top):
            canvas.place(row, column, layers[at].look)
            places.setdefault(at, {}).setdefault(row, []).append(column)
    if most is not None and most < top:
        for column in range(plot):
            canvas.put(column, most, "─", "bad")
    for at, by_row in places.items():
        _name(canvas, layers[at].name, by_row)
    between = (most,) if most is not None and most < top else (top / 2,) if rows >= _HALF_FROM else ()
    labels = canvas.labels(lambda value: written(value) if value else "0", top, 0.0, *between)
    axis = line((" " * LABEL + "└" + "─" * plot, "dim"))
    return [*canvas.lines(labels), axis, ends_line(ends, plot)]


def _cells(values: Sequence[float], rows: int, top: float) -> list[tuple[int, int]]:
    """Return which layer is in which row of a column. One that has anything has a row at least, while there are rows."""
    if top <= 0:
        return []
    found: list[tuple[int, int]] = []
    height, filled = 0.0, 0
    for at, value in enumerate(values):
        if value <= 0:
            continue
        height += value / top * rows
        stop = min(rows, max(round(height), filled + 1))
        found += [(rows - 1 - row, at) for row in range(filled, stop)]
        filled = max(filled, stop)
    return found


def _name(canvas: Canvas, name: str, by_row: dict[int, list[int]]) -> None:
    """Write a layer's name into the longest of its runs, if it is long enough."""
    runs = [(len(run), -row, run[0]) for row, columns in by_row.items() for run in _runs(columns)]
    length, row, start = max(runs)
    if length >= len(name) + 4:
        for at, letter in enumerate(f" {name} "):
            canvas.place(-row, start + (length - len(name) - 2) // 2 + at, Look(letter, "title"))


def _runs(columns: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for column in columns:
        if found and found[-1][-1] == column - 1:
            found[-1].append(column)
        else:
            found.append([column])
    return found


def key_of(look: Look) -> Span:
    """Show a look beside a name."""
    return Span(look.symbol * 2, look.tone)
