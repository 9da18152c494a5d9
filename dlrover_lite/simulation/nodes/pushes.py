"""A simulated worker's pushes: to the servers that own the slots by its map, and to others when slots have moved, until all are applied.

The rules are those of ``worker.parameters.client``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dlrover_lite.core import slot_sets
from dlrover_lite.protocol.messages import Topology
from dlrover_lite.protocol.ps_messages import Moved, Pushed
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, mask_of, to_bitmap
from dlrover_lite.simulation.nodes.messages import PushGradients, ServerReplies

if TYPE_CHECKING:
    from dlrover_lite.transport.memory import MemoryClient, MemoryConnector

__all__ = ["Pushes", "SlotMap"]

_RETRY_SECONDS = 0.5
"""Seconds until a server that hasn't answered is asked again, and the master for a newer map."""
_MOVED_SECONDS = 0.02
"""Seconds until a server that follows the same map, and has turned a push away, is asked again."""


@dataclass(frozen=True)
class SlotMap:
    """One version of the map."""

    version: int
    endpoints: dict[str, str]
    """Endpoint of each server that owns slots."""
    masks: dict[str, int]
    """Slots of each server."""

    @classmethod
    def of(cls, topology: Topology) -> SlotMap:
        owners = np.frombuffer(topology.slots, "<u2")
        masks = {name: mask_of(slot_sets.pack(owners == at)) for at, (name, _) in enumerate(topology.ps)}
        return cls(topology.version, dict(topology.ps), masks)


@dataclass(eq=False)
class _Push:
    epoch: int
    start: int
    stop: int
    then: Callable[[float], None]
    """Is told how many seconds the push has taken, once all servers have it."""
    began_at: float
    missing: int = 0
    """Number of pieces without an answer."""


@dataclass(eq=False)
class _Piece:
    """What is asked of one server."""

    push: _Push
    slots: int
    server: str
    version: int
    """Version of the map by which the server owns the slots."""
    sent_at: float = 0.0


@dataclass(eq=False)
class _Link:
    endpoint: str
    client: MemoryClient
    unanswered: dict[int, _Piece] = field(default_factory=dict)


class Pushes:
    """``ask_map`` asks for the map, which is brought by ``follow``, or ``no_newer`` when there is no newer one."""

    def __init__(
        self, connector: MemoryConnector, clock: Callable[[], float], ask_map: Callable[[], None], topology: Topology
    ) -> None:
        self.map = SlotMap.of(topology)
        self.under_way: list[_Push] = []
        self._connector, self._clock, self._ask_map = connector, clock, ask_map
        self._links: dict[str, _Link] = {}
        self._homeless: list[_Piece] = []
        """Pieces turned away by a server that knows a newer map."""
        self._later: list[tuple[float, _Piece]] = []
        """Pieces to be sent again, with the time to do so."""
        self._connect()

    def begin(self, epoch: int, start: int, stop: int, then: Callable[[float], None]) -> None:
        """Push the gradients of minibatches [start, stop)."""
        push = _Push(epoch, start, stop, then, self._clock(), missing=1)
        self.under_way.append(push)
        self._dispatch(_Piece(push, ALL_SLOTS, "", -1))

    def work(self) -> None:
        """Take the answers that have come, and repeat what has had none."""
        for link in list(self._links.values()):
            while (reply := link.client.receive()) is not None:
                if (piece := link.unanswered.pop(reply.sequence, None)) is not None:
                    self._take(piece, reply.body)
        now = self._clock()
        due = [piece for at, piece in self._later if at <= now]
        self._later = [(at, piece) for at, piece in self._later if at > now]
        for piece in due:
            self._dispatch(piece)
        for link in self._links.values():
            for sequence, piece in link.unanswered.items():
                if now >= piece.sent_at + _RETRY_SECONDS:
                    link.client.send(_body(piece), sequence=sequence)
                    piece.sent_at = now
                    self._ask_map()

    @property
    def next_at(self) -> float:
        """When something is to be sent again."""
        again = [piece.sent_at + _RETRY_SECONDS for link in self._links.values() for piece in link.unanswered.values()]
        return min([*again, *(at for at, _ in self._later)], default=math.inf)

    def follow(self, topology: Topology) -> None:
        """Take over a map, if it is a newer one."""
        homeless, self._homeless = self._homeless, []
        if topology.version <= self.map.version:
            self._later += [(self._clock() + _MOVED_SECONDS, piece) for piece in homeless]
            return
        self.map = SlotMap.of(topology)
        for name, link in list(self._links.items()):
            if self.map.endpoints.get(name) != link.endpoint:
                homeless += link.unanswered.values()
                link.client.close()
                del self._links[name]
        self._connect()
        for piece in homeless:
            self._dispatch(piece)

    def close(self) -> None:
        for link in self._links.values():
            link.client.close()

    def _connect(self) -> None:
        for name, endpoint in self.map.endpoints.items():
            if name not in self._links:
                self._links[name] = _Link(endpoint, self._connector.client(endpoint, ServerReplies))

    def _dispatch(self, piece: _Piece) -> None:
        """Send a piece, or what becomes of it by the present map."""
        if piece.version == self.map.version:
            self._send(piece)
            return
        parts = [
            _Piece(piece.push, there, name, self.map.version)
            for name, mask in self.map.masks.items()
            if (there := mask & piece.slots)
        ]
        piece.push.missing += len(parts) - 1
        for part in parts:
            self._send(part)

    def _send(self, piece: _Piece) -> None:
        link = self._links[piece.server]
        link.unanswered[link.client.send(_body(piece))] = piece
        piece.sent_at = self._clock()

    def _take(self, piece: _Piece, body: object) -> None:
        push = piece.push
        match body:
            case Pushed():
                push.missing -= 1
                if body.map_version > self.map.version:
                    self._ask_map()
                if not push.missing:
                    self.under_way.remove(push)
                    push.then(self._clock() - push.began_at)
            case Moved(version) if version > self.map.version:
                self._homeless.append(piece)
                self._ask_map()
            case Moved() if piece.version < self.map.version:
                self._dispatch(piece)
            case Moved():
                self._later.append((self._clock() + _MOVED_SECONDS, piece))
            case _:
                raise ValueError(f"{piece.server} answered a push with {body}")


def _body(piece: _Piece) -> PushGradients:
    push = piece.push
    return PushGradients(push.epoch, push.start, push.stop, to_bitmap(piece.slots))
