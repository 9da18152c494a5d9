"""A recording, shown again (``frames`` has the format)."""

from __future__ import annotations

import mmap
import threading
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from dlrover_lite.core.decoding import from_json, json_decoder
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.core.files.regular import FileTooLarge, open_regular
from dlrover_lite.core.units import GIB
from dlrover_lite.tui.model import Explanation, JobDetail, JobRow, JobsView, Problem
from dlrover_lite.tui.recordings.frames import EXPLANATIONS, FORMAT, ROWS, Change, Decided, Frame, Head, applied
from dlrover_lite.tui.recordings.gzip_file import unpacked
from dlrover_lite.tui.recordings.player import Mark, Player
from dlrover_lite.tui.recordings.recorder import CHANGED

__all__ = ["Explain", "RecordedSource", "Recording", "read"]

Explain = Callable[[str, int, float], Explanation | None]
"""A function that returns the explanation of a decision (job and number), as of a time."""
NOT_OPEN = "this recording has no more of it than the list: it wasn't open then"
NOT_THERE = "not there yet"
_MOST_UNPACKED_BYTES = 1 * GIB
"""Maximum bytes of a compressed recording once it is unpacked, in memory: days of a busy machine."""
_MANY = 200
"""Number of frames beyond which to go on over them takes longer than to begin with the last key."""


def read(path: Path) -> Recording:
    """Read the recording in a file, or in one that gzip has compressed. Raises HistoryError for one that is no recording, or of another
    version."""
    try:
        with open_regular(path) as file:
            if file.peek(2)[:2] == b"\x1f\x8b":
                return Recording(_unpacked(file, path), str(path))
            empty = file.seek(0, 2) == 0
            return Recording(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), str(path))
    except (OSError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise HistoryError(f"Can't read {path}: {why}") from error


def _unpacked(file: BinaryIO, path: Path) -> bytes:
    data = unpacked(file.read(), _MOST_UNPACKED_BYTES)
    if data is None:
        raise FileTooLarge(path, _MOST_UNPACKED_BYTES)
    return data


class _Which(msgspec.Struct):
    job: str
    number: int


class _Glance(msgspec.Struct):
    """As much of a frame as is to be known of all of them: the rest is skipped unread."""

    at: float
    key: bool = False
    decided: tuple[Decided, ...] = ()
    explained: _Which | None = None


class Recording:
    """The lines of a recording, found by time. ``data``: all of them; ``name``: for messages."""

    def __init__(self, data: bytes | mmap.mmap, name: str) -> None:
        self.name = name
        self._data = data
        self._lines: list[tuple[int, int]] = []
        self.times: list[float] = []
        """Time of each frame, in order."""
        self._keys: list[int] = []
        self._decided: dict[tuple[str, int], Mark] = {}
        self._explained: dict[tuple[str, int], list[int]] = {}
        """Numbers of the frames with explanations of a decision."""
        self._decoder = json_decoder(Frame)
        self.begin = self._head()
        self._glance()

    def _head(self) -> float:
        stop = self._data.find(b"\n")
        first = self._data[: stop if stop >= 0 else len(self._data)]
        try:
            head = from_json(first, Head)
        except msgspec.MsgspecError as error:
            raise HistoryError(
                f"{self.name} is no recording", hint="One is made by: dlrover-lite tui --record FILE"
            ) from error
        if head.recording != FORMAT:
            raise HistoryError(f"{self.name} was recorded by another version of dlrover-lite ({head.version})")
        return head.at

    def _glance(self) -> None:
        data, decode = self._data, json_decoder(_Glance).decode
        start, at = data.find(b"\n") + 1 or len(data), self.begin
        while start < len(data):
            stop = data.find(b"\n", start)
            if stop < 0:
                break  # it was cut off, or is just being written
            try:
                one = decode(data[start:stop])
            except msgspec.MsgspecError as error:
                raise self._damaged(len(self._lines), error) from error
            at = max(at, one.at)
            self._note(one, at)
            self._lines.append((start, stop))
            self.times.append(at)
            start = stop + 1

    def _note(self, one: _Glance, at: float) -> None:
        if one.key:
            self._keys.append(len(self._lines))
        for mark in one.decided:
            before = self._decided.get((mark.job, mark.number))
            if before is None or before.symbol == CHANGED:  # the list has told of it before it was known in full
                told = Mark(before.at if before else at, mark.job, mark.number, mark.symbol)
                self._decided[mark.job, mark.number] = told
        if one.explained is not None:
            self._explained.setdefault((one.explained.job, one.explained.number), []).append(len(self._lines))

    def _damaged(self, number: int, error: msgspec.MsgspecError) -> HistoryError:
        return HistoryError(f"{self.name}, line {number + 2}, can't be understood: {error}")

    def frame(self, number: int) -> Frame:
        """Decode a frame. Raises HistoryError for a damaged one."""
        start, stop = self._lines[number]
        try:
            return self._decoder.decode(self._data[start:stop])
        except msgspec.MsgspecError as error:
            raise self._damaged(number, error) from error

    def key_before(self, count: int) -> int:
        """Return the number of the last one of the first ``count`` frames from which on all can be told; 0 if all are needed."""
        at = bisect_right(self._keys, count - 1)
        return self._keys[at - 1] if at else 0

    def player(self, *, speed: float = 1.0, clock: Callable[[], float] = time.monotonic) -> Player:
        marks = sorted(self._decided.values())
        return Player([self.begin, *self.times], marks, speed=speed, clock=clock)

    def explanation(self, job: str, number: int, at: float) -> Explanation | None:
        """Return the explanation as it was then; the first one, if that was written later."""
        found: Explanation | None = None
        for line in self._explained.get((job, number), ()):
            if found is not None and self.times[line] > at:
                break
            one = self.frame(line).explained
            if one is not None:
                change = one.change if found else {"job": job, "number": number, **one.change}
                found = self.fitting(EXPLANATIONS.after, found, change)
        return found

    def fitting(self, after: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return after(*arguments)
        except msgspec.MsgspecError as error:
            raise HistoryError(f"{self.name} can't be understood: {error}") from error


class _State:
    """What was known once so many frames were told."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._told: int | None = 0
        """Number of frames that were told; None: it broke off at a line that is damaged."""
        self._rows: dict[str, JobRow] = {}
        self.view = JobsView()
        self.details: dict[str, JobDetail] = {}
        self.left: dict[str, float] = {}
        """Jobs that aren't looked at any more, and since when."""

    def go(self, count: int) -> None:
        """Go to the first ``count`` frames: on from where it is, or from the last key before."""
        told = self._told
        if count == told:
            return
        key = self._recording.key_before(count)
        anew = told is None or count < told or (key > told and count - told > _MANY)
        start, self._told = key if told is None or anew else told, None
        if anew:
            self._rows, self.details, self.left = {}, {}, {}
        changes: dict[str, Change] = {}
        said = JobsView() if anew else self.view
        moved = anew
        for number in range(start, count):
            one = self._recording.frame(number)
            if one.key and not (anew and number == start):
                continue  # it says once more what is known
            for job, change in one.jobs.items():
                changes[job] = {**changes[job], **change} if job in changes else change
            for job in one.gone:
                changes.pop(job, None)
                self._rows.pop(job, None)
            if one.brain is not None:
                said = msgspec.structs.replace(said, brain=one.brain, problem=one.problem)
            if one.hosts is not None:
                said = msgspec.structs.replace(said, hosts=one.hosts)
            moved = moved or bool(one.gone) or one.brain is not None or one.hosts is not None
            self._look(one)
        if changes or moved:
            self._put(changes, said)
        self._told = count

    def _look(self, one: Frame) -> None:
        for new in one.looks:
            self.left.pop(new.job, None)
            self.details[new.job] = self._recording.fitting(applied, self.details.get(new.job), new)
        for job in one.left:
            self.left[job] = one.at

    def _put(self, changes: dict[str, Change], said: JobsView) -> None:
        """Put changed rows into the view, which tells of all else what ``said`` does. Rows that are as they were stay the same objects."""
        before = self.view.jobs
        for job, change in changes.items():
            row = self._recording.fitting(ROWS.after, self._rows.get(job), change)
            self._rows[job] = before[job] if before.get(job) == row else row
        order = sorted(self._rows, key=lambda job: (-self._rows[job].created_at, job))
        self.view = msgspec.structs.replace(said, jobs={job: self._rows[job] for job in order})


class RecordedSource:
    """A recording, as of where its ``player`` is. Raises HistoryError for a line that is damaged.

    ``explain`` is asked for explanations that the recording hasn't.
    """

    def __init__(self, recording: Recording, player: Player | None = None, *, explain: Explain | None = None) -> None:
        self._recording = recording
        self.player = player or recording.player()
        self._explain = explain
        self._lock = threading.Lock()
        self._state = _State(recording)
        self._given: tuple[tuple[object, ...], JobDetail] | None = None
        """The last detail, after what it was made of."""

    def jobs(self) -> JobsView:
        with self._lock:
            self._go()
            return self._state.view

    def known(self) -> list[str]:
        """Return the ids of the jobs that there are at its end, the newest first."""
        with self._lock:
            self._state.go(len(self._recording.times))
            return list(self._state.view.jobs)

    def job(self, job: str) -> JobDetail:
        """Return the detail of a job. A recording has details of those jobs only that were looked at; of others, what the list has. One
        that isn't there yet is said to be so: what was shown of it later mustn't stay."""
        with self._lock:
            self._go()
            state = self._state
            made_of = job, state.details.get(job), state.view.jobs.get(job), state.left.get(job)
            if self._given is None or any(one is not other for one, other in zip(self._given[0], made_of, strict=True)):
                self._given = made_of, self._detail(*made_of)
            return self._given[1]

    def _detail(self, job: str, detail: JobDetail | None, row: JobRow | None, left_at: float | None) -> JobDetail:
        if detail is None and row is None:
            return JobDetail(row=JobRow(id=job, state=NOT_THERE, created_at=self._recording.begin))
        if detail is None:
            assert row is not None
            return JobDetail(row=row, missing=NOT_OPEN)
        if left_at is None or row is None or detail.row.over:
            return detail
        problem = Problem("this recording", "the job wasn't open then", left_at)
        return msgspec.structs.replace(detail, row=row, problem=problem)

    def explain(self, job: str, number: int) -> Explanation | None:
        at = self.player.at
        found = self._recording.explanation(job, number, at)
        return found if found is not None or self._explain is None else self._explain(job, number, at)

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _go(self) -> None:
        self._state.go(bisect_right(self._recording.times, self.player.at))
