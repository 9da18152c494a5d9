"""One job in detail: asked of its master and of the brain, and read from its files where they are on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dlrover_lite.brain.store.decision_news import CHANGING, listed
from dlrover_lite.brain.store.history import History
from dlrover_lite.brain.store.watch import JobWatch
from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.jobs.backend import LOCAL
from dlrover_lite.protocol.news import Chosen, JobNews, WatchedJobs
from dlrover_lite.tui.model import OVER, Autoscaling, JobDetail, Problem, PsStrip, Rate
from dlrover_lite.tui.pages.detail import (
    NodesFold,
    checkpoints_of,
    evaluated_of,
    moves_end_in,
    shards_of,
    status_of_master,
    strips_of,
)
from dlrover_lite.tui.sources.live_clusters import news_from_summary
from dlrover_lite.tui.sources.live_memory import LiveMemory
from dlrover_lite.tui.view_state import JobsFold

if TYPE_CHECKING:
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.jobs.backend import JobSummary
    from dlrover_lite.jobs.store import Job
    from dlrover_lite.protocol.questions import AutoscaleStatus, Status

__all__ = ["LiveJob", "news_from_files"]

_SELDOM_SECONDS = 3.0
"""Seconds between two questions for what changes seldom, or is much."""
_ASK_SECONDS = 2.0
"""Seconds between two questions to the master of a cluster's job."""
_HEARD_SECONDS = 3 * _ASK_SECONDS
"""Seconds for which a job runs whose master has answered."""


class LiveJob:
    """One job. What was learned stays: a look adds what is new."""

    def __init__(self, history: History, job: str, *, clock: Callable[[], float] = time.time) -> None:
        """``history`` is this job's own, and closed with it."""
        self.id = job
        self._clock = clock
        self._history = history
        self._watch = JobWatch(history, job)
        self._memory = LiveMemory(history, job)
        self._fold = JobsFold()
        self._nodes = NodesFold()
        self._asked_at = 0.0
        self._problem: Problem | None = None
        self._is_copied = False
        """Whether the history of a job that is over was asked of its pod."""
        self._rates: list[Rate] = []
        self._decisions: dict[int, Chosen] = {}
        self._handle: JobHandle | None = None
        self._status: Status | None = None
        self._heard_at = 0.0
        self._slots: tuple[PsStrip, ...] = ()
        self._autoscale = ""
        self._autoscaling: Autoscaling | None = None
        self._seldom_at = 0.0
        self._detail: JobDetail | None = None
        self._stray = True
        """Whether no brain has told of the job."""

    def close(self) -> None:
        self._history.close()

    def look_again(self) -> None:
        """Note that something was just done to it: what is seldom asked for is asked for with the next look. From any thread."""
        self._seldom_at = 0.0
        self._asked_at = min(self._asked_at, 1.0)

    def look(self) -> JobDetail | None:
        self._take_news()
        news = self._from_backend() if self._stray else self._fold.news_of(self.id)
        if news is None:
            return None
        problem = self._ask(news)
        row = self._fold.rows(self._clock()).get(self.id)
        if row is None:
            return None
        status = self._status
        detail = JobDetail(
            row=row,
            rates=tuple(self._rates),
            decisions=tuple(self._decisions.values()),
            nodes=self._nodes.rows,
            shards=shards_of(status),
            slots=self._slots,
            slot_map_version=status.slot_map_version if status else 0,
            moving_slots=sum(move.left for move in status.moves) if status else 0,
            moves_end_in=moves_end_in(status) if status else None,
            checkpoints=checkpoints_of(status),
            memory=None if row.over else self._memory.look(),
            epoch=status.epoch if status else 0,
            epochs=status.epochs if status else 0,
            auc=status.auc if status else None,
            loss=status.loss if status else None,
            evaluated=evaluated_of(status),
            autoscale=self._autoscale,
            autoscaling=self._autoscaling,
            master_restarts=status.master_restarts if status else 0,
            problem=problem,
            heard=status is not None or row.over or not (news.directory or news.source),
        )
        if detail != self._detail:
            self._detail = detail
        return self._detail

    def _take_news(self) -> None:
        news = self._watch.look()
        if news.empty:
            return
        self._memory.take(news)
        if news.anew:
            self._rates.clear()
            self._decisions.clear()
        told = [one for one in news.decisions if one.action in CHANGING][-1:] + list(news.decisions[-1:])
        newest = [listed(self.id, one) for one in told]
        self._stray = self._stray and not news.jobs
        self._fold.take(
            WatchedJobs(jobs=news.jobs, rates=news.rates, plans=news.plans, decisions=tuple(newest), anew=news.anew)
        )
        if news.anew:
            self._heard_at = 0.0
        self._rates += [Rate(one.at, one.samples_per_second, one.seconds) for one in news.rates]
        self._decisions.update((one.number, one) for one in news.decisions)
        self._nodes.happened(news.nodes)

    def _from_backend(self) -> JobNews | None:
        """Ask what runs a job for its news, which no brain knows."""
        from dlrover_lite.client.handle import JobHandle

        try:
            if self._handle is None:
                self._handle = JobHandle.find(self.id)
            handle = self._handle
            if handle.source == LOCAL:
                news = news_from_files(handle.job, handle.known())
            elif (known := self._fold.news_of(self.id)) is not None and self._is_told(known):
                return known
            else:
                news = news_from_summary(handle.known(), handle.source)
        except JobError:
            return self._fold.news_of(self.id)
        self._fold.put(news)
        return news

    def _is_told(self, known: JobNews) -> bool:
        """Say whether the cluster needn't be asked how the job is: it was just now, or the job's master has answered, which runs."""
        now = self._clock()
        runs = known.state == "running" and not self._problem and now < self._heard_at + _HEARD_SECONDS
        return runs or now < self._asked_at + _ASK_SECONDS

    # --- the master -------------------------------------------------------------------------------------------------

    def _ask(self, news: JobNews) -> Problem | None:
        """Ask the job's master; return why what it says may be old. A job that is in no cluster, and whose files aren't here, has no master
        that could be asked."""
        if news.source:
            return self._ask_cluster(news)
        if not news.directory or not Path(news.directory).is_dir():
            return None
        over = self._fold.rows(self._clock())[self.id].over
        if over and self._status is not None and self._status.state == news.state:
            return None  # it says nothing more
        try:
            handle = self._its_handle(news)
            status = handle.status()
        except DlroverLiteError as error:
            return Problem("its master", error.message.partition("\n")[0], self._heard_at or self._clock())
        self._take_status(handle, status, over=over)
        return None

    def _take_status(self, handle: JobHandle, status: Status, *, over: bool) -> None:
        now = self._clock()
        self._status, self._heard_at = status, now
        self._fold.hear(self.id, status_of_master(status), now)
        self._nodes.put(status, hosts=handle.source != LOCAL)
        if not over and now - self._seldom_at >= _SELDOM_SECONDS:
            self._seldom_at = now
            self._ask_seldom(handle, status)

    def _ask_cluster(self, news: JobNews) -> Problem | None:
        """Ask the master of a cluster's job, less often: each question takes calls of its API server."""
        if self._clock() < self._asked_at + _ASK_SECONDS:
            return self._problem
        first, self._asked_at = not self._asked_at, self._clock()
        if first:
            return None  # what is known already is shown before anybody is waited for
        try:
            handle = self._its_handle(news)
            runs = self._heard_at > 0 and self._problem is None and not self._is_over()
            if not runs and (known := handle.known()).over:
                self._take_end(handle, known)
            else:
                self._hear(handle, runs=runs)
            self._problem = None
        except DlroverLiteError as error:
            since = self._heard_at or self._clock()
            self._problem = Problem("its master", error.message.partition("\n")[0], since)
        return self._problem

    def _is_over(self) -> bool:
        return self._status is not None and self._status.state in OVER

    def _hear(self, handle: JobHandle, *, runs: bool) -> None:
        """Ask the master, which costs the API server nothing where it has answered before. ``runs``: its job did when it was asked last;
        the cluster is asked how that has ended, if there is no answer. Raises DlroverLiteError where there is none from a job that isn't
        over."""
        status, failed = None, None
        try:
            status = handle.ask_status()
        except DlroverLiteError as error:
            failed = error
        if status is not None:
            self._take_status(handle, status, over=False)
        elif runs and (known := handle.known()).over:
            self._take_end(handle, known)
        elif failed is not None:
            raise failed

    def _take_end(self, handle: JobHandle, known: JobSummary) -> None:
        """Take how a cluster's job has ended; copy its history, which takes a pod, where nothing of it is here."""
        if (
            known.result is not None
            and known.result.status
            and (self._status is None or self._status.state != known.state)
        ):
            from dlrover_lite.jobs.final_status import final

            self._take_status(handle, final(handle.job, known.result), over=True)
        if self._stray and not self._is_copied:
            from dlrover_lite.client.job_history import copy

            self._is_copied = True
            copy(handle)

    def _its_handle(self, news: JobNews) -> JobHandle:
        if self._handle is None:
            from dlrover_lite.client.handle import JobHandle
            from dlrover_lite.client.job_sources import backend_at

            self._handle = JobHandle(news.id, backend_at(news.source))
        return self._handle

    def _ask_seldom(self, handle: JobHandle, status: Status) -> None:
        """Ask for what is seldom asked for. What fails here is asked for again, and what was known of it stays."""
        try:
            now = handle.autoscale()
            self._autoscale = _autoscale(now)
            self._autoscaling = Autoscaling(now.mode, now.paused, now.decision, now.what, now.under_way)
            if status.slot_map_version:
                self._slots = strips_of(handle.slots(_ALL_SLOTS), handle.slot_map(is_there=True))
        except DlroverLiteError:
            return


_ALL_SLOTS = 4096


def news_from_files(job: Job, known: JobSummary) -> JobNews:
    """Tell of a job that no brain knows. Raises JobError where its files are gone, or damaged."""
    recipe = job.recipe
    result = known.result if known.state != "lost" else None
    ended_at = result.ended_at if result else known.ended_at
    return JobNews(
        id=job.id,
        name=recipe.name,
        owner=_owner_of(job.directory),
        model=recipe.model.use,
        state=known.state,
        created_at=known.created_at,
        started_at=known.started_at,
        ended_at=ended_at if known.state in OVER else None,
        samples=0,
        message=result.message if result else "",
        directory=str(job.directory),
    )


def _owner_of(directory: Path) -> str:
    """Return the owner as brains name users; empty where there is no such directory."""
    try:
        return directory.owner()
    except KeyError:
        return str(directory.stat().st_uid)
    except OSError:
        return ""


def _autoscale(now: AutoscaleStatus) -> str:
    one = (
        f"{'carries out' if now.under_way else 'suggests'} {now.decision}: {now.what}"
        if now.decision is not None
        else ""
    )
    if now.paused:
        return f"paused: {now.paused}" + (f"; {one}" if one else "")
    return one or now.mode
