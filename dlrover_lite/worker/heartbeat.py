"""A worker's heartbeats: a thread tells the master that this process lives, and since when it has been at the same thing.

The thread goes on when training is stuck, so that the master can tell "stuck in minibatch 17" from "gone"; a process that is stopped, or
in a call that never releases the interpreter, falls silent.
"""

from __future__ import annotations

import threading
import time

from dlrover_lite.protocol.messages import Heartbeat, MasterReplies
from dlrover_lite.transport.connector import Connector

__all__ = ["HEARTBEAT_SECONDS", "HeartbeatSender"]

HEARTBEAT_SECONDS = 1.0


class HeartbeatSender:
    """Sends heartbeats within ``with``. ``mark`` says that something has got done."""

    def __init__(self, node: str, endpoint: str, *, connector: Connector) -> None:
        self._node, self._endpoint, self._connector = node, endpoint, connector
        self._mark = ("starting", time.monotonic(), 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def mark(self, doing: str, rows: int = 0) -> None:
        """Note what begins now. ``rows``: of an export, those that are written so far."""
        self._mark = (doing, time.monotonic(), rows)

    @property
    def doing(self) -> str:
        """What was begun last, as ``mark`` was told."""
        return self._mark[0]

    def __enter__(self) -> HeartbeatSender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        master = self._connector.client(self._endpoint, MasterReplies, peer="the master")
        try:
            while not self._ended.wait(HEARTBEAT_SECONDS):
                doing, since, rows = self._mark
                master.send(Heartbeat(self._node, doing, time.monotonic() - since, rows))  # not answered
        finally:
            master.close()
