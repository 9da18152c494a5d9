"""How long work gets on, as people read it: how much is done of how much, how fast, and how long the rest takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, Protocol

from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import compact, remaining

__all__ = ["Report", "Steps", "Tally", "Unit", "amount_text", "no_steps", "percent", "rate_text", "work_text"]

Unit = Literal["bytes", "rows", "samples"]

Steps = Callable[[str, float, float, Unit], object]
"""Called as ``steps(what, done, total, unit)`` now and then during work of several steps, which come one after the other; each ends with
all of its total done."""


class Report(Protocol):
    """A function to be called as ``Steps``, also where the total is of no known unit."""

    def __call__(self, what: str, done: float, total: float, unit: Unit | None = None, /) -> None: ...


def no_steps(_what: str, _done: float, _total: float, _unit: Unit | None = None) -> None:
    """Tell nobody."""


def work_text(done: float, total: float | None, unit: Unit, seconds: float) -> str:
    """Write ``412 MiB of 1.2 GiB, 210 MiB/s, 0:04 left``, of work that began so many ``seconds`` ago; what isn't known is left out."""
    rate = done / seconds if done > 0 and seconds > 0 else None
    left = (total - done) / rate if rate and total and total > done else None
    return ", ".join(part for part in (amount_text(done, total, unit), rate_text(rate, unit, left)) if part)


def amount_text(done: float, total: float | None, unit: Unit) -> str:
    """Write ``412 MiB of 1.2 GiB``, ``12.3 M of 36.0 M rows``, ``417 rows``."""
    number, noun = (format_bytes, "") if unit == "bytes" else (compact, f" {unit}")
    return f"{number(done)} of {number(total)}{noun}" if total else f"{number(done)}{noun}"


def rate_text(per_second: float | None, unit: Unit, seconds_left: float | None) -> str:
    """Write ``210 MiB/s, 0:04 left``; empty where nothing is known."""
    rate = "" if not per_second else format_bytes(per_second) if unit == "bytes" else f"{compact(per_second)} {unit}"
    left = "" if seconds_left is None else f"{remaining(seconds_left)} left"
    return ", ".join(part for part in (f"{rate}/s" if rate else "", left) if part)


def percent(done: float, total: float) -> str:
    """Write ``34%``: 100% not before all is done; empty where there is nothing to do."""
    return f"{int(100 * min(done, total) / total)}%" if total else ""


class Tally:
    """Counts what has got done, of ``total``, by several threads, and tells ``report`` of the sum each time."""

    def __init__(self, total: float, report: Callable[[float, float], object]) -> None:
        self.done, self.total = 0.0, total
        self._report = report
        self._lock = threading.Lock()

    def add(self, amount: float) -> None:
        """Count so much more as done."""
        with self._lock:
            self.done += amount
            self._report(self.done, self.total)
