"""The screen of one decision as text: what was decided and why, all plans as points of cost and throughput, and why each lost."""

from __future__ import annotations

from dlrover_lite.tui.charts import Point, scatter
from dlrover_lite.tui.model import Explanation, WeighedPlan
from dlrover_lite.tui.table import Column, Table
from dlrover_lite.tui.text import Line, Tone, line, wrapped
from dlrover_lite.units import format_bytes
from dlrover_lite.words import compact, duration

__all__ = ["lines_of"]

_SYMBOLS: dict[str, tuple[str, Tone]] = {"*": ("◉", "good"), "=": ("=", "warn"), "": ("·", "plain")}
_HEIGHT = 14


def lines_of(one: Explanation, width: int) -> list[Line]:
    """All of it, to be scrolled through."""
    found: list[Line] = []
    for paragraph in one.text:
        found += wrapped(paragraph, width)
    if not one.plans:
        return found
    return [*found, (), *_front(one, width), (), *_table(one, width)]


def _front(one: Explanation, width: int) -> list[Line]:
    """The least important are drawn first."""
    ordered = sorted(one.plans, key=lambda plan: ("", "=", "*").index(plan.mark))
    points = [Point(plan.cores, plan.rate, *_SYMBOLS[plan.mark]) for plan in ordered]
    head = line(
        ("samples/s by cores  ", "title"),
        ("◉", "good"),
        " chosen  ",
        ("=", "warn"),
        " until then  · others that none beats",
    )
    return [head, *scatter(points, min(width, 110), _HEIGHT)]


def _plan(plan: WeighedPlan, _width: int) -> Line:
    symbol, tone = _SYMBOLS[plan.mark]
    text = f"{plan.workers} x {plan.worker_cores:g}, {plan.servers} x {plan.ps_cores:g}"
    return line((f"{symbol} ", tone), text)


_COLUMNS: tuple[Column[WeighedPlan], ...] = (
    Column("plan", "WORKERS, PS", _plan, least=20, wanted=22),
    Column("cores", "CORES", lambda plan, _: line(f"{plan.cores:g}"), least=6, wanted=6, right=True, rank=3),
    Column("memory", "MEMORY", lambda plan, _: line(format_bytes(plan.memory)), least=9, wanted=9, right=True, rank=4),
    Column("rate", "SAMPLES/S", lambda plan, _: line(compact(plan.rate)), least=9, wanted=9, right=True),
    Column(
        "band",
        "80% BAND",
        lambda plan, _: line((f"{compact(plan.lower)} to {compact(plan.upper)}", "dim")),
        least=18,
        wanted=18,
        rank=5,
    ),
    Column("seconds", "TO GO", lambda plan, _: line(duration(plan.seconds)), least=11, wanted=11, right=True, rank=2),
    Column("verdict", "WHY", lambda plan, _: line(plan.verdict), least=40, wanted=60, most=120, rank=1),
)


def _table(one: Explanation, width: int) -> list[Line]:
    table: Table[WeighedPlan] = Table(_COLUMNS, lambda plan: plan.verdict)
    table.put({str(at): plan for at, plan in enumerate(one.plans)})
    return table.text(width)
