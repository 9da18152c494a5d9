"""The jobs of this machine as they are: from the brain, the files of jobs, and the master of the one looked at."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dlrover_lite.brain.store.watch import Watch
from dlrover_lite.brain_server.daemon import look_at
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.brain_server.history_client import BrainHistory
from dlrover_lite.core.decoding import convert, json_decoder
from dlrover_lite.core.errors import JobError
from dlrover_lite.protocol.news import JobNews
from dlrover_lite.tui.model import OVER, Explanation, JobDetail, JobRow, JobsView
from dlrover_lite.tui.sources.live_job import LiveJob, news_from_files
from dlrover_lite.tui.view_state import JobsFold, LocalStatus

if TYPE_CHECKING:
    from dlrover_lite.client.handle import JobHandle

__all__ = ["LiveSource"]

_LOOK_AROUND_SECONDS = 2.0
"""Seconds between two looks for jobs that no brain knows, and at those that are silent."""

_decoder = json_decoder(LocalStatus)


class LiveSource:
    """The jobs of this machine. Reads only what is new: the history's news, and status files that have been written since."""

    def __init__(
        self,
        files: BrainFiles | None = None,
        *,
        history: Callable[[BrainFiles], BrainHistory] = BrainHistory,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``history`` opens the history of these files, for one thread."""
        self._files = files or BrainFiles()
        self._open = history
        self._clock = clock
        self._history = self._open(self._files)
        self._watch = Watch(self._history)
        self._fold = JobsFold()
        self._written: dict[str, int] = {}
        """Time when each status file that was read was written, in ns."""
        self._looked_around = 0.0
        self._strays: set[str] = set()
        """Ids of jobs that run and no brain knows."""
        self._view = JobsView()
        self._job: LiveJob | None = None

    def jobs(self) -> JobsView:
        now = self._clock()
        news = self._watch.look()
        if news.anew:
            self._written.clear()
            self._strays.clear()
        self._fold.take(news)
        self._read_statuses()
        if news.anew or now - self._looked_around >= _LOOK_AROUND_SECONDS:
            first, self._looked_around = news.anew or not self._looked_around, now
            self._look_around(now, first=first)
            self._read_statuses()  # of those that were found just now
        rows = self._fold.rows(now)
        view = JobsView(rows, self._brain(rows))
        if rows is not self._view.jobs or view.brain != self._view.brain:
            self._view = view
        return self._view

    def job(self, job: str) -> JobDetail | None:
        if self._job is None or self._job.id != job:
            self.forget()
            self._job = LiveJob(self._open(self._files), job, clock=self._clock)
        return self._job.look()

    def look_again(self) -> None:
        """Note that something was just done to the job that is looked at. From any thread."""
        if (one := self._job) is not None:
            one.look_again()

    def explain(self, job: str, number: int) -> Explanation | None:
        from dlrover_lite.tui.sources.live_explained import explanation

        with self._open(self._files) as history:
            return explanation(history, job, number)

    def forget(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job = None

    def close(self) -> None:
        self.forget()
        self._history.close()

    # --- what the history doesn't tell -----------------------------------------------------------------------------

    def _read_statuses(self) -> None:
        for job, directory in self._fold.live():
            path = f"{directory}/status.json"
            try:
                written = os.stat(path).st_mtime_ns  # noqa: PTH116 - there may be a thousand, twice a second
                if written == self._written.get(job):
                    continue
                status = _decoder.decode(Path(path).read_bytes())
            except (OSError, msgspec.MsgspecError):
                continue  # it has none so far, or was removed: what is known stays
            self._written[job] = written
            self._fold.hear(job, status, written / 1e9)

    def _look_around(self, now: float, *, first: bool) -> None:
        """Look for jobs without a brain, and for those that have ended with nobody to tell: at all at ``first``, as there may have been no
        brain for long; later at those that say nothing any more or have left a result."""
        from dlrover_lite.client.handle import list_jobs

        for handle in list_jobs():
            if handle.id in self._strays or not self._fold.knows(handle.id):
                self._put_stray(handle)
        silent = set(self._fold.silent(now))
        for name, directory in self._fold.live():
            known = self._fold.news_of(name)
            if known is not None and (first or name in silent or os.path.exists(f"{directory}/result.json")):  # noqa: PTH110 - as above
                self._put_ended(known)

    def _put_stray(self, handle: JobHandle) -> None:
        try:
            known = handle.known()
            news = news_from_files(handle.job, known)
        except JobError:  # it is being removed, or damaged
            return
        self._fold.put(news)
        if news.state not in OVER:
            self._strays.add(news.id)
            return
        self._strays.discard(news.id)
        if known.result is not None and known.state != "lost":
            self._hear_last(news.id, known.result.status or {}, known.result.ended_at)

    def _put_ended(self, known: JobNews) -> None:
        if not Path(known.directory).is_dir() or (ended := look_at(known.directory)) is None:
            return
        self._fold.put(msgspec.structs.replace(known, state=ended.state, ended_at=ended.at, message=ended.message))
        self._hear_last(known.id, ended.status, ended.at)

    def _hear_last(self, job: str, status: Mapping[str, Any], at: float) -> None:
        """Take what a job's master has said last, as its files have it."""
        with suppress(msgspec.ValidationError):  # of another version
            if status:
                self._fold.hear(job, convert(status, LocalStatus), max(at, self._clock()))

    def _brain(self, rows: Mapping[str, JobRow]) -> str:
        """Write in words whether the brain runs; that none does is no news where no job runs."""
        if self._files.lives():
            return "listens"
        return "doesn't run" if any(not row.over for row in rows.values()) else ""
