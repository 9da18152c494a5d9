"""What a worker writes to its log while all is well: that it is up, once a minute what it has done, and why it leaves."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable

__all__ = ["INTERVAL_SECONDS", "Journal"]

INTERVAL_SECONDS = 60.0


class Journal:
    """``write`` is given lines; ``clock`` is in seconds."""

    def __init__(self, node: str, write: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._write = write
        self._clock = clock
        self._began = self._since = clock()
        self._minibatches = self._samples = 0
        self._compute_seconds = self._wait_seconds = 0.0
        self._done_before = 0, 0
        """Number of minibatches and of samples up to ``_since``."""
        self._failures: Counter[str] = Counter()
        """Number of times that each traceback came, whatever numbers are in it."""

    def up(self, *, cores: float, threads: int, tables: int, parameters: int) -> None:
        """Write that the worker is up. ``parameters``: number of dense ones."""
        self._write(
            f"{self._node} is up with {_plural(cores, 'core')}, {_plural(threads, 'thread')}: "
            f"{_plural(tables, 'table')}, {_plural(parameters, 'dense parameter')}"
        )

    def resized(self, *, cores: float, threads: int) -> None:
        self._write(f"{self._node} has {_plural(cores, 'core')} now and computes with {_plural(threads, 'thread')}")

    def computed(self, samples: int, *, seconds: float, waited_seconds: float) -> None:
        """Count a minibatch that took so long on the computing thread, which had waited for it before."""
        self._minibatches += 1
        self._samples += samples
        self._compute_seconds += seconds
        self._wait_seconds += waited_seconds

    def failed(self, what: str, trace: str) -> None:
        """Write that ``what`` has raised. A traceback that differs from an earlier one in numbers only is written once, and mentioned the
        2nd, 4th, 8th, … time."""
        kind = re.sub(r"\d+", "#", trace)
        self._failures[kind] += 1
        times, last_line = self._failures[kind], trace.rstrip().rpartition("\n")[2]
        if times == 1:
            self._write(f"{what} failed:\n{trace.rstrip()}")
        elif times & (times - 1) == 0:
            self._write(f"{what} failed as others before, {times:,} in all: {last_line}")

    def tick(self) -> None:
        """Write, once a minute, what was done in it. Called often."""
        now = self._clock()
        if now - self._since < INTERVAL_SECONDS:
            return
        before_minibatches, before_samples = self._done_before
        minibatches, samples = self._minibatches - before_minibatches, self._samples - before_samples
        busy = self._compute_seconds + self._wait_seconds
        waiting = f", waiting {self._wait_seconds / busy:.0%} of the time" if busy else ""
        self._write(f"{_plural(minibatches, 'minibatch')}, {samples / (now - self._since):,.0f} samples/s{waiting}")
        self._since, self._done_before = now, (self._minibatches, self._samples)
        self._compute_seconds = self._wait_seconds = 0.0

    def leaves(self, why: str) -> None:
        done = f"{_plural(self._minibatches, 'minibatch')} ({_plural(self._samples, 'sample')})"
        if failures := self._failures.total():
            done += f", {failures:,} of them failed,"
        self._write(f"{self._node} leaves: {why}; {done} in {self._clock() - self._began:,.0f} s")


def _plural(number: float, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,g} {noun}{ending}" if isinstance(number, float) else f"{number:,} {noun}{ending}"
