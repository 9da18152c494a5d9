"""The config database, read only: whoever reads neither makes nor migrates the file, and never keeps a writer waiting."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dlrover_lite.core.errors import HistoryError

__all__ = ["Reader", "decoded"]

T = TypeVar("T")


class Reader:
    """The database at ``path``, which may come later. One thread at a time.

    Every question raises HistoryError when the file can't be read; the next one opens it anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._opened_file: tuple[int, int] | None = None

    def _file(self) -> tuple[int, int] | None:
        """Say which file is there: a person may move it away."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    @property
    def is_there(self) -> bool:
        """Whether there is a database, within ``opened``."""
        return self._connection is not None

    def close(self) -> None:
        """Close the database; the next question opens it again."""
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

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        """Find rows; none where there is no database."""
        return () if self._connection is None else self._connection.execute(statement, values)


def decoded(text: str, kind: type[T]) -> T:
    """Decode stored JSON. Raises HistoryError for what can't be understood."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise HistoryError(
            f"What the brain has stored can't be understood: {error}",
            hint="It was stored by another version of dlrover-lite, or edited by hand.",
        ) from error
