"""The history of a brain that jobs share, asked for by who serves a job's files: that brain's key is mounted there, and nobody on a
workstation has it. No more is passed on than what is about the job, and what its decisions follow from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dlrover_lite.core.errors import DlroverLiteError, HistoryError, RemoteError, UsageError, WireError
from dlrover_lite.protocol.brain_mode import BRAIN_ADDRESS_VARIABLE, BRAIN_KEY_VARIABLE
from dlrover_lite.protocol.history_messages import (
    FittedJobsQuestion,
    HistoryAnswer,
    HistoryQuestion,
    InputsQuestion,
    JobsQuestion,
    KeptFittedJob,
    RowsPage,
)
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.curve import JobKey

__all__ = ["SharedHistory"]

_DEADLINE_SECONDS = 2.0
"""Seconds to wait for the brain's answer: who serves files has others to answer."""
_AGAIN_SECONDS = 30.0
"""Seconds before a brain that didn't answer is asked again."""


class SharedHistory:
    """What the brain at ``endpoint`` has of ``job``. Its key is read for each connection: the Secret may come later, or be replaced."""

    def __init__(self, job: str, endpoint: str, key_file: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._endpoint, self._key_file, self._clock = job, endpoint, key_file, clock
        self._connector: Connector | None = None
        self._client: Client | None = None
        self._again_at, self._problem = 0.0, ""

    @classmethod
    def of_this_process(cls) -> SharedHistory | None:
        """Return that of the brain which the environment names; None where it names none."""
        endpoint = os.environ.get(BRAIN_ADDRESS_VARIABLE)
        if not endpoint:
            return None
        return cls(os.environ["DLROVER_LITE_JOB"], endpoint, Path(os.environ[BRAIN_KEY_VARIABLE]))

    def ask(self, question: HistoryQuestion) -> msgspec.Struct:
        """Return the brain's answer. Raises HistoryError where it has none, or none comes."""
        self._check(question)
        if self._clock() < self._again_at:
            raise self._unknown(self._problem)
        try:
            answer: Any = self._connected().call(question, deadline_seconds=_DEADLINE_SECONDS).body
        except RemoteError as error:
            raise self._unknown(error.message) from error
        except (WireError, UsageError, OSError) as error:
            self.close()
            self._again_at = self._clock() + _AGAIN_SECONDS
            self._problem = error.message if isinstance(error, DlroverLiteError) else str(error)
            raise self._unknown(self._problem) from error
        return self._own_rows(answer) if isinstance(question, FittedJobsQuestion) else answer

    def close(self) -> None:
        if self._connector is not None:
            if self._client is not None:
                self._client.close()
            self._connector.close()
        self._connector = self._client = None

    def _check(self, question: HistoryQuestion) -> None:
        """Raise HistoryError for a question that isn't about the job."""
        about = question.id if isinstance(question, JobsQuestion) else getattr(question, "job", "")
        if about != self._job and not isinstance(question, FittedJobsQuestion | InputsQuestion):
            raise HistoryError(
                f"{type(question).__name__} isn't answered here: it isn't about {self._job} alone",
                hint="Ask the brain itself, in its pod.",
            )

    def _own_rows(self, page: RowsPage) -> RowsPage:
        """Return a page of fitted jobs without those of others."""
        return msgspec.structs.replace(
            page, rows=[row for row in page.rows if isinstance(row, KeptFittedJob) and row.job.id == self._job]
        )

    def _connected(self) -> Client:
        """Return a connection to the brain. Raises WireError, UsageError, OSError."""
        if self._client is None:
            key = JobKey.parse(self._key_file.read_text(encoding="ascii", errors="replace"), str(self._key_file))
            self._connector = Connector(key)
            self._client = self._connector.client(self._endpoint, HistoryAnswer, peer="the brain that jobs share")
        return self._client

    def _unknown(self, why: str) -> HistoryError:
        return HistoryError(
            f"The brain that {self._job} shares can't be asked: {why}",
            hint="Ask again when it is there: kubectl get pods -l app.kubernetes.io/component=brain",
        )
