"""Workers that ask which parameter servers own which slots, before all of these are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.protocol.messages import Topology, Wait
from dlrover_lite.transport.frames import Request

__all__ = ["TopologyRequests"]

STILL_READING_SECONDS = 10.0
"""Seconds after which a worker that waits for parameter servers is told that they read a checkpoint."""


@dataclass(eq=False)
class TopologyRequests:
    """Requests that are answered as soon as the map they ask for is durable, by ``reply``."""

    servers: ParameterServers
    reply: Callable[[Request, msgspec.Struct], None]
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._waiting: dict[int, Request] = {}
        self._since: dict[str, float] = {}

    def answer(self, node: str, request: Request, fleet: Fleet) -> Topology | Wait | None:
        """Return the map, or None while there is none. While a checkpoint is read, which may take longer than a worker waits in vain, it is
        told so now and then."""
        if (topology := self.servers.topology(fleet)) is not None:
            return topology
        now = self.clock()
        if self.servers.restore is not None and now - self._since.setdefault(node, now) >= STILL_READING_SECONDS:
            self._since[node] = now
            self._waiting.pop(request.session, None)
            return Wait(0.0)
        self._waiting[request.session] = request
        return None

    def answer_waiting(self, fleet: Fleet) -> None:
        """Answer those who wait for the map that has been committed."""
        if self._waiting and (topology := self.servers.topology(fleet)) is not None:
            for request in self._waiting.values():
                self.reply(request, topology)
            self._waiting.clear()
