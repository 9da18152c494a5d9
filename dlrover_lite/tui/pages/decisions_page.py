"""The screen of a job's decisions as text: the story line, a decision in each line."""

from __future__ import annotations

from dlrover_lite.core.words import at_time, compact, short_duration
from dlrover_lite.protocol.news import Chosen
from dlrover_lite.tui import formats
from dlrover_lite.tui.model import JobDetail
from dlrover_lite.tui.pages.job_page import mark_of, tone_of_miss
from dlrover_lite.tui.table import Column, Order, Table, numbers
from dlrover_lite.tui.text import Line, Span, line, wrapped

__all__ = ["decisions_table", "describe", "headline"]

_STAGES = {"initial": "1 start", "scale": "2 scale", "heal": "3 health"}


def decisions_table() -> Table[Chosen]:
    """Make the table of decisions, the newest first."""
    return Table(
        _COLUMNS, lambda one: f"{one.number} {one.stage} {one.action} {one.reason} {one.done}", order=Order("number")
    )


def stage(one: Chosen) -> str:
    """Name the stage that a decision was made in, one of the three that the brain has."""
    return _STAGES.get(one.stage, one.stage)


def _action(one: Chosen, _width: int) -> Line:
    symbol, tone = mark_of(one)
    return line((f"{symbol} ", tone), one.action)


def _change(one: Chosen, width: int) -> Line:
    """Write a decision's change as from → to; where that is too long, to."""
    if not one.choice:
        return formats.DASH
    if one.action == "heal" or not one.before or one.before == one.choice:
        return line(one.choice)
    whole = line((one.before, "dim"), " → ", one.choice)
    return whole if len(one.before) + 3 + len(one.choice) <= width else line("→ ", one.choice)


def _predicted(one: Chosen, _width: int) -> Line:
    """Write the seconds that a decision was to save."""
    if one.gain_seconds is None:
        return formats.DASH
    sign = "-" if one.gain_seconds < 0 else "+"
    return line(f"{sign}{short_duration(abs(one.gain_seconds))}")


def _came(one: Chosen, _width: int) -> Line:
    """Write measured against predicted throughput."""
    if one.error is not None:
        return line((f"{one.error:+.0%}", tone_of_miss(one.error)))
    if one.done and one.done != "done":
        return line((one.done, "warn"))
    return formats.DASH


_COLUMNS: tuple[Column[Chosen], ...] = (
    numbers("number", "NO", lambda one, _: line(str(one.number)), lambda one: one.number, least=3, wanted=4),
    Column("at", "AT", lambda one, _: line(formats.clock(one.at, seconds=True)), lambda one: one.at, least=8, rank=2),
    Column("stage", "STAGE", lambda one, _: line(stage(one)), lambda one: one.stage, least=8, rank=3),
    Column("action", "ACTION", _action, lambda one: one.action, least=9),
    numbers("saves", "SAVES", _predicted, lambda one: one.gain_seconds, least=6, rank=4),
    numbers("came", "CAME", _came, lambda one: None if one.error is None else abs(one.error), least=6, rank=1),
    Column("change", "FROM → TO", _change, None, least=20, wanted=26, most=64, rank=5),
    Column("reason", "REASON", lambda one, _: line(one.reason), None, least=20, most=400, rank=6),
)


def headline(detail: JobDetail, shown: int, filter_text: str) -> Line:
    acting = sum(one.action not in ("stay", "queue", "refuse") for one in detail.decisions)
    parts = [
        Span("Decisions ", "title"),
        Span(f"for {detail.row.id}: {len(detail.decisions)}, of which {acting} changed something"),
    ]
    if filter_text:
        parts += [Span("  filter ", "dim"), Span(filter_text, "accent"), Span(f" ({shown})", "dim")]
    return tuple(parts)


def describe(one: Chosen, width: int) -> list[Line]:
    """Write all that the list knows of a decision."""
    found = [
        line(("stage      ", "dim"), stage(one)),
        line(("at         ", "dim"), at_time(one.at)),
        line(("action     ", "dim"), *_action(one, 0)),
        line(("from       ", "dim"), one.before or "-"),
        line(("to         ", "dim"), one.choice or "-"),
    ]
    if one.predicted is not None:
        band = f" (80% band {compact(one.lower or 0.0)} to {compact(one.upper or 0.0)})"
        found.append(line(("foreseen   ", "dim"), f"{compact(one.predicted)} samples/s", (band, "dim")))
    if one.gain_seconds is not None:
        found.append(line(("saves      ", "dim"), *_predicted(one, 0), (" against staying", "dim")))
    if one.measured is not None and one.error is not None:
        found.append(line(("came       ", "dim"), f"{compact(one.measured)} samples/s, ", *_came(one, 0)))
    if one.done:
        found.append(line(("became     ", "dim"), one.done + (f": {one.why}" if one.why else "")))
    return [*found, (), line(("Why", "title")), *wrapped(one.reason, width)]
