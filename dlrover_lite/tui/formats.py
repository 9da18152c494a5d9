"""Values as the screens write them, short and with what they mean; None is a dash."""

from __future__ import annotations

import time

from dlrover_lite.core.expected_end import ExpectedEnd
from dlrover_lite.core.units import GIB, format_bytes
from dlrover_lite.core.words import compact, give_or_take, next_look, pause
from dlrover_lite.tui.model import Checkpoint, JobRow, Look
from dlrover_lite.tui.text import Line, Span, Tone, line

__all__ = [
    "clock",
    "cores_of",
    "cost_of",
    "ends",
    "held_up",
    "look",
    "memory_of",
    "number",
    "percent",
    "span",
    "state",
    "symbol_of",
]

_HALF_A_DAY = 43_200.0
_TO_THE_SECOND = 60.0
"""Seconds of error below which an end is told to the second."""
_SHORT_SPAN = 600.0
"""Seconds of a span below which its ends are told to the second."""
DASH: Line = (Span("-", "dim"),)

_STATES: dict[str, tuple[str, Tone]] = {
    "starting": ("○", "accent"),
    "queued": ("…", "warn"),
    "running": ("●", "good"),
    "training": ("●", "good"),
    "evaluating": ("●", "good"),
    "exporting": ("●", "good"),
    "succeeded": ("✓", "good"),
    "failed": ("✗", "bad"),
    "stopped": ("■", "warn"),
    "suspended": ("‖", "warn"),
    "lost": ("?", "bad"),
    "silent": ("?", "bad"),
    "up": ("●", "good"),
    "launched": ("○", "accent"),
    "started": ("○", "accent"),
}


def state(word: str, *, silent_since: float | None = None) -> Line:
    """Write a state as a symbol and the word."""
    if silent_since is not None:
        return line((f"? silent {clock(silent_since)}", "bad"))
    first = word.partition(" ")[0]
    if first == "ended":
        why = word.removeprefix("ended").strip(" ()")
        fine = why in ("Succeeded", "")
        return line(("✓ ended", "dim") if fine else (f"✗ {why}", "bad"))
    symbol, tone = symbol_of(first)
    return line((f"{symbol} {word}", tone))


def symbol_of(state: str) -> tuple[str, Tone]:
    """Return the symbol of a state, and its tone."""
    return _STATES.get(state, ("·", "plain"))


def clock(at: float, *, seconds: bool = False) -> str:
    """Write the local time of day."""
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", time.localtime(at))


def span(begin: float, end: float) -> tuple[str, str]:
    """Write the times of day at the ends of a span, to the second where it is short."""
    seconds = end - begin < _SHORT_SPAN
    return clock(begin, seconds=seconds), clock(end, seconds=seconds)


def ends(row: JobRow, width: int | None = None) -> Line:
    """Write when a job ``ends``, at 14:32 ±3m, or 14:32:05 ±8s; of one that is over, when that was. What it may be off by needs room."""
    if row.over:
        return line((f"at {clock(row.ended_at)}", "dim")) if row.ended_at is not None else DASH
    if row.expected is None:
        return DASH
    when, error = _when(row.expected, row), f" {give_or_take(row.expected.error_seconds)}"
    return line(when, (error, "dim")) if width is None or len(when) + len(error) <= width else line(when)


def _when(end: ExpectedEnd, row: JobRow) -> str:
    """Write the time with the day, if that is another one than the job began at; to the second, if it is as sure as that."""
    began = row.started_at or row.created_at
    if end.at - began < _HALF_A_DAY or time.localtime(end.at)[:3] == time.localtime(began)[:3]:
        return clock(end.at, seconds=end.error_seconds is not None and end.error_seconds < _TO_THE_SECOND)
    return time.strftime("%d %b %H:%M", time.localtime(end.at))


def number(value: float | None) -> Line:
    return DASH if value is None else line(compact(value))


def percent(share: float | None) -> Line:
    return DASH if share is None else line(f"{int(share * 100)}%")


def cores_of(used: float | None, given: float | None) -> Line:
    """Write cores used of those given: ``1.2/2``."""
    if given is None:
        return DASH
    known = "-" if used is None else f"{used:.1f}"
    return line(known, (f"/{given:g}", "dim"))


def memory_of(used: int | None, given: int | None) -> Line:
    """Write memory used of what is given, in the unit of that: ``1.1/1.5 GiB``."""
    if not given:
        return DASH
    whole = format_bytes(given)
    amount, _, unit = whole.partition(" ")
    if not used:
        return line("-", (f"/{whole}", "dim"))
    scale = given / float(amount)
    part = used / scale
    return line(
        f"{part:.0f}" if part >= 99.5 else f"{part:.2g}" if part < 10 else f"{part:.3g}", (f"/{amount} {unit}", "dim")
    )


def cost_of(row: JobRow) -> Line:
    """Write what a job has cost: ``1.25 core-h 2.1 GiB-h``."""
    if row.cost is None:
        return DASH
    core_hours, gib_hours = row.cost.core_seconds / 3600, row.cost.byte_seconds / 3600 / GIB
    return line(f"{_hours(core_hours)} core-h ", (f"{_hours(gib_hours)} GiB-h", "dim"))


def _hours(hours: float) -> str:
    return f"{hours:.2f}" if hours < 9.995 else f"{hours:.1f}" if hours < 99.95 else compact(hours).replace(" ", "")


def look(one: Look | None, now: float) -> Line:
    """Write when the brain looks next, or why it doesn't; of a job that says nothing of it, nothing."""
    if one is None:
        return ()
    return line((next_look(one.at, one.why, now), "dim" if one.at is None else "accent"))


def held_up(one: Checkpoint, width: int) -> str:
    """Write how long training was held up, at the longest step: ``, held up 14 ms (11 ms without)``; empty where that isn't known, or there
    is no room."""
    if one.held_up is None:
        return ""
    short = f", held up {pause(one.held_up)}"
    long = short if one.usual is None else f"{short} ({pause(one.usual)} without)"
    return next((text for text in (long, short) if len(text) <= width), "")
