"""The history of jobs, as whoever looks at it asks for it: the brain that runs (``brain_server.history_client``), or its files here."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dlrover_lite.brain.store.all_jobs import AllJobs
from dlrover_lite.brain.store.job_news import news_of_job
from dlrover_lite.brain.store.pages import answer
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.history_messages import (
    HistoryAnswer,
    HistoryQuestion,
    JobNewsQuestion,
    JobsNewsQuestion,
    RowsQuestion,
)

__all__ = ["FileHistory", "History", "Rows"]

A = TypeVar("A")


class Rows(Protocol):
    """Answers questions for rows (``queries``). ``path`` is where the database is that they are from."""

    path: Path

    def ask(self, question: RowsQuestion, kind: type[A]) -> A:
        """Return the answer, which is of this kind. Raises HistoryError when the history can't be read."""


class History(Protocol):
    """Answers all questions, for news too (``watch``). For one thread at a time."""

    path: Path

    def ask(self, question: HistoryQuestion, kind: type[A]) -> A:
        """Return the answer, which is of this kind. Raises HistoryError when the history can't be read."""

    def close(self) -> None:
        """Close what is open. Who asks again opens it again."""


class FileHistory:
    """The history out of the database at ``path``, which is read only; empty while there is none. One thread at a time.

    Who reads neither makes nor migrates the file, and never keeps a writer waiting. Every question raises HistoryError when the file can't
    be read; the next one opens it anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._opened_file: tuple[int, int] | None = None
        self._jobs = AllJobs()
        self._source = ""
        """Names what is open to those who are told news: random; empty while there is no database."""
        self._moment = 0
        """Number of changes of the database that were noticed since it was opened."""
        self._version = -1

    def ask(self, question: HistoryQuestion, kind: type[A]) -> A:
        with self._opened():
            found = self._answer(question)
        assert isinstance(found, kind)
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _file(self) -> tuple[int, int] | None:
        """Say which file is there: a person may move it away."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Open the database if need be. All questions are about the same moment; errors become HistoryError."""
        try:
            file = self._file()
            if self._connection is None or file != self._opened_file:
                self.close()
                if file is not None:
                    uri = f"{self.path.absolute().as_uri()}?mode=ro"
                    self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
                self._opened_file = file
                self._begin()
            if self._connection is not None:
                self._connection.execute("begin")
            yield
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

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        """Find rows; none where there is no database."""
        return () if self._connection is None else self._connection.execute(statement, values)

    def _begin(self) -> None:
        self._jobs = AllJobs()
        self._source = "" if self._connection is None else secrets.token_hex(8)
        self._moment, self._version = 0, -1

    def _answer(self, question: HistoryQuestion) -> HistoryAnswer:
        match question:
            case JobsNewsQuestion():
                self._look()
                if self._jobs.moment != self._moment and not self._jobs.look(self._execute, self._moment):
                    self._begin()  # rows that were told are gone: nobody knows which
                    self._look()
                    self._jobs.look(self._execute, self._moment)
                return self._jobs.news(self._execute, self._source, question.seen)
            case JobNewsQuestion():
                self._look()
                return news_of_job(self._execute, self._source, self._moment, question)
            case _:
                return answer(self._execute, question)

    def _look(self) -> None:
        """Notice whether anything has been committed since."""
        for (version,) in self._execute("pragma data_version"):
            self._moment += version != self._version
            self._version = version
