"""Learning newer slot maps from the master while everything else goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from dlrover_lite.core.errors import JobError
from dlrover_lite.protocol.messages import MasterReplies, Topology, TopologyRequest
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Failure

__all__ = ["MapAsker"]

REPEAT_SECONDS = 0.5
"""Seconds until a master that was restarted is asked again; an answer takes it milliseconds."""


class MapAsker:
    """Asks for the slot map, one request at a time, whose answer nobody waits for. Not for several threads."""

    def __init__(
        self, node: str, endpoint: str, *, connector: Connector, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._node = node
        self._clock = clock
        self._client = connector.client(endpoint, MasterReplies, peer="the master", clock=clock)
        self.socket = self._client.socket
        """Socket that is readable when an answer may be there."""
        self._sequence: int | None = None
        self._sent_at = 0.0
        self.waiting = False
        """Whether an answer is still to come."""

    def ask(self, *, anew: bool = False) -> None:
        """Ask for the map, unless an answer is still to come; ``anew``: whatever is still to come may be too old."""
        if anew or not self.waiting:
            self._sequence = None
            self._send()

    def receive(self) -> Topology | None:
        """Return the map, if the answer is there. Raises JobError when the master refuses."""
        while (reply := self._client.receive(0)) is not None:
            if reply.sequence != self._sequence:
                continue
            if isinstance(reply.body, Failure):
                raise JobError(f"the master gives no slot map: {reply.body.message}", hint=reply.body.hint)
            if isinstance(reply.body, Topology) and reply.body.version:
                self.waiting = False
                return reply.body
            self._sequence = None  # it doesn't know yet: a repetition might be answered from its memory
        return None

    def repeat(self) -> None:
        """Ask again if it is time to."""
        if self.waiting and self._clock() - self._sent_at >= REPEAT_SECONDS:
            self._send()

    def close(self) -> None:
        self._client.close()

    def _send(self) -> None:
        self._sequence = self._client.send(TopologyRequest(self._node), sequence=self._sequence)
        self._sent_at = self._clock()
        self.waiting = True
