"""The history, watched: each look tells only what is new since the one before, and is one short question while nothing is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TypeVar

from msgspec.structs import replace

from dlrover_lite.brain.store.history import History
from dlrover_lite.protocol.history_messages import (
    JobNewsPage,
    JobNewsQuestion,
    JobSeen,
    JobsNewsPage,
    JobsNewsQuestion,
    JobsSeen,
)
from dlrover_lite.protocol.news import JobNews, WatchedJob, WatchedJobs

__all__ = ["JobWatch", "Watch"]

P = TypeVar("P", JobNewsPage, JobsNewsPage)
W = TypeVar("W", WatchedJob, WatchedJobs)


class Watch:
    """A watch of all jobs."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._seen = JobsSeen()

    def look(self) -> WatchedJobs:
        """Tell what is new of all jobs; at first, and ``anew``, all there is. Raises HistoryError; the next look tells what this one would
        have."""
        pages = _pages(self._history, JobsNewsQuestion(self._seen), JobsNewsPage)
        self._seen = pages[-1].seen
        return _together(WatchedJobs, [page.news for page in pages])


class JobWatch:
    """A watch of one ``job``."""

    def __init__(self, history: History, job: str) -> None:
        self.job = job
        self._history = history
        self._seen = JobSeen()
        self._told: JobNews | None = None

    def look(self) -> WatchedJob:
        """Tell what is new since the last look; at first, and ``anew``, all there is. Raises as ``Watch.look``."""
        pages = _pages(self._history, JobNewsQuestion(self.job, self._seen), JobNewsPage)
        self._seen = pages[-1].seen
        news = _together(WatchedJob, [page.news for page in pages])
        if news.jobs:
            newest = news.jobs[-1]
            news = replace(news, jobs=(newest,) if news.anew or newest != self._told else ())
            self._told = newest
        return news


def _pages(history: History, question: JobNewsQuestion | JobsNewsQuestion, kind: type[P]) -> list[P]:
    """Ask until all has been told."""
    pages = [history.ask(question, kind)]
    while pages[-1].more:
        pages.append(history.ask(replace(question, seen=pages[-1].seen), kind))
    return pages


def _together(kind: type[W], parts: Sequence[W]) -> W:
    """Put the parts of a look together: those since the last that is told anew."""
    if len(parts) == 1:
        return parts[0]
    last = max((at for at, part in enumerate(parts) if part.anew), default=0)
    names = kind.__struct_fields__[1:]
    lists = (tuple(chain.from_iterable(getattr(part, name) for part in parts[last:])) for name in names)
    return kind(parts[last].anew, *lists)
