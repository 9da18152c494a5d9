"""The config database, watched: each look tells only what is new since the one before.

Read only: it neither makes nor migrates the file, and never keeps a writer waiting. While nothing has been committed a look costs one
pragma. Columns are decoded when they have changed, and only as far as they are shown.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.news import (
    DecisionNews,
    JobNews,
    PlanNews,
    RateNews,
    WatchedJobs,
)
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan

__all__ = ["JOB_COLUMNS", "Reader", "Watch", "decoded", "job_news"]

T = TypeVar("T")

RATES = 60
"""Number of intervals of each job that the first look tells, the newest."""
_LIVE = ("starting", "running", "queued")
JOB_COLUMNS = "id, name, owner, model, state, created_at, started_at, ended_at, samples, message, directory, outcome"


class Reader:
    """The database at ``path``, which may come later. One thread at a time.

    Every look raises HistoryError when the file can't be read; the next one opens it anew, and tells everything again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._version = -1
        self._opened_file: tuple[int, int] | None = None

    def _file(self) -> tuple[int, int] | None:
        """Say which file is there: a person may move it away."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Close the database; the next look opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def opened(self) -> Iterator[bool]:
        """Open the database if need be, and yield whether it was opened just now. All questions are about the same moment; errors become
        HistoryError."""
        try:
            file = self._file()
            anew = self._connection is None or file != self._opened_file
            if anew:
                self.close()
                if file is not None:
                    uri = f"{self.path.absolute().as_uri()}?mode=ro"
                    self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
                self._opened_file = file
            if self._connection is not None:
                self._connection.execute("begin")
            yield anew
            if self._connection is not None:
                self._connection.execute("rollback")
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise HistoryError(
                f"{self.path} can't be read: {error}", hint="See: dlrover-lite brain status, which says what is wrong."
            ) from error
        except HistoryError:
            self.close()
            raise

    def changed(self, anew: bool) -> bool:
        """Say whether anything has been committed since this was asked last; False where there is no database."""
        if self._connection is None:
            return False
        (version,) = self.one("pragma data_version")
        before, self._version = self._version, version
        return anew or version != before

    def all(self, question: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        return self._connection.execute(question, values).fetchall()

    def one(self, question: str) -> tuple[Any, ...]:
        (row,) = self.all(question)
        return row


class Watch(Reader):
    """A watch of all jobs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._seen: dict[str, tuple[Any, ...]] = {}
        self._rates = self._plans = self._decisions = 0
        """The highest rowid seen of each table."""

    def look(self) -> WatchedJobs:
        """Tell what is new of all jobs; nothing where there is no database."""
        with self.opened() as anew:
            if self._connection is None:
                gone, self._seen = tuple(self._seen), {}
                return WatchedJobs(gone=gone)
            if not self.changed(anew):
                return WatchedJobs()
            if anew or self._was_rewritten():
                self._forget()
                anew = True
            return self._look(anew)

    def _look(self, anew: bool) -> WatchedJobs:
        jobs, gone = self._jobs()
        live = [job.id for job in jobs if job.state in _LIVE]
        return WatchedJobs(
            anew=anew,
            jobs=tuple(jobs),
            gone=tuple(gone),
            rates=tuple(self._first_rates(live) if anew else self._new_rates()),
            plans=tuple(self._new_plans()),
            decisions=tuple(self._new_decisions(anew)),
        )

    # --- all jobs ---------------------------------------------------------------------------------------------------

    def _jobs(self) -> tuple[list[JobNews], list[str]]:
        changed, there = [], set()
        for row in self.all(f"select {JOB_COLUMNS} from jobs"):
            there.add(row[0])
            if self._seen.get(row[0]) != row:
                self._seen[row[0]] = row
                changed.append(job_news(row))
        gone = [job for job in self._seen if job not in there] if len(there) < len(self._seen) else []
        for job in gone:
            del self._seen[job]
        return changed, gone

    def _first_rates(self, live: Sequence[str]) -> Iterator[RateNews]:
        """Tell the newest few intervals of jobs that run: those that have ended may have a month of them."""
        (self._rates,) = self.one("select coalesce(max(rowid), 0) from profiles")
        question = "select job, at, seconds, samples_per_second from profiles where job = ? order by at desc limit ?"
        for job in live:
            yield from (RateNews(*row) for row in self.all(question, (job, RATES))[::-1])

    def _new_rates(self) -> Iterator[RateNews]:
        question = "select rowid, job, at, seconds, samples_per_second from profiles where rowid > ? order by rowid"
        for rowid, *row in self.all(question, (self._rates,)):
            self._rates = rowid
            yield RateNews(*row)

    def _new_plans(self) -> Iterator[PlanNews]:
        question = "select id, job, at, data from plans where id > ? and kind = 'granted' order by id"
        for number, job, at, data in self.all(question, (self._plans,)):
            self._plans = number
            yield PlanNews(job, at, decoded(data, Plan))

    def _new_decisions(self, anew: bool) -> Iterator[DecisionNews]:
        columns = "rowid, job, number, at, action, reason"
        if anew:  # bare columns of a max() are those of its row
            question = f"select {columns}, max(number) from decisions where rowid > ? group by job order by rowid"
        else:
            question = f"select {columns}, number from decisions where rowid > ? order by rowid"
        for rowid, *row, _ in self.all(question, (self._decisions,)):
            self._decisions = max(self._decisions, rowid)
            yield DecisionNews(*row)

    def _was_rewritten(self) -> bool:
        """Say whether rows that were seen aren't there any more: pruned to the last one, or another file in its place."""
        for table, column, seen in (("profiles", "rowid", self._rates), ("plans", "id", self._plans)):
            if self.one(f"select coalesce(max({column}), 0) from {table}")[0] < seen:
                return True
        return False

    def _forget(self) -> None:
        self._seen.clear()
        self._rates = self._plans = self._decisions = 0


def job_news(row: tuple[Any, ...]) -> JobNews:
    """Make news of a row of ``JOB_COLUMNS``."""
    fields = (*row[:-1], decoded(row[-1], JobOutcome))
    return JobNews(*fields)


def decoded(text: str, kind: type[T]) -> T:
    """Decode stored JSON. Raises HistoryError for what can't be understood."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise HistoryError(
            f"What the brain has stored can't be understood: {error}",
            hint="It was stored by another version of dlrover-lite, or edited by hand.",
        ) from error
