"""The history that the brain of a job's master keeps, as it is asked for from outside of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dlrover_lite.core.errors import JobError, RemoteError, WireError
from dlrover_lite.jobs.backend import Address
from dlrover_lite.protocol.history_messages import HistoryAnswer, HistoryQuestion
from dlrover_lite.transport.client import Client

__all__ = ["PodHistory"]

A = TypeVar("A")
_DEADLINE_SECONDS = 20.0


class PodHistory:
    """``History`` of one job. ``where``: finds the pod that has the job's files, and raises JobError where there is none. Raises JobError
    where it can't be asked."""

    def __init__(self, where: Callable[[], Address]) -> None:
        self.path = Path("brain.sqlite")
        self._where = where
        self._client: Client | None = None

    def ask(self, question: HistoryQuestion, kind: type[A]) -> A:
        is_new = self._client is None
        try:
            return self._ask(question, kind)
        except RemoteError as error:
            raise _unknown(error) from error
        except WireError as error:
            self.close()
            if is_new:
                raise _unknown(error) from error
        try:  # another pod may have the files by now, as when the job has ended
            return self._ask(question, kind)
        except WireError as error:
            self.close()
            raise _unknown(error) from error

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, question: HistoryQuestion, kind: type[A]) -> A:
        if self._client is None:
            endpoint, connector = self._where()
            self._client = connector.client(endpoint, HistoryAnswer, peer="the pod with the job's history")
        found: Any = self._client.call(question, deadline_seconds=_DEADLINE_SECONDS).body
        if not isinstance(found, kind):
            raise WireError(f"{type(question).__name__} was answered with {type(found).__name__}")
        return found


def _unknown(error: WireError) -> JobError:
    return JobError(f"The job's history can't be read: {error.message}", hint=error.hint)
