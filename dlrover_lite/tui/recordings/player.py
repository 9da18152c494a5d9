"""Where a replay is: a position that goes on with time, any number of times as fast, or stands still."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.words import plural

__all__ = ["SPEEDS", "Mark", "Now", "Player", "span_of"]

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_SAME_MOMENT_SECONDS = 0.05
"""Seconds within which what comes is one step."""
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?\Z")
_PASSED = re.compile(r"(?:(\d{1,4}):)?(\d{1,4}):([0-5]\d)\Z")
_SPAN = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s)?\Z")


class Mark(NamedTuple):
    """A decision that changed something."""

    at: float
    """Time of the decision in seconds since the epoch, as all times here."""
    job: str
    number: int
    symbol: str


class Now(NamedTuple):
    """A replay as it stands."""

    at: float
    begin: float
    end: float
    speed: float
    playing: bool

    @property
    def over(self) -> bool:
        return self.at >= self.end


class _Set(NamedTuple):
    """Where the replay was put, and what the clock said then."""

    at: float
    clock: float
    speed: float
    """Speed in recorded seconds per second; 0: it stands still."""


class Player:
    """The position of a replay. ``times``: in order, those at which something is new. It begins at the first one, and plays.

    One thread sets it, others may ask where it is.
    """

    def __init__(
        self,
        times: Sequence[float],
        marks: Sequence[Mark] = (),
        *,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.begin, self.end = times[0], times[-1]
        self.marks = tuple(marks)
        self._steps = [at for at, following in pairwise(times) if following - at > _SAME_MOMENT_SECONDS]
        self._steps.append(times[-1])
        self._clock = clock
        self._speed = speed or 1.0
        """Speed while it plays."""
        self._set = _Set(self.begin, clock(), speed)

    @property
    def at(self) -> float:
        now = self._set
        return min(self.end, now.at + (self._clock() - now.clock) * now.speed) if now.speed else now.at

    @property
    def now(self) -> Now:
        at = self.at
        return Now(at, self.begin, self.end, self._speed, self._set.speed > 0 and at < self.end)

    def go(self, at: float) -> None:
        """Go to a time; it plays on, or stands still, as before."""
        self._set = _Set(max(self.begin, min(self.end, at)), self._clock(), self._set.speed)

    def stand(self, at: float | None = None) -> None:
        """Stand still, where it is or there."""
        at = self.at if at is None else at
        self._set = _Set(max(self.begin, min(self.end, at)), self._clock(), 0.0)

    def play(self) -> None:
        """Go on; from the beginning, if it is at its end."""
        at = self.at
        self._set = _Set(self.begin if at >= self.end else at, self._clock(), self._speed)

    def toggle(self) -> None:
        if self.now.playing:
            self.stand()
        else:
            self.play()

    def faster(self) -> None:
        """Take the next higher speed, if there is one; it goes on playing, or standing still."""
        self._at_speed(next((speed for speed in SPEEDS if speed > self._speed), self._speed))

    def slower(self) -> None:
        self._at_speed(next((speed for speed in reversed(SPEEDS) if speed < self._speed), self._speed))

    def _at_speed(self, speed: float) -> None:
        at, playing = self.at, self._set.speed > 0
        self._speed = speed
        self._set = _Set(at, self._clock(), speed if playing else 0.0)

    def step(self, steps: int = 1) -> None:
        """Go to the next moment (or with -1 the one before) at which something is new; it stands still there."""
        shown = bisect_right(self._steps, self.at) - 1
        self.stand(self._steps[max(0, min(len(self._steps) - 1, shown + steps))])

    def decision(self, steps: int = 1, *, job: str | None = None) -> Mark | None:
        """Go to the next decision (or with -1 the one before), for that job if one is named; it stands still there. None: there is none,
        and it stays where it is."""
        at = self.at
        there = [mark for mark in self.marks if job in (None, mark.job)]
        found = [mark for mark in there if (mark.at > at if steps > 0 else mark.at < at)]
        if not found:
            return None
        mark = found[0 if steps > 0 else -1]
        self.stand(mark.at)
        return mark

    def time_of(self, text: str) -> float:
        """Return the time that a text means: ``12:30``, ``12:30:05`` (the first such time of day since the beginning; where there is none,
        minutes and seconds since the beginning, as the replay's line has them), ``90s``, ``5m``, ``1h30m`` (since the beginning),
        ``start``, ``end``. Raises UsageError for what can't be understood, or isn't within the recording."""
        text = text.strip()
        if text in ("start", "end"):
            return self.begin if text == "start" else self.end
        of_day, passed = _CLOCK.match(text), _PASSED.match(text)
        if of_day is not None and (at := self._of_day(*(int(part or 0) for part in of_day.groups()))) <= self.end:
            return at
        if passed is not None:
            hours, minutes, seconds = (float(part or 0) for part in passed.groups())
            at = self.begin + hours * 3600 + minutes * 60 + seconds
        elif text and (match := _SPAN.match(text)) is not None:
            hours, minutes, seconds = (float(part or 0) for part in match.groups())
            at = self.begin + hours * 3600 + minutes * 60 + seconds
        else:
            raise UsageError(f"{text!r} is no time", hint="Write 12:30, 12:30:05, 90s, 5m, 1h30m, start or end.")
        if at > self.end:
            first, last = (time.strftime("%H:%M:%S", time.localtime(one)) for one in (self.begin, self.end))
            raise UsageError(f"{text} isn't in it: it is {span_of(self.end - self.begin)} long, from {first} to {last}")
        return at

    def _of_day(self, hours: int, minutes: int, seconds: int) -> float:
        """Return the first such time of day since the beginning. The beginning of a minute that it began in counts as its own beginning."""
        day = time.localtime(self.begin)
        for later in range(2):
            at = time.mktime((*day[:2], day[2] + later, hours, minutes, seconds, 0, 0, -1))
            if at >= self.begin:
                return at
            if not seconds and self.begin - at < 60:
                return self.begin
        return self.end + 1.0


def span_of(seconds: float) -> str:
    """Write a span of seconds: 0:05, 12:05, 3:20:00."""
    whole = int(seconds)
    if whole >= 86400:
        return f"{plural(whole // 86400, 'day')} {whole % 86400 // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
