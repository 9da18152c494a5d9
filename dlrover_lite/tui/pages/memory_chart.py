"""Memory of a parameter server over time: what it used, what is foreseen with its band, and its limits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from dlrover_lite.brain.explain.explanation_data import MemoryCurve, Used
from dlrover_lite.core.units import GIB, MIB, format_bytes
from dlrover_lite.tui import formats
from dlrover_lite.tui.pages.canvas import LABEL, Canvas, ends_line
from dlrover_lite.tui.pages.charts import round_up
from dlrover_lite.tui.text import Line, Span, line, padded

__all__ = ["is_near_its_limit", "memory_chart"]

_LEGEND: Line = line(
    ("⣀⠤⠒", "good"), " used  ", ("⠄ ⠄", "accent"), " foreseen  ", ("░", "dim"), " 80% band  ", ("─", "bad"), " limit"
)
_NEAR = 0.3
"""Share of its limit from which on it is worth a look what a server uses, or will."""
_HALF_FROM = 4
"""Number of rows from which on half of what is at the top is written, too."""
_MOST_ABOVE = 1.25
"""The most that the axis goes beyond the limit for a band, as a factor."""

Points = Sequence[tuple[float, float]]


def is_near_its_limit(curve: MemoryCurve) -> bool:
    """Say whether the chart shows more than that there is plenty: what is used or foreseen is near the present limit, or none is known."""
    expected = max((one.upper for one in curve.ahead), default=0)
    return not curve.limit or max(curve.now, expected) >= _NEAR * curve.limit


def memory_chart(curve: MemoryCurve, width: int, height: int) -> list[Line]:
    """Draw ``height`` lines: a legend, the chart, and its axis with the times at its ends; [] where nothing is known, or no room."""
    plot, rows = width - LABEL - 1, height - 3
    if plot < 8 or rows < 2 or not curve.used:
        return []
    low, high = _span_of(curve)
    top = _top(curve)
    chart = Canvas(plot, rows, low, max(high, low + 1.0), top)
    _draw(chart, curve)
    labels = chart.labels(_written, top, 0.0, *((top / 2,) if rows >= _HALF_FROM else ()))
    found = [padded((Span(" " * LABEL + " "), *_LEGEND, *_higher(curve, top)), width)]
    found += chart.lines(labels)
    now = chart.column(curve.used[-1].at)
    axis = "─" * now + "┴" + "─" * (plot - now - 1) if curve.ahead else "─" * plot
    return [*found, line((" " * LABEL + "└" + axis, "dim")), ends_line(formats.span(low, high), plot)]


def _span_of(curve: MemoryCurve) -> tuple[float, float]:
    """Return from when to when memory is known or foreseen, in seconds since the epoch."""
    last = curve.ahead[-1].at if curve.ahead else curve.used[-1].at
    return curve.used[0].at, max(last, curve.used[-1].at)


def _top(curve: MemoryCurve) -> float:
    """Return the memory at the top: as much as was used, is foreseen, and is the present limit. A limit of before may be higher."""
    most = float(max(curve.limit, *(one.bytes for one in curve.used)))
    if curve.ahead:
        most = max(most, *(one.expected for one in curve.ahead))
        most = max(most, min(_MOST_ABOVE * most, max(one.upper for one in curve.ahead)))
    unit = GIB if most >= GIB else MIB
    return (round_up(most * 1.02 / unit) or 1.0) * unit


def _higher(curve: MemoryCurve, top: float) -> Line:
    """Write of a limit that lies above the chart how much it was, and until when."""
    for one, following in reversed(list(pairwise(curve.limits))):
        if one.bytes > top:
            return line((f" ({format_bytes(one.bytes)} until {formats.clock(following.at)})", "dim"))
    return ()


def _written(size: float) -> str:
    return format_bytes(int(size)) if size else "0"


def _draw(chart: Canvas, curve: MemoryCurve) -> None:
    last = curve.used[-1]
    used = [(one.at, float(one.bytes)) for one in curve.used]
    ahead = [(one.at, float(one.expected)) for one in curve.ahead]
    lower = [(last.at, float(last.bytes)), *((one.at, float(one.lower)) for one in curve.ahead)]
    upper = [(last.at, float(last.bytes)), *((one.at, float(one.upper)) for one in curve.ahead)]
    for column in range(chart.width):
        at = chart.x(column)
        if at > last.at and curve.ahead:
            chart.fill(column, _between(lower, at), _between(upper, at))
    for column in range(chart.width):
        limit = _limit(curve.limits, chart.x(column))
        if limit is not None and limit <= chart.top:
            chart.put(column, limit, "─", "bad")
    before: float | None = None
    expected = [(last.at, float(last.bytes)), *ahead]
    for x in range(2 * chart.width):
        at = chart.x(x / 2 - 0.25)
        if used[0][0] <= at <= last.at:
            value = _between(used, at)
            chart.dot(x, value, "good", before)
            before = value
        elif at > last.at and ahead and x % 4 == 0:
            chart.dot(x, _between(expected, at), "accent")


def _between(points: Points, at: float) -> float:
    """Return the value on the line through the points; beyond the last one as there."""
    for (t0, v0), (t1, v1) in pairwise(points):
        if t0 <= at <= t1:
            return v0 if t1 == t0 else v0 + (v1 - v0) * (at - t0) / (t1 - t0)
    return points[-1][1] if at > points[-1][0] else points[0][1]


def _limit(limits: Sequence[Used], at: float) -> float | None:
    """Return the limit in bytes that held at a time; the first one is taken to have held before, too."""
    if not limits:
        return None
    known = bisect_right([one.at for one in limits], at)
    return float(limits[max(0, known - 1)].bytes)
