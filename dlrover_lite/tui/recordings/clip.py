"""A part of a recording as a film: what a screen shows of one job, or of the machine, moment by moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dlrover_lite.tui.pages.overview_page import overview
from dlrover_lite.tui.pages.replay_page import replay_line
from dlrover_lite.tui.pages.top_page import screenful
from dlrover_lite.tui.recordings.player import Now
from dlrover_lite.tui.recordings.recorded import RecordedSource
from dlrover_lite.tui.text import EMPTY, Line, padded

__all__ = ["Clip", "Run", "changes", "film", "runs"]

_SECONDS = 30.0
"""Length of a clip for which no speed is given; what is shorter is played as it was."""
_FRAME_SECONDS = 0.25
_LAST_SECONDS = 2.0
"""Seconds for which the last frame stays."""


class Clip(NamedTuple):
    title: str
    width: int
    height: int
    frames: tuple[tuple[float, tuple[Line, ...]], ...]
    """Seconds since the beginning, and what is shown from then on: ``height`` lines of ``width``."""
    seconds: float
    """Length of all of it."""


class Run(NamedTuple):
    """A line that stays the same for a while."""

    row: int
    start: float
    stop: float
    """Seconds since the clip's beginning."""
    line: Line


def film(
    source: RecordedSource, job: str | None, *, start: float, stop: float, speed: float | None, size: tuple[int, int]
) -> Clip:
    """Show a job, or where that is None the overview, from a time to another. ``speed``: so many recorded seconds in one; None: as many
    as it takes for half a minute."""
    speed = speed or max(1.0, float(f"{(stop - start) / _SECONDS:.2g}"))
    steps = max(1, math.ceil((stop - start) / speed / _FRAME_SECONDS - 1e-9)) if stop > start else 0
    frames: list[tuple[float, tuple[Line, ...]]] = []
    for step in range(steps + 1):
        at = stop if step == steps else start + step * _FRAME_SECONDS * speed
        lines = _drawn(source, job, Now(at, start, stop, speed, True), size)
        if not frames or lines != frames[-1][1]:
            frames.append((step * _FRAME_SECONDS, lines))
    return Clip(job or "dlrover-lite", *size, tuple(frames), steps * _FRAME_SECONDS + _LAST_SECONDS)


def _drawn(source: RecordedSource, job: str | None, now: Now, size: tuple[int, int]) -> tuple[Line, ...]:
    source.player.stand(now.at)
    width, height = size
    marks = [one for one in source.player.marks if job in (None, one.job) and now.begin <= one.at <= now.end]
    last = replay_line(now, marks, width)
    if job is None:
        lines = [*overview(source.jobs(), width, height - 1, now.at)[: height - 1]]
        lines += [EMPTY] * (height - 1 - len(lines)) + [last]
    else:
        lines = screenful(source.job(job), width, height, now.at, last=last)
        lines[-1:] = [EMPTY] * (height - len(lines)) + lines[-1:]
    return tuple(padded(one, width) for one in lines)


def runs(clip: Clip) -> list[Run]:
    """Return each line of a clip once for as long as it stays the same, in order of rows and times."""
    found: list[Run] = []
    ends = [at for at, _ in clip.frames[1:]] + [clip.seconds]
    for row in range(clip.height):
        its: list[Run] = []
        for (at, lines), end in zip(clip.frames, ends, strict=True):
            if its and its[-1].line == lines[row]:
                its[-1] = its[-1]._replace(stop=end)
            else:
                its.append(Run(row, at, end, lines[row]))
        found += its
    return found


def changes(before: Sequence[Line] | None, after: Sequence[Line]) -> list[tuple[int, Line]]:
    """Return the lines of a frame that differ from the one before, with their rows."""
    return [(row, one) for row, one in enumerate(after) if before is None or before[row] != one]
