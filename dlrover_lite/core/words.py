"""Numbers and times as people read them."""

from __future__ import annotations

import math
import time

__all__ = [
    "at_time",
    "cleaned",
    "compact",
    "count",
    "duration",
    "give_or_take",
    "metric",
    "next_look",
    "pause",
    "plural",
    "remaining",
    "short_duration",
    "time_left",
]

_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def cleaned(text: str, *, keep_lines: bool = False) -> str:
    """Replace control characters, which could move the cursor or recolour what follows, by blanks."""
    kept = "\n" if keep_lines else ""
    return "".join(char if char.isprintable() or char in kept else " " for char in text)


def count(number: float) -> str:
    """Write a whole number: 1,234,567."""
    return f"{number:,.0f}"


def compact(number: float) -> str:
    """Write a number with three digits: 417, 52.2 k, 1.23 M."""
    for step, suffix in _STEPS:
        if abs(number) >= step * 0.9995:
            value = number / step
            return f"{value:.{max(0, 2 - len(str(int(value + 0.0005))) + 1)}f} {suffix}"
    return f"{number:.0f}"


def plural(number: int, noun: str) -> str:
    """Write a number of things: 1 epoch, 1,024 epochs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def metric(value: float | None) -> str:
    """Write a loss or AUC; "-" when there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"


def duration(seconds: float | None) -> str:
    """Write a duration: 13.5 s, 2 min 5 s, 3 h 20 min, 2 d 4 h; "-" when unknown."""
    if seconds is None:
        return "-"
    if seconds < 59.95:
        return f"{max(0.0, seconds):.1f} s"
    for large, small, unit in (("d", "h", 86400), ("h", "min", 3600), ("min", "s", 60)):
        if seconds >= unit:
            below = {"h": 3600, "min": 60, "s": 1}[small]
            return f"{int(seconds // unit)} {large} {int(seconds % unit // below)} {small}"
    return "1 min 0 s"


def pause(seconds: float) -> str:
    """Write a short time: 14 ms, 1.2 s."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else duration(seconds)


def remaining(seconds: float) -> str:
    """Write how long something still takes: 0:12, 12:05, 3:20:00, 2 d 4 h."""
    if seconds >= 86400:
        return duration(seconds)
    whole = math.ceil(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def short_duration(seconds: float) -> str:
    """Write a duration in few characters: 45s, 12m, 3h20, 2d4h: at most five characters or so."""
    if seconds < 99.5:
        return f"{max(0.0, seconds):.0f}s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f}m"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60}h{minutes % 60:02}"
    return f"{minutes // 1440}d{minutes % 1440 // 60}h"


def give_or_take(error_seconds: float | None) -> str:
    """Write half the width of a band around a time: ±45s; ±? where that isn't known."""
    return "±?" if error_seconds is None else f"±{short_duration(error_seconds)}"


def time_left(at: float, error_seconds: float | None, now: float) -> str:
    """Write the time until an end that is expected: ``0:53 left ±4s``"""
    return f"{remaining(max(0.0, at - now))} left {give_or_take(error_seconds)}"


def next_look(at: float | None, why: str, now: float) -> str:
    """Say when the brain looks at a job next: ``next look in 7 s``; ``no look for now: autoscaling is paused``"""
    if at is None:
        return f"no look for now: {why}" if why else "no look for now"
    seconds = math.ceil(at - now)
    when = f"next look in {seconds} s" if seconds > 0 else "next look any moment"
    return f"{when}, when {why}" if why else when


def at_time(epoch_seconds: float) -> str:
    """Write local time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch_seconds))
