"""The history of jobs, as whoever looks at it asks for it: the brain that runs (``brain_server.history_client``), or its files here."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Protocol, TypeVar

from dlrover_lite.brain.store.all_jobs import AllJobs
from dlrover_lite.brain.store.job_news import news_of_job
from dlrover_lite.brain.store.pages import answer
from dlrover_lite.brain.store.reader import Reader
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


class FileHistory(Reader):
    """The history out of the database at ``path``, which is read only; empty while there is none."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._jobs = AllJobs()
        self._source = ""
        """Names what is open to those who are told news: random; empty while there is no database."""
        self._moment = 0
        """Number of changes of the database that were noticed since it was opened."""
        self._version = -1

    def ask(self, question: HistoryQuestion, kind: type[A]) -> A:
        with self.opened() as anew:
            if anew:
                self._begin()
            found = self._answer(question)
        assert isinstance(found, kind)
        return found

    def _begin(self) -> None:
        self._jobs = AllJobs()
        self._source = secrets.token_hex(8) if self.is_there else ""
        self._moment, self._version = 0, -1

    def _answer(self, question: HistoryQuestion) -> HistoryAnswer:
        match question:
            case JobsNewsQuestion():
                self._look()
                if self._jobs.is_behind(self._moment) and not self._jobs.look(self.execute, self._moment):
                    self._begin()  # rows that were told are gone: nobody knows which
                    self._look()
                    self._jobs.look(self.execute, self._moment)
                return self._jobs.news(self.execute, self._source, question.seen)
            case JobNewsQuestion():
                self._look()
                return news_of_job(self.execute, self._source, self._moment, question)
            case _:
                return answer(self.execute, question)

    def _look(self) -> None:
        """Notice whether anything has been committed since."""
        for (version,) in self.execute("pragma data_version"):
            self._moment += version != self._version
            self._version = version
