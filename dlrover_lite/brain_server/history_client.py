"""The history, asked of the brain that runs, which alone needs to reach the database; its files are read while no brain answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dlrover_lite.brain.store.history import FileHistory, History
from dlrover_lite.brain_server.files import BrainFiles, BrainRecord
from dlrover_lite.core.errors import RemoteError, WireError
from dlrover_lite.core.processes.identity import is_foreign
from dlrover_lite.protocol.history_messages import HistoryAnswer, HistoryQuestion

if TYPE_CHECKING:  # it brings zmq along, which is of no use where no brain runs
    from dlrover_lite.transport.connector import Connector

__all__ = ["BrainHistory", "RemoteHistory", "up_to_date"]

A = TypeVar("A")

ANSWER_SECONDS = 1.0
"""Seconds to wait for an answer: then the files are read, which say the same."""
_AGAIN_SECONDS = 10.0
"""Seconds before a brain that didn't answer is asked again."""


class RemoteHistory:
    """The history that is asked for at ``endpoint``, with a connector of its own. ``path``: where the brain has its database."""

    def __init__(self, connector: Connector, endpoint: str, path: Path) -> None:
        self.path = path
        self._connector = connector
        self._client = connector.client(endpoint, HistoryAnswer, peer="the brain")

    def ask(self, question: HistoryQuestion, kind: type[A]) -> A:
        """Return the brain's answer. Raises WireError where none comes, RemoteError where it has none."""
        found = self._client.call(question, deadline_seconds=ANSWER_SECONDS).body
        if not isinstance(found, kind):
            raise WireError(f"The brain answered with {type(found).__name__}")
        return found

    def close(self) -> None:
        self._client.close()
        self._connector.close()


class BrainHistory:
    """The history of the brain with these files: it is asked while it lives and answers; else ``read`` opens its database."""

    def __init__(
        self,
        files: BrainFiles,
        *,
        read: Callable[[Path], History] = FileHistory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = files.database
        self._files = files
        self._read = read
        self._clock = clock
        self._from_files: History | None = None
        self._from_brain: RemoteHistory | None = None
        self._record: BrainRecord | None = None
        """Record of the brain that is asked, or was last."""
        self._again_at = 0.0
        """Time on the clock before which that brain isn't asked."""

    def ask(self, question: HistoryQuestion, kind: type[A]) -> A:
        if (brain := self._brain()) is not None:
            try:
                return brain.ask(question, kind)
            except WireError as error:
                from dlrover_lite.transport.frames import NOT_UNDERSTOOD

                self._hang_up()
                knows_less = isinstance(error, RemoteError) and error.code == NOT_UNDERSTOOD
                self._again_at = math.inf if knows_less else self._clock() + _AGAIN_SECONDS
        if self._from_files is None:
            self._from_files = self._read(self.path)
        return self._from_files.ask(question, kind)

    def _brain(self) -> RemoteHistory | None:
        """Return the brain that is to be asked; None: none lives, or it is one that doesn't answer."""
        if not self._files.lives():
            self._hang_up()
            return None
        if self._from_brain is None:
            record = self._files.record()
            if record is None or not record.history or is_foreign(record.process):
                return None
            if record == self._record and self._clock() < self._again_at:
                return None
            from dlrover_lite.transport.connector import Connector

            self._record = record
            self._from_brain = RemoteHistory(Connector(), record.history, self.path)
        return self._from_brain

    def _hang_up(self) -> None:
        if self._from_brain is not None:
            self._from_brain.close()
            self._from_brain = None

    def close(self) -> None:
        self._hang_up()
        if self._from_files is not None:
            self._from_files.close()
            self._from_files = None

    def __enter__(self) -> BrainHistory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def up_to_date(path: Path) -> FileHistory:
    """Open the database to be read, brought up to date first if an older version has written it. Raises HistoryError where it isn't one of
    ours, or of a newer version."""
    if path.exists():
        from dlrover_lite.brain.store.database import ConfigStore

        ConfigStore(path).close()
    return FileHistory(path)
