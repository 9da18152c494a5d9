"""What was shown, kept in a file, and shown again from there.

A recording is a text file of JSON lines: first a ``_Head``, then a ``_Frame`` for each time that something was new, with what was new only.
It is whole up to any line, so one that was cut off, or is still being written, can be shown as far as it goes.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from dlrover_lite import __version__
from dlrover_lite.errors import HistoryError
from dlrover_lite.tui.model import Explanation, JobDetail, JobRow, JobsView, Problem
from dlrover_lite.tui.source import Source

__all__ = ["FORMAT", "RecordedSource", "Recorder"]

FORMAT = 1


class _Head(msgspec.Struct, frozen=True):
    recording: int
    """FORMAT."""
    version: str
    """Of dlrover-lite, that wrote it."""
    at: float


class _Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float
    jobs: tuple[JobRow, ...] = ()
    """Those that are new or have changed."""
    gone: tuple[str, ...] = ()
    brain: str | None = None
    """None: as it was."""
    problem: Problem | None = None
    detail: JobDetail | None = None
    """Of a job that was looked at, where that has changed."""


_decoder = msgspec.json.Decoder(_Frame)


class Recorder:
    """A source that writes down what another one tells. Raises HistoryError when the file is there already or can't be written."""

    def __init__(self, source: Source, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._path = path
        self._clock = clock
        self._view = JobsView()
        self._detail: JobDetail | None = None
        try:
            self._file: IO[bytes] = path.open("xb")
        except FileExistsError as error:
            raise HistoryError(f"{path} is there already", hint="Record to another file, or remove it.") from error
        except OSError as error:
            raise self._unwritable(error) from error
        self._put(_Head(FORMAT, __version__, clock()))

    def jobs(self) -> JobsView:
        view, before = self._source.jobs(), self._view
        if view is before:
            return view
        changed = tuple(row for job, row in view.jobs.items() if before.jobs.get(job) is not row)
        gone = tuple(job for job in before.jobs if job not in view.jobs)
        self._put(_Frame(self._clock(), changed, gone, view.brain, view.problem))
        self._view = view
        return view

    def job(self, job: str) -> JobDetail | None:
        detail = self._source.job(job)
        if detail is not None and detail is not self._detail:
            self._put(_Frame(self._clock(), detail=detail))
            self._detail = detail
        return detail

    def explain(self, job: str, number: int) -> Explanation | None:
        return self._source.explain(job, number)

    def forget(self) -> None:
        self._source.forget()

    def close(self) -> None:
        self._source.close()
        self._file.close()

    def _put(self, what: _Head | _Frame) -> None:
        """In one write: two threads may have something to tell."""
        try:
            self._file.write(msgspec.json.encode(what) + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> HistoryError:
        return HistoryError(f"The recording {self._path} can't be written: {error.strerror}")


class RecordedSource:
    """A recording, as of ``position`` seconds since its beginning, which goes on ``speed`` times as fast as time does.

    Raises HistoryError for a file that is no recording, or of another version.
    """

    def __init__(self, path: Path, *, speed: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._frames = _read(path)
        self._times = [frame.at for frame in self._frames]
        self._begin = self._times[0]
        self.seconds = self._times[-1] - self._begin
        """Its length."""
        self._speed = speed
        self._position, self._set_at = 0.0, clock()
        self._applied = 0
        """Frames that the views are made of."""
        self._view = JobsView()
        self._details: dict[str, JobDetail] = {}

    @property
    def position(self) -> float:
        return min(self.seconds, self._position + (self._clock() - self._set_at) * self._speed)

    def go(self, position: float, *, speed: float | None = None) -> None:
        """To that second, and on from there; with ``speed`` 0 it stands still."""
        self._position, self._set_at = max(0.0, min(self.seconds, position)), self._clock()
        self._speed = self._speed if speed is None else speed

    def step(self) -> None:
        """To the next moment at which something is new, and stand still there."""
        at = self._begin + self.position
        later = next((time - self._begin for time in self._times if time > at), self.seconds)
        self.go(later, speed=0.0)

    def jobs(self) -> JobsView:
        self._apply()
        return self._view

    def job(self, job: str) -> JobDetail | None:
        """A recording has details of those jobs only that were looked at; of others, what the list has."""
        self._apply()
        detail, row = self._details.get(job), self._view.jobs.get(job)
        if detail is None and row is not None:
            detail = self._details[job] = JobDetail(row=row)
        return detail

    def explain(self, job: str, number: int) -> Explanation | None:
        """Recordings have none."""
        return None

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _apply(self) -> None:
        wanted = bisect_right(self._times, self._begin + self.position)
        if wanted < self._applied:
            self._applied, self._view = 0, JobsView()
            self._details.clear()
        if wanted == self._applied:
            return
        jobs, brain, problem = dict(self._view.jobs), self._view.brain, self._view.problem
        for frame in self._frames[self._applied : wanted]:
            jobs.update((row.id, row) for row in frame.jobs)
            for job in frame.gone:
                jobs.pop(job, None)
            if frame.brain is not None:
                brain, problem = frame.brain, frame.problem
            if frame.detail is not None:
                self._details[frame.detail.row.id] = frame.detail
        order = sorted(jobs, key=lambda job: (-jobs[job].created_at, job))
        self._view = JobsView({job: jobs[job] for job in order}, brain, problem)
        self._applied = wanted


def _read(path: Path) -> list[_Frame]:
    try:
        first, *lines = path.read_bytes().splitlines() or [b""]
    except OSError as error:
        raise HistoryError(f"Can't read {path}: {error.strerror}") from error
    try:
        head = msgspec.json.decode(first, type=_Head)
    except msgspec.MsgspecError as error:
        raise HistoryError(f"{path} is no recording", hint="One is made by: dlrover-lite tui --record FILE") from error
    if head.recording != FORMAT:
        raise HistoryError(f"{path} was recorded by another version of dlrover-lite ({head.version})")
    frames: list[_Frame] = [_Frame(head.at)]
    for number, text in enumerate(lines, 2):
        try:
            frames.append(_decoder.decode(text))
        except msgspec.MsgspecError as error:
            if number == len(lines) + 1:
                break  # it was cut off
            raise HistoryError(f"{path}, line {number}, can't be understood: {error}") from error
    return sorted(frames, key=lambda frame: frame.at)  # two threads have written it
