"""Jobs of clusters, as their lists and their masters tell of them. Each cluster is asked by threads of its own: one that doesn't answer
holds up nothing else."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.jobs.backend import JobBackend, JobSummary
from dlrover_lite.protocol.news import JobNews
from dlrover_lite.tui.model import OVER, HostRow, Problem
from dlrover_lite.tui.pages.detail import status_of_master
from dlrover_lite.tui.sources.poller import Feed
from dlrover_lite.tui.view_state import LocalStatus

if TYPE_CHECKING:
    from dlrover_lite.brain.store.database import ConfigStore
    from dlrover_lite.brain.store.merge import JobMerge

__all__ = ["Cluster", "LiveCluster", "NamedCluster", "hosts_of", "news_from_summary"]

_PERIOD_SECONDS = 3.0
"""Seconds between two looks at a cluster's list, and at the masters of those of its jobs that run."""
_SILENT_SECONDS = 15.0
"""Seconds without an answer after which a cluster doesn't answer."""
_AGAIN_SECONDS = 30.0
"""Seconds for which a master that hasn't answered isn't asked again."""
_HOSTS_SECONDS = 60.0
"""Seconds between two looks at the hosts of a cluster."""
_MOST_ASKED = 20
"""The most masters that are asked, those of the newest jobs."""


class Cluster(JobBackend, Protocol):
    """What runs the jobs of a cluster."""

    def summaries(self) -> Sequence[JobSummary]:
        """Return how all jobs are, the oldest first."""


class NamedCluster(NamedTuple):
    name: str
    """Name of the source."""
    connect: Callable[[], Cluster]
    """Reaches it. Raises DlroverLiteError."""


class LiveCluster:
    """One cluster. ``opened`` opens this machine's history, where the history of its jobs is copied to."""

    def __init__(
        self,
        cluster: NamedCluster,
        opened: Callable[[], ConfigStore],
        *,
        period_seconds: float = _PERIOD_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = cluster.name
        self._connect, self._opened, self._clock = cluster.connect, opened, clock
        self._begun_at = clock()
        self._listed_at: float | None = None
        self._running: tuple[str, ...] = ()
        self._merges: dict[str, JobMerge] = {}
        self._asked_again_at: dict[str, float] = {}
        self.heard: dict[str, tuple[LocalStatus, float]] = {}
        """What the masters have said last, and when, by job; another thread adds to it."""
        self.hosts: tuple[HostRow, ...] = ()
        """Hosts of the cluster; empty: it hasn't told, or mayn't. Another thread replaces it."""
        self._hosts_at = -math.inf
        self.asked = threading.Event()
        """The first list has come, or can't be had."""
        self._lists: Feed[tuple[JobSummary, ...]] = Feed(
            self._list, lambda: None, name="cluster", period_seconds=period_seconds
        )
        self._masters: Feed[None] = Feed(self._ask, lambda: None, name="masters", period_seconds=period_seconds)

    def start(self) -> None:
        self._lists.start()
        self._masters.start()

    def stop(self) -> None:
        for feed in (self._lists, self._masters):
            feed.stop(0.0)

    def unknown(self) -> tuple[JobSummary, ...]:
        """Return the jobs that this machine's history doesn't have."""
        self._masters.take()  # it raises what ended that thread
        return self._lists.take() or ()

    def problem(self) -> Problem | None:
        """Return why what is known of it may be old; None: it answers."""
        since = self._begun_at if self._listed_at is None else self._listed_at
        if why := self._lists.problem:
            return Problem(self.name, why, since)
        silent = self._clock() - since > _SILENT_SECONDS
        return Problem(self.name, "it doesn't answer", since) if silent else None

    # --- on threads of its own ---------------------------------------------------------------------------------------

    def _list(self) -> tuple[JobSummary, ...]:
        from dlrover_lite.client.job_history import settle

        try:
            summaries = self._connect().summaries()
            self._running = tuple(one.id for one in summaries if one.state == "running" and not one.over)
            with self._opened() as store:
                missing = set(settle(store, self.name, summaries))
            self._listed_at = self._clock()
            if self._listed_at - self._hosts_at >= _HOSTS_SECONDS:
                self.hosts, self._hosts_at = hosts_of(self.name, self._connect()), self._listed_at
        finally:
            self.asked.set()
        found = tuple(one for one in summaries if one.id in missing)
        known = self._lists.take()
        return known if known == found else found

    def _ask(self) -> None:
        """Ask the masters of jobs that run how they are, and copy what is new of their history."""
        for job in self._running[: -_MOST_ASKED - 1 : -1]:
            if self._clock() < self._asked_again_at.get(job, 0.0):
                continue
            try:
                self._ask_one(job)
            except DlroverLiteError:  # its row says that it is silent
                self._asked_again_at[job] = self._clock() + _AGAIN_SECONDS

    def _ask_one(self, job: str) -> None:
        from dlrover_lite.brain.store.merge import JobMerge
        from dlrover_lite.client.handle import JobHandle

        backend = self._connect()
        status = JobHandle(job, backend).ask_status()
        if status is not None:
            self.heard[job] = status_of_master(status), self._clock()
        merge = self._merges.get(job)
        if merge is None:
            history = backend.history(job)
            if history is None:
                return
            merge = self._merges[job] = JobMerge(history, job, self.name)
        with self._opened() as store:
            merge.look(store)


def hosts_of(source: str, backend: JobBackend) -> tuple[HostRow, ...]:
    """Return the hosts that jobs run on there; () where that can't be told."""
    try:
        there = backend.capacity()
    except DlroverLiteError:
        return ()
    return tuple(HostRow(source, one.name, one.resources.cores, one.resources.memory) for one in there)


def news_from_summary(known: JobSummary, source: str) -> JobNews:
    """Tell of a job of a cluster that this machine's history doesn't have."""
    result = known.result
    return JobNews(
        id=known.id,
        name=known.id.rpartition("-")[0] or known.id,
        owner="",
        model="",
        state=known.state,
        created_at=known.created_at,
        started_at=known.started_at,
        ended_at=known.ended_at if known.state in OVER else None,
        samples=0,
        message=result.message if result else known.waits_for,
        directory="",
        source=source,
    )
