"""What is shown, written down as it comes (``frames`` has the format)."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import msgspec

from dlrover_lite.brain.store.decision_news import CHANGING
from dlrover_lite.core.errors import DlroverLiteError, HistoryError
from dlrover_lite.core.version import __version__
from dlrover_lite.tui.model import Explanation, JobDetail, JobsView, LastDecision, Problem
from dlrover_lite.tui.pages.last_change import mark_of
from dlrover_lite.tui.recordings.frames import (
    EXPLANATIONS,
    FORMAT,
    ROWS,
    Decided,
    Explained,
    Frame,
    Head,
    Look,
    encoded,
    look,
)
from dlrover_lite.tui.recordings.gzip_file import PackedFile
from dlrover_lite.tui.sources.source import Source

__all__ = ["CHANGED", "Output", "Recorder", "create"]

CHANGED = "±"
"""Mark of a change of which only that is known."""
_SYMBOLS = {"start": "●", "heal": "◆", "explore": "?", "preempt": "‖"}
_LEAST_BETWEEN_KEYS = 256 * 1024
_KEY_SHARE = 4
"""Minimum ratio of the bytes between two keys to those of a key: a quarter of the file is keys, and to go anywhere takes little."""
GRAIN_SECONDS = 1.0
_PAUSE_SECONDS = 0.05
"""Seconds between two explanations, which take the processor from those who watch."""
_LAST_SECONDS = 2.0
"""Seconds for what is still to be explained at the end."""


class Output(Protocol):
    """Where a recording is written."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def create(path: Path) -> Output:
    """Create the file of a recording, which is compressed. Raises HistoryError when it is there already or can't be made."""
    try:
        return PackedFile(path.open("xb"))
    except FileExistsError as error:
        raise HistoryError(f"{path} is there already", hint="Record to another file, or remove it.") from error
    except OSError as error:
        raise HistoryError(f"The recording {path} can't be written: {error.strerror}") from error


class Recorder:
    """A source that writes down what another one tells: all jobs, those that are looked at in detail, and the explanations of their
    decisions, which a thread of its own asks for.

    When the file can't be written any more, what is told has a ``problem`` that says so, and all else goes on.
    """

    def __init__(
        self,
        source: Source,
        file: Output,
        *,
        clock: Callable[[], float] = time.time,
        hidden: Iterable[Path] = (),
        explains: bool = True,
        grain_seconds: float = GRAIN_SECONDS,
    ) -> None:
        """Begin to record what ``source`` tells. ``hidden``: directories that are written as ``~``. ``grain_seconds``: between two lines
        about the same, unless it is a decision, a state, or something that has come or gone, which is written at once."""
        self._source = source
        self._file: Output | None = file
        self._grain = grain_seconds
        self._clock = clock
        self._hidden = [str(path).encode() for path in hidden if len(str(path)) > 2]
        self._lock = threading.Lock()
        """Lock for all below, which is written by two threads that read, and one that explains."""
        self._at = clock()
        self._begin = self._at
        self._view = JobsView()
        self._details: dict[str, JobDetail] = {}
        self._latest: tuple[JobsView, JobDetail | None] = JobsView(), None
        """What was told last; less may have been written."""
        self._view_at = self._detail_at = -math.inf
        """Times of the last lines about all jobs, and about the one that is looked at."""
        self._looked: str | None = None
        self._left: set[str] = set()
        """Jobs that were looked at and aren't any more."""
        self._marked: set[tuple[str, int, bool]] = set()
        self._explained: dict[tuple[str, int], Explanation] = {}
        self._since_key, self._key_size = 0, 0
        self._failed: tuple[str, float] | None = None
        """Reason why the file can't be written any more, and since when."""
        self._told: tuple[JobsView, JobsView] | None = None
        self._explainer = _Explainer(source.explain, self.put_explained) if explains else None
        self._write(encoded(Head(FORMAT, __version__, self._at)))

    # --- what is told -----------------------------------------------------------------------------------------------

    def jobs(self) -> JobsView:
        view = self._source.jobs()
        if view is not self._view:
            with self._lock:
                self._latest = view, self._latest[1]
                if self._clock() - self._view_at >= self._grain or _is_news(self._view, view):
                    self._put_view(view)
        return view if self._failed is None or view.problem is not None else self._with_problem(view, self._failed)

    def job(self, job: str) -> JobDetail | None:
        detail = self._source.job(job)
        with self._lock:
            self._leave(unless=job)
            again, self._looked = self._looked != job, job
            self._latest = self._latest[0], detail
            before = self._details.get(job)
            if detail is None or (detail is before and not again):
                return detail
            due = again or before is None or self._clock() - self._detail_at >= self._grain
            if due or _is_news_of(before, detail):
                self._put_detail(detail, again=again)
        return detail

    def told(self, detail: JobDetail) -> None:
        """Write what is new of a job that is known in detail without being looked at."""
        with self._lock:
            if detail is not self._details.get(detail.row.id):
                self._put_detail(detail, again=False)

    def explain(self, job: str, number: int) -> Explanation | None:
        return self._source.explain(job, number)

    def forget(self) -> None:
        with self._lock:
            self._leave()
        self._source.forget()

    def close(self) -> None:
        if self._explainer is not None:
            self._explainer.close()
        self._source.close()
        with self._lock:
            self._put_latest()
            if self._file is not None:
                self._file.close()
                self._file = None

    def _with_problem(self, view: JobsView, failed: tuple[str, float]) -> JobsView:
        """Return the view with the problem. The same object for the same view."""
        if self._told is None or self._told[0] is not view:
            self._told = view, msgspec.structs.replace(view, problem=Problem("the recording", *failed))
        return self._told[1]

    # --- what is written --------------------------------------------------------------------------------------------

    def _put_latest(self) -> None:
        """Write what was told and isn't written yet."""
        view, detail = self._latest
        if view is not self._view:
            self._put_view(view)
        if detail is not None and detail.row.id == self._looked and detail is not self._details.get(detail.row.id):
            self._put_detail(detail, again=False)

    def _put_view(self, view: JobsView) -> None:
        before, self._view, self._view_at = self._view, view, self._clock()
        rows = before.jobs
        changed = [row for job, row in view.jobs.items() if rows.get(job) is not row]
        changes = {row.id: change for row in changed if (change := ROWS.between(rows.get(row.id), row))}
        gone = tuple(job for job in rows if job not in view.jobs)
        other = view.brain != before.brain or view.problem != before.problem
        moved = view.hosts != before.hosts
        if changes or gone or other or moved:
            decided = (mark for row in changed if (mark := self._mark(row.id, row.decision)))
            self._put(
                Frame(
                    self._now(),
                    jobs=changes,
                    gone=gone,
                    brain=view.brain if other else None,
                    problem=view.problem if other else None,
                    hosts=view.hosts if moved else None,
                    decided=tuple(decided),
                )
            )

    def _mark(self, job: str, one: LastDecision | None) -> Decided | None:
        if (
            one is None
            or one.action not in CHANGING
            or one.at < self._begin
            or (job, one.number, False) in self._marked
        ):
            return None
        self._marked.add((job, one.number, False))
        return Decided(job, one.number, _SYMBOLS.get(one.action, CHANGED))

    def _put_detail(self, detail: JobDetail, *, again: bool) -> None:
        """Write what is new of a job. ``again``: it wasn't looked at until now; that is told even if nothing of it is new."""
        job = detail.row.id
        before, self._details[job] = self._details.get(job), detail
        self._detail_at = self._clock()
        self._left.discard(job)
        new = look(before, detail) or (Look(job) if again else None)
        if new is None:
            return
        decided = []
        for one in new.decisions:
            if one.action in CHANGING and one.at >= self._begin and (job, one.number, True) not in self._marked:
                self._marked.add((job, one.number, True))
                decided.append(Decided(job, one.number, mark_of(one)[0]))
        self._put(Frame(self._now(), looks=(new,), decided=tuple(decided)))
        if self._explainer is not None:
            self._explainer.ask(job, [one.number for one in new.decisions[::-1]])

    def _leave(self, *, unless: str | None = None) -> None:
        left = self._looked
        if left is not None and left != unless:
            self._put_latest()
            self._looked = None
            if left in self._details:
                self._left.add(left)
                self._put(Frame(self._now(), left=(left,)))

    def put_explained(self, one: Explanation) -> None:
        """Write an explanation as it is from now on."""
        with self._lock:
            before = self._explained.get((one.job, one.number))
            change = EXPLANATIONS.between(before, one)
            self._explained[one.job, one.number] = one
            if change or before is None:
                self._put(Frame(self._now(), explained=Explained(one.job, one.number, change)))

    def _put(self, frame: Frame) -> None:
        self._since_key += self._write(encoded(frame))
        if self._since_key >= max(_LEAST_BETWEEN_KEYS, _KEY_SHARE * self._key_size):
            self._since_key, self._key_size = 0, self._write(encoded(self._key()))

    def _key(self) -> Frame:
        return Frame(
            self._at,
            key=True,
            jobs={job: ROWS.between(None, row) for job, row in self._view.jobs.items()},
            brain=self._view.brain,
            problem=self._view.problem,
            hosts=self._view.hosts,
            looks=tuple(new for one in self._details.values() if (new := look(None, one))),
            left=tuple(sorted(self._left)),
        )

    def _now(self) -> float:
        """Return the time of a line. Lines are in the order of their times, even if the clock is set back."""
        self._at = max(self._at, self._clock())
        return self._at

    def _write(self, line: bytes) -> int:
        """Write a line; return the number of bytes written."""
        if self._file is None:
            return 0
        for directory in self._hidden:
            line = line.replace(directory, b"~")
        try:
            self._file.write(line + b"\n")
            self._file.flush()
        except OSError as error:
            self._failed = f"it can't be written any more: {error.strerror}", self._at
            with suppress(OSError):  # what it still holds can't be written either
                self._file.close()
            self._file = None
            return 0
        return len(line) + 1


def _is_news(before: JobsView, after: JobsView) -> bool:
    """Say whether a job has come, gone, or changed its state, something was decided, or the brain or the hosts are others."""
    rows = before.jobs
    if rows.keys() != after.jobs.keys():
        return True
    if (before.brain, before.problem, before.hosts) != (after.brain, after.problem, after.hosts):
        return True
    return any(
        (row.state, row.decision, row.message) != (old.state, old.decision, old.message)
        for job, row in after.jobs.items()
        if row is not (old := rows[job])
    )


def _is_news_of(before: JobDetail | None, after: JobDetail) -> bool:
    """Say whether something was decided, a node has come, gone or changed its state, or the job has."""
    if before is None or before.decisions != after.decisions or before.row.state != after.row.state:
        return True
    return [(node.id, node.state) for node in before.nodes] != [(node.id, node.state) for node in after.nodes]


class _Explainer:
    """Asks for explanations, one after the other, on a thread that is there once there is something to ask for."""

    def __init__(self, explain: Callable[[str, int], Explanation | None], put: Callable[[Explanation], None]) -> None:
        self._explain = explain
        self._put = put
        self._asked: SimpleQueue[tuple[str, int] | None] = SimpleQueue()
        self._ends_at: float | None = None
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="explainer", daemon=True)

    def ask(self, job: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._asked.put((job, number))
        if numbers and self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """End the thread. What has been asked for is still explained, as far as that doesn't take long."""
        if self._thread.ident is not None:
            self._ends_at = time.monotonic() + _LAST_SECONDS
            self._hurry.set()
            self._asked.put(None)
            self._thread.join(_LAST_SECONDS + 1.0)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            if self._ends_at is not None and time.monotonic() >= self._ends_at:
                return
            try:
                found = self._explain(*asked)
            except DlroverLiteError:  # what it follows from can't be read any more: then there is none
                found = None
            if found is not None:
                self._put(found)
            self._hurry.wait(_PAUSE_SECONDS)
