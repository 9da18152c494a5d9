"""One job in a screenful, however small: the headline, how fast it is, what there is to say, and its nodes."""

from __future__ import annotations

from dlrover_lite.core.words import compact, plural
from dlrover_lite.tui.model import JobDetail
from dlrover_lite.tui.pages import job_page, throughput_chart
from dlrover_lite.tui.pages.charts import sparkline
from dlrover_lite.tui.text import EMPTY, Line, Span, line, padded

__all__ = ["screenful"]

_LEAST_CURVE, _MOST_CURVE = 7, 14
"""Minimum and maximum number of lines of a curve; in less room there is a sparkline."""
_LEAST_FACTS, _FACTS = 3, 5
_LEAST_NODES = 3
"""Minimum number of lines for nodes, with the heading."""


def screenful(
    detail: JobDetail, width: int, height: int, now: float, *, stale: Line = EMPTY, last: Line = EMPTY
) -> list[Line]:
    """Write at most ``height`` lines of ``width``; ``last`` is the last one, and ``stale`` comes after the headline."""
    head = [*job_page.headline(detail, width), *([stale] if stale else [])]
    room = max(0, height - len(head) - bool(last))
    nodes = _nodes(detail, width, max(_LEAST_NODES, room - 1 - _LEAST_FACTS))
    left = max(0, room - len(nodes))
    spare = left - _FACTS
    room_for_curve = spare >= _LEAST_CURVE
    above = (
        throughput_chart.chart(detail, width, min(spare, _MOST_CURVE)) if room_for_curve else [_trend(detail, width)]
    )
    facts = job_page.facts(detail, width, max(0, left - len(above)), now)
    lines = [*head, *[*above, *facts, *nodes][:room]]
    return [padded(one, width) for one in [*lines, *([last] if last else [])]]


def _trend(detail: JobDetail, width: int) -> Line:
    rates = [rate.value for rate in detail.rates] or list(detail.row.rates)
    name = Span("samples/s ", "title")
    if not rates:
        return line(name, ("nothing is measured yet", "dim"))
    newest = f" {compact(rates[-1])}"
    room = max(1, width - len(name.text) - len(newest))
    return line(name, (sparkline(rates, min(len(rates), room)), "good"), newest)


def _nodes(detail: JobDetail, width: int, most: int) -> list[Line]:
    """Write the nodes that run; of too many, the last line says how many more there are."""
    alive = [row for row in detail.nodes if row.alive] or list(detail.nodes)
    if not alive:
        return []
    shown = alive if len(alive) < most else alive[: most - 2]
    table = job_page.nodes_table()
    table.put({row.id: row for row in shown})
    more = len(alive) - len(shown)
    return [*table.text(width), *([line((f"  and {plural(more, 'node')} more", "dim"))] if more else [])]
