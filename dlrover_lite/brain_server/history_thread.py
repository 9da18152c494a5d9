"""The brain's answers about the history, on a thread of its own: with a socket and a connection of its own, read only, so that neither
reports nor decisions wait for who looks."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec

from dlrover_lite.brain.store.history import FileHistory
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.protocol.brain_messages import REFUSED
from dlrover_lite.protocol.history_messages import HistoryQuestion
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Failure, Request
from dlrover_lite.transport.polling import wait_for_messages
from dlrover_lite.transport.server import Server

__all__ = ["HistoryThread"]

_LONGEST_WAIT_SECONDS = 3600.0


class HistoryThread:
    """Answers over the database at ``path``, from ``start`` on, until ``close``. Questions may be repeated: nothing is kept of them."""

    def __init__(self, connector: Connector, endpoint: str, path: Path) -> None:
        """Raises WireError where nobody can listen."""
        self._server: Server = connector.server(endpoint, HistoryQuestion)
        self._history = FileHistory(path)
        self._woken, self._wake = os.pipe()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self.endpoint = self._server.endpoint

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_seconds: float = 5.0) -> None:
        self._closing = True
        os.write(self._wake, b"!")
        self._thread.join(timeout_seconds)
        os.close(self._wake)

    def _run(self) -> None:
        try:
            while not self._closing:
                wait_for_messages([*self._server.sockets, self._woken], _LONGEST_WAIT_SECONDS)
                for request in self._server.receive(0.0):
                    self._server.reply(request, self._attempt(request))
        finally:
            self._server.close()
            self._history.close()
            os.close(self._woken)

    def _attempt(self, request: Request) -> msgspec.Struct:
        try:
            found = self._server.attempt(request, lambda one: self._history.ask(one.body, msgspec.Struct))
        except DlroverLiteError as error:
            return Failure(REFUSED, error.message, error.hint)
        return found or Failure(REFUSED, f"{type(request.body).__name__} makes no sense")
