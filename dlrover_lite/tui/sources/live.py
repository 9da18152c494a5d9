"""Jobs as they are, of this machine and of clusters: from the brain, the files of jobs, clusters, and the master of the one looked at."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
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
from dlrover_lite.tui.model import OVER, Explanation, HostRow, JobDetail, JobRow, JobsView, Problem
from dlrover_lite.tui.sources.live_clusters import LiveCluster, NamedCluster, hosts_of, news_from_summary
from dlrover_lite.tui.sources.live_job import LiveJob, news_from_files
from dlrover_lite.tui.view_state import JobsFold, LocalStatus

if TYPE_CHECKING:
    from dlrover_lite.brain.store.database import ConfigStore
    from dlrover_lite.client.handle import JobHandle

__all__ = ["LiveSource"]

_LOOK_AROUND_SECONDS = 2.0
"""Seconds between two looks for jobs that no brain knows, and at those that are silent."""

_CAPACITY_SECONDS = 60.0
"""Seconds between two looks at what this machine has for jobs."""
_LIST_SECONDS = 10.0
"""Seconds to wait for the lists of clusters where somebody wants them all."""

_decoder = json_decoder(LocalStatus)


class LiveSource:
    """The jobs of this machine, and of the clusters that are known here. Reads only what is new: the history's news, and status files that
    have been written since. What is known of clusters comes by threads of their own: it is there when it has come."""

    def __init__(
        self,
        files: BrainFiles | None = None,
        *,
        history: Callable[[BrainFiles], BrainHistory] = BrainHistory,
        clusters: Callable[[], Sequence[NamedCluster]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``history`` opens the history of these files, for one thread. ``clusters``: those that are asked; None: those known here."""
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
        self._capacity: tuple[HostRow, ...] = ()
        self._capacity_at = 0.0
        self._view = JobsView()
        self._job: LiveJob | None = None
        self._known_clusters = clusters or _known_clusters
        self._clusters: list[LiveCluster] | None = None
        """Clusters, once they are asked."""
        self._listed: dict[str, JobNews] = {}
        """Jobs that only the lists of clusters tell of."""

    def whole(self, timeout_seconds: float = _LIST_SECONDS) -> JobsView:
        """Return all jobs, those of clusters too: their lists are waited for."""
        end = time.monotonic() + timeout_seconds
        for one in self._started_clusters():
            one.asked.wait(max(0.0, end - time.monotonic()))
        return self.jobs()

    def jobs(self) -> JobsView:
        now = self._clock()
        news = self._watch.look()
        if news.anew:
            self._written.clear()
            self._strays.clear()
        self._strays -= {one.id for one in news.jobs}  # a brain knows them by now
        self._fold.take(news)
        self._read_statuses()
        if news.anew or now - self._looked_around >= _LOOK_AROUND_SECONDS:
            first, self._looked_around = news.anew or not self._looked_around, now
            self._look_around(now, first=first)
            self._read_statuses()  # of those that were found just now
        clusters = self._started_clusters()
        self._take_clusters(clusters)
        rows = self._fold.rows(now)
        hosts = (*self._here(now), *(host for one in clusters for host in one.hosts))
        view = JobsView(rows, self._brain(rows), _first_problem(clusters), hosts)
        before = self._view
        if rows is not before.jobs or (view.brain, view.problem, hosts) != (before.brain, before.problem, before.hosts):
            self._view = view
        return self._view

    def job(self, job: str) -> JobDetail | None:
        if self._job is None or self._job.id != job:
            self.forget()
            self._job = LiveJob(self._open(self._files), job, clock=self._clock)
        return self._job.look()

    def whole_job(self, job: str) -> JobDetail | None:
        """Return one job as ``job``, with what its master says: that is waited for, wherever it is."""
        found = self.job(job)
        if found is None or not found.row.source:
            return found
        self.look_again()
        return self.job(job)

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
        for one in self._clusters or ():
            one.stop()

    def _here(self, now: float) -> tuple[HostRow, ...]:
        """Return this machine as a host."""
        if not self._capacity or now - self._capacity_at >= _CAPACITY_SECONDS:
            from dlrover_lite.client.job_sources import local_jobs

            self._capacity, self._capacity_at = hosts_of("", local_jobs()), now
        return self._capacity

    # --- clusters ---------------------------------------------------------------------------------------------------

    def _started_clusters(self) -> list[LiveCluster]:
        if self._clusters is None:
            self._clusters = [LiveCluster(one, self._opened_store, clock=self._clock) for one in self._known_clusters()]
            for cluster in self._clusters:
                cluster.start()
        return self._clusters

    def _opened_store(self) -> ConfigStore:
        from dlrover_lite.brain.store.database import ConfigStore

        self._files.make()
        return ConfigStore(self._files.database)

    def _take_clusters(self, clusters: Sequence[LiveCluster]) -> None:
        listed: dict[str, JobNews] = {}
        for one in clusters:
            for summary in one.unknown():
                known = self._fold.news_of(summary.id)
                if known is None or known == self._listed.get(summary.id):  # else the history has it by now
                    listed[summary.id] = news = news_from_summary(summary, one.name)
                    self._fold.put(news)
                    if summary.over and summary.result is not None and summary.state != "lost":
                        self._hear_last(summary.id, summary.result.status or {}, summary.result.ended_at)
            for job, (status, at) in list(one.heard.items()):
                self._fold.hear(job, status, at)
        for job, news in self._listed.items():
            if job not in listed and self._fold.news_of(job) == news:
                self._fold.drop(job)
        self._listed = listed

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


def _known_clusters() -> list[NamedCluster]:
    from dlrover_lite.client.job_sources import clusters

    return [NamedCluster(name, connect) for name, connect in clusters()]


def _first_problem(clusters: Sequence[LiveCluster]) -> Problem | None:
    """Return what can't be told of clusters, as one problem."""
    found = [problem for one in clusters if (problem := one.problem()) is not None]
    if len(found) < 2:
        return found[0] if found else None
    more = f" (and {len(found) - 1} more that can't be asked)"
    return Problem(found[0].what, found[0].why + more, min(one.since for one in found))
