"""The screen of a job's decisions as text: the story line, a decision in each line."""

from __future__ import annotations

from typing import NamedTuple

from dlrover_lite.brain.store.decision_news import CHANGING
from dlrover_lite.core.words import at_time, compact, short_duration
from dlrover_lite.protocol.news import Chosen
from dlrover_lite.tui import formats
from dlrover_lite.tui.model import JobDetail
from dlrover_lite.tui.pages.last_change import cause_of, is_made, mark_of, told_in_full, tone_of_miss
from dlrover_lite.tui.table import Column, Order, Table, numbers
from dlrover_lite.tui.text import Line, Span, cut, line, wrapped

__all__ = ["Run", "decisions_table", "describe", "describe_run", "headline", "runs"]

_SAME = ("stay", "queue", "refuse", "tell")
"""Actions that change nothing."""
_STAGES = {"initial": "1 start", "scale": "2 scale", "heal": "3 health"}


class Run(NamedTuple):
    """A row: a decision, or several in a row that all left everything as it was."""

    newest: Chosen
    times: int = 1
    since: float = 0.0
    """Time of the oldest."""
    is_made: bool = True
    """Whether it was, or is being, carried out."""


def runs(detail: JobDetail, *, each: bool = False, only_changes: bool = False) -> dict[str, Run]:
    """Return the rows by id, the oldest first: decisions to change nothing that follow each other are one, unless ``each`` is asked for."""
    found: dict[str, Run] = {}
    name = ""
    for one in detail.decisions:
        if only_changes and one.action not in CHANGING:
            continue
        before = found.get(name)
        if not each and before is not None and one.action in _SAME and one.action == before.newest.action:
            found[name] = before._replace(newest=one, times=before.times + 1)
        else:
            name = str(one.number)
            found[name] = Run(one, 1, one.at, is_made(one, detail))
    return found


def decisions_table() -> Table[Run]:
    """Make the table of decisions, the newest first."""
    return Table(_COLUMNS, _found, order=Order("number"))


def _found(run: Run) -> str:
    one = run.newest
    return f"{one.number} {one.stage} {one.action} {one.difference} {one.cause} {one.reason} {one.done}"


def stage(one: Chosen) -> str:
    """Name the stage that a decision was made in, one of the three that the brain has."""
    return _STAGES.get(one.stage, one.stage)


def _what(run: Run, width: int) -> Line:
    """Write what was decided: a change in a few words, or the action, and how often in a row."""
    one = run.newest
    symbol, tone = mark_of(one, is_made=run.is_made)
    if run.times > 1:
        return line((f"{symbol} ", tone), (f"{one.action} x{run.times}", "dim"))
    if one.action not in CHANGING:
        return line((f"{symbol} ", tone), (one.action, "dim"))
    became = "" if run.is_made else f" ({one.done or 'suggested'})"
    text = one.difference or one.action
    room = width - 2 - len(became)
    return line((f"{symbol} ", tone), cut(text, room), (became, "warn"))


def _change(run: Run, width: int) -> Line:
    """Write a decision's change as from → to; where that is too long, to."""
    one = run.newest
    if not one.choice:
        return formats.DASH
    if one.action == "heal" or not one.before or one.before == one.choice:
        return line(one.choice)
    whole = line((one.before, "dim"), " → ", one.choice)
    return whole if len(one.before) + 3 + len(one.choice) <= width else line("→ ", one.choice)


def _predicted(run: Run, _width: int) -> Line:
    """Write the seconds that a decision was to save; one that changes nothing saves none."""
    gain = run.newest.gain_seconds
    if gain is None or run.newest.action in _SAME:
        return formats.DASH
    sign = "-" if gain < 0 else "+"
    return line(f"{sign}{short_duration(abs(gain))}")


def _came(run: Run, _width: int) -> Line:
    """Write measured against predicted throughput."""
    one = run.newest
    if one.error is not None:
        return line((f"{one.error:+.0%}", tone_of_miss(one.error)))
    if one.done and one.done != "done":
        return line((one.done, "warn"))
    return formats.DASH


def _why(run: Run, _width: int) -> Line:
    return line(cause_of(run.newest))


def _missed(run: Run) -> float | None:
    return None if run.newest.error is None else abs(run.newest.error)


_COLUMNS: tuple[Column[Run], ...] = (
    numbers(
        "number", "NO", lambda run, _: line(str(run.newest.number)), lambda run: run.newest.number, least=3, wanted=4
    ),
    Column(
        "at",
        "AT",
        lambda run, _: line(formats.clock(run.newest.at, seconds=True)),
        lambda run: run.newest.at,
        least=8,
        rank=1,
    ),
    Column("stage", "STAGE", lambda run, _: line(stage(run.newest)), lambda run: run.newest.stage, least=8, rank=4),
    Column("action", "WHAT", _what, lambda run: run.newest.action, least=18, wanted=28, most=44),
    numbers("saves", "SAVES", _predicted, lambda run: run.newest.gain_seconds, least=6, rank=3),
    numbers("came", "CAME", _came, _missed, least=6, wanted=10, rank=2),
    Column("reason", "WHY", _why, None, least=30, wanted=60, most=400),
    Column("change", "FROM → TO", _change, None, least=30, wanted=40, most=64, rank=5),
)


def headline(detail: JobDetail, shown: int, filter_text: str, *, which: str = "") -> Line:
    """Write how many decisions there are. ``which``: which of them are rows, in words."""
    acting = sum(one.action in CHANGING for one in detail.decisions)
    parts = [
        Span("Decisions ", "title"),
        Span(f"for {detail.row.id}: {len(detail.decisions)}, of which {acting} changed something"),
    ]
    if which:
        parts += [Span("  "), Span(which, "accent")]
    if filter_text:
        parts += [Span("  filter ", "dim"), Span(filter_text, "accent"), Span(f" ({shown})", "dim")]
    return tuple(parts)


def describe_run(run: Run, width: int) -> list[Line]:
    """Write all that the list knows of a row: why, first."""
    if run.times == 1:
        return describe(run.newest, width, is_made=run.is_made)
    one = run.newest
    ends = f"{formats.clock(run.since, seconds=True)} to {formats.clock(one.at, seconds=True)}"
    what = line((f"{mark_of(one)[0]} ", "dim"), (f"{one.action}, {run.times} times from {ends}", "title"))
    return [what, *wrapped(f"the last time: {one.reason}", width), (), *_facts(one)]


def describe(one: Chosen, width: int, *, is_made: bool = True) -> list[Line]:
    """Write all that the list knows of a decision: why, first."""
    waits = "" if is_made else one.done or "suggested, waits for accept or reject"
    return [*told_in_full(one, width, is_made=is_made, waits=waits), (), *_facts(one)]


def _facts(one: Chosen) -> list[Line]:
    found = [line(("decided    ", "dim"), f"{one.action}, {at_time(one.at)}, stage {stage(one)}")]
    if one.action == "heal":
        found.append(line(("node       ", "dim"), one.choice or "-"))
    else:
        found += [line(("from       ", "dim"), one.before or "-"), line(("to         ", "dim"), one.choice or "-")]
    if one.predicted is not None:
        before = f"{compact(one.rate_before)} → " if one.rate_before else ""
        band = f" (80% band {compact(one.lower or 0.0)} to {compact(one.upper or 0.0)})"
        found.append(line(("foreseen   ", "dim"), f"{before}{compact(one.predicted)} samples/s", (band, "dim")))
    if one.gain_seconds is not None and one.action not in _SAME:
        found.append(line(("saves      ", "dim"), *_predicted(Run(one), 0), (" against staying", "dim")))
    if one.measured is not None and one.error is not None:
        found.append(line(("came       ", "dim"), f"{compact(one.measured)} samples/s, ", *_came(Run(one), 0)))
    if one.done:
        found.append(line(("became     ", "dim"), one.done + (f": {one.why}" if one.why else "")))
    return found
