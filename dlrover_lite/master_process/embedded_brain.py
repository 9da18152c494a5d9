"""The brain in a job's own master: the same service over the same messages, on a thread instead of in a process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.core.errors import BrainError, DlroverLiteError
from dlrover_lite.transport.connector import Connector

__all__ = ["EmbeddedBrain"]

_ENDPOINT = "inproc://brain"


class EmbeddedBrain:
    """Begins at once, and ends with ``close``. Several jobs' brains, and a daemon, share the database."""

    def __init__(self, connector: Connector, *, say: Callable[[str], None], files: BrainFiles | None = None) -> None:
        self._connector = connector
        self._say = say
        self._files = files or BrainFiles()
        self._stop = threading.Event()
        self._why = ""
        self._thread = threading.Thread(target=self._run, name="brain", daemon=True)
        self._thread.start()

    def find(self) -> str:
        """Return where the brain listens, or is about to. Raises BrainError when it has ended."""
        if self._why:
            raise BrainError(self._why)
        return _ENDPOINT

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop the brain. What it has answered is in the database already."""
        self._stop.set()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        from dlrover_lite.brain.store.database import ConfigStore
        from dlrover_lite.brain_server.daemon import look_at
        from dlrover_lite.brain_server.decision_thread import DecisionThread
        from dlrover_lite.brain_server.service import Service
        from dlrover_lite.protocol.brain_messages import BrainRequests

        try:
            with ExitStack() as stack:
                self._files.make()
                store = ConfigStore(self._files.database)
                stack.callback(store.close)
                server = self._connector.server(_ENDPOINT, BrainRequests, remember_replies=True)
                stack.callback(server.close)
                decisions = DecisionThread(self._files.database, say=self._say)
                stack.callback(decisions.close)
                service = Service(
                    server,
                    store,
                    look=look_at,
                    advise=decisions.advice,
                    tell=decisions.told,
                    embedded=True,
                    say=self._say,
                )
                self._why = service.run(lambda: "the job has ended" if self._stop.is_set() else "")
        except DlroverLiteError as error:
            self._why = str(error).replace("\n", " ")
            self._say(f"the brain has ended: {self._why}")
