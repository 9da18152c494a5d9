"""The screen of one decision as text: what was decided and why, all plans as points of cost and throughput and why each lost; and what it
rests on: what was known, nodes beside each other, memory as it was foreseen, the model against what was measured."""

from __future__ import annotations

from dlrover_lite.brain.explain import explanation_text
from dlrover_lite.brain.explain.explanation_data import Explained, MemoryCurve, ModelShown, WeighedPlan
from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import compact, duration
from dlrover_lite.tui.model import Explanation
from dlrover_lite.tui.pages.charts import Point, scatter
from dlrover_lite.tui.pages.memory_chart import memory_chart
from dlrover_lite.tui.table import Column, Table
from dlrover_lite.tui.text import Line, Span, Tone, clean, line, wrapped

__all__ = ["lines_of"]

_SYMBOLS: dict[str, tuple[str, Tone]] = {"*": ("◉", "good"), "=": ("=", "warn"), "": ("·", "plain")}
_NAMES = {"*": "chosen", "=": "until then"}
_POINTS: dict[bool, tuple[str, Tone]] = {True: ("●", "good"), False: ("○", "warn")}
"""Symbol and tone of an interval, by whether it is within the model's band."""
_HEIGHT = 14
_WIDEST, _WIDEST_FIT = 110, 72
_MEMORY_HEIGHT = 11
_NAME = 12
"""Width of what is before a fact, in characters."""


def lines_of(one: Explanation, width: int) -> list[Line]:
    """Write all of an explanation, to be scrolled through."""
    shown = one.rests_on
    blocks: list[list[Line]] = [[part for paragraph in one.text for part in wrapped(paragraph, width)]]
    memory = [_memory(curve, width) for curve in shown.memory]
    if shown.cause:
        blocks += [_peers(shown, width), *memory]
    if one.plans:
        blocks += [_front(one, width), _plans(one, width)]
    blocks += [_facts(shown, width), _like(shown, width)]
    if shown.model is not None:
        blocks += _model(shown.model, width)
    if not shown.cause:
        blocks += memory
    blocks.append([part for text in shown.missing for part in wrapped(text, width, "warn")])
    found: list[Line] = []
    for block in blocks:
        if block:
            found += [(), *block] if found else block
    return found


# --- all plans ------------------------------------------------------------------------------------------------------


def _front(one: Explanation, width: int) -> list[Line]:
    """Draw the plans as points, with the chosen one, the present one, and the cores that there were for the job; the least important are
    drawn first."""
    ordered = sorted(one.plans, key=lambda plan: ("", "=", "*").index(plan.mark))
    points = [Point(plan.cores, plan.rate, *_SYMBOLS[plan.mark], _named(plan)) for plan in ordered]
    head = line(
        ("samples/s by cores  ", "title"),
        ("◉", "good"),
        " chosen  ",
        ("=", "warn"),
        " until then  · others that none beats",
    )
    room = one.rests_on.room_cores
    rule = None if room is None or room <= 0 else (room, f"{room:g} cores were left")
    return [head, *scatter(points, min(width, _WIDEST), _HEIGHT, rule=rule)]


def _named(plan: WeighedPlan) -> str:
    if not plan.mark:
        return ""
    return f"{_NAMES[plan.mark]}: {plan.workers} x {plan.worker_cores:g}, {plan.servers} x {plan.ps_cores:g}"


def _plan(plan: WeighedPlan, _width: int) -> Line:
    symbol, tone = _SYMBOLS[plan.mark]
    text = f"{plan.workers} x {plan.worker_cores:g}, {plan.servers} x {plan.ps_cores:g}"
    return line((f"{symbol} ", tone), text)


_COLUMNS: tuple[Column[WeighedPlan], ...] = (
    Column("plan", "WORKERS, PS", _plan, least=20, wanted=22),
    Column("cores", "CORES", lambda plan, _: line(f"{plan.cores:g}"), least=6, right=True, rank=3),
    Column("memory", "MEMORY", lambda plan, _: line(format_bytes(plan.memory)), least=9, right=True, rank=4),
    Column("rate", "SAMPLES/S", lambda plan, _: line(compact(plan.rate)), least=9, right=True),
    Column(
        "band",
        "80% BAND",
        lambda plan, _: line((f"{compact(plan.lower)} to {compact(plan.upper)}", "dim")),
        least=18,
        rank=5,
    ),
    Column("seconds", "TO GO", lambda plan, _: line(duration(plan.seconds)), least=11, right=True, rank=2),
    Column("verdict", "WHY", lambda plan, _: line(plan.verdict), least=36, wanted=60, most=120, rank=1),
)


def _plans(one: Explanation, width: int) -> list[Line]:
    table: Table[WeighedPlan] = Table(_COLUMNS, lambda plan: plan.verdict)
    table.put({str(at): plan for at, plan in enumerate(one.plans)})
    return table.text(width)


# --- what it rests on -----------------------------------------------------------------------------------------------


def _facts(shown: Explained, width: int) -> list[Line]:
    if not shown.facts:
        return []
    found = [line(("What was known", "title"))]
    for fact in shown.facts:
        for at, part in enumerate(wrapped(clean(fact.text), max(20, width - _NAME))):
            found.append((Span(("" if at else fact.name).ljust(_NAME - 1) + " ", "dim"), *part))
    return found


def _like(shown: Explained, width: int) -> list[Line]:
    if not shown.like:
        return []
    head = line(("Past jobs that it was made from", "title"), ("  distance 0: the same, 1: nothing alike", "dim"))
    return [head, *_rows(explanation_text.likes(shown.like), width)]


def _peers(shown: Explained, width: int) -> list[Line]:
    if not shown.peers:
        return []
    head = line((explanation_text.peers_title(shown), "title"), ("  *", "warn"), " the one that it is about")
    return [head, *_rows(explanation_text.peers(shown), width)]


def _memory(curve: MemoryCurve, width: int) -> list[Line]:
    """Write memory in words, and as a curve."""
    head = [line(("Memory, as it was foreseen", "title")), *wrapped(explanation_text.memory(curve), width)]
    return [*head, *memory_chart(curve, min(width, _WIDEST), _MEMORY_HEIGHT)]


def _model(one: ModelShown, width: int) -> list[list[Line]]:
    """Write the model against what was measured; what limits the plan; and what it is made of."""
    blocks: list[list[Line]] = []
    if one.points:
        head = line(("samples/s by the model (up) and as measured (across)", "title"))
        legend = line(("●", "good"), " within the model's band  ", ("○", "warn"), " not  · where both are the same")
        points = [
            Point(point.measured, point.predicted, *_POINTS[point.inside])
            for point in sorted(one.points, key=lambda point: not point.inside)
        ]
        blocks.append([head, legend, *scatter(points, min(width, _WIDEST_FIT), _HEIGHT, diagonal=True)])
        blocks.append(_rows(explanation_text.measured(one), width))
    about = [part for text in (*explanation_text.model(one), f"{one.formula}.") for part in wrapped(text, width)]
    blocks.append([line(("The model", "title")), *about])
    if one.limits:
        blocks.append([line((f"What limits {one.plan}", "title")), *_rows(explanation_text.limits(one), width)])
    if one.coefficients:
        blocks.append([line(("Its costs", "title")), *_rows(explanation_text.costs(one), width)])
    return blocks


_GIVES_WAY = {"80% BAND": 9, "INTERVALS": 8, "HELD BACK": 7, "CORES": 6}
"""Columns that are left out where there is no room, the highest first."""
_LEAST_TEXT = 16


def _rows(rows: explanation_text.Rows, width: int) -> list[Line]:
    """Write a table that fits; its last column is cut where it is text."""

    def column(at: int) -> Column[tuple[str, ...]]:
        wide = max(len(row[at]) for row in (rows.head, *rows.rows))
        is_text = at in rows.left and at == len(rows.head) - 1
        return Column(
            str(at),
            rows.head[at],
            lambda row, _: line(clean(row[at])),
            least=min(wide, _LEAST_TEXT) if is_text else wide,
            wanted=wide,
            right=at not in rows.left,
            rank=_GIVES_WAY.get(rows.head[at], 0),
        )

    table: Table[tuple[str, ...]] = Table([column(at) for at in range(len(rows.head))], " ".join)
    table.put({str(at): row for at, row in enumerate(rows.rows)})
    return table.text(width)
