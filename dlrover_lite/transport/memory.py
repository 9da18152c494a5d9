"""Servers and clients of one process that talk without sockets, on a virtual clock: what a simulation and the tests of the master stand on.

Messages are encoded and decoded as on the wire, or handed over as they are where a network is told so: who sends one must leave what it
is made of as it is. What arrives at the same moment arrives in an order that a seed decides, but for messages
of one sender to one receiver, which never overtake each other.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from dlrover_lite.core.processes.log import log
from dlrover_lite.transport.answering import Answering, without_repeats
from dlrover_lite.transport.frames import MalformedMessage, Reply, ReplyCodec, Request, RequestCodec

__all__ = ["Delivery", "MemoryClient", "MemoryConnector", "MemoryServer", "Network", "VirtualClock"]


def _nobody() -> None:
    """Take no note of a message."""


class VirtualClock:
    """Seconds that stand still until somebody puts them forward."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance_to(self, moment: float) -> None:
        """Put the clock forward; never back."""
        self.now = max(self.now, moment)


class Delivery(NamedTuple):
    """One arrival of a message."""

    seconds: float
    """Seconds for which it is on its way."""
    in_order: bool = True
    """It doesn't overtake what was sent before it from the same sender to the same receiver."""


class _HandedRequests(RequestCodec):
    """Takes requests and replies as they are, in the place of a codec."""

    def __init__(self) -> None:
        """Make it: there is nothing to decode."""

    def decode(self, peer: bytes, header: Any, frames: list[Any]) -> Request:
        session, sequence, body = header
        return Request(peer, session, sequence, body, frames)

    def encode(self, sequence: int, body: Any) -> Any:
        return sequence, body


class _HandedReplies(ReplyCodec):
    """The same at the side of the client."""

    def __init__(self) -> None:
        """Make it: there is nothing to decode."""

    def encode(self, session: int, sequence: int, body: Any) -> Any:
        return session, sequence, body

    def decode(self, header: Any, frames: list[Any]) -> Reply:
        sequence, body = header
        return Reply(sequence, body, frames)


class Network:
    """Carries messages. ``latency_seconds`` is asked for each message how long it is on its way; the seed orders what arrives at once.
    ``hands_over``: messages aren't encoded."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        seed: int = 0,
        latency_seconds: Callable[[], float] = lambda: 0.0,
        hands_over: bool = False,
    ) -> None:
        self.hands_over = hands_over
        self._clock = clock
        self._random = random.Random(seed)
        self.deliveries: Callable[[str], Sequence[Delivery]] = lambda _: (Delivery(latency_seconds()),)
        """Says how a message to or from the server at an endpoint arrives: once as a rule; not at all, or twice, where networks fail."""
        self._under_way: list[tuple[float, float, int, Callable[[], None]]] = []
        self._sent = self._sessions = 0
        self._arrivals: dict[object, tuple[float, float]] = {}
        """Arrival of the last message from one to another, with its place among those of that moment."""
        self._servers: dict[str, MemoryServer] = {}
        self._clients: dict[bytes, MemoryClient] = {}

    @property
    def next_arrival(self) -> float | None:
        """Time when the next message arrives; None: none is on its way."""
        return self._under_way[0][0] if self._under_way else None

    def deliver(self) -> None:
        """Deliver all that has arrived by now."""
        if not (under_way := self._under_way):
            return
        now = self._clock()
        while under_way and under_way[0][0] <= now:
            heapq.heappop(under_way)[3]()

    def listen(self, endpoint: str, server: MemoryServer) -> None:
        self._servers[endpoint] = server

    def close_server(self, endpoint: str) -> None:
        """Forget who listens there: what is sent to it from now on is lost."""
        self._servers.pop(endpoint, None)

    def join(self, client: MemoryClient) -> int:
        """Let a client in; return the number of its session."""
        self._sessions += 1
        self._clients[_peer(self._sessions)] = client
        return self._sessions

    def leave(self, peer: bytes) -> None:
        self._clients.pop(peer, None)

    def to_server(self, endpoint: str, peer: bytes, header: bytes, frames: Sequence[Any]) -> None:
        """Send a request; it is lost where nobody listens when it arrives."""

        def arrive() -> None:
            if (server := self._servers.get(endpoint)) is not None:
                server.arrived(peer, header, frames)

        self._send(endpoint, (peer, endpoint), arrive)

    def to_client(self, endpoint: str, peer: bytes, header: bytes, frames: Sequence[Any]) -> None:
        """Send a reply; it is lost when its client is no more."""

        def arrive() -> None:
            if (client := self._clients.get(peer)) is not None:
                client.arrived(header, frames)

        self._send(endpoint, (endpoint, peer), arrive)

    def _send(self, endpoint: str, way: object, arrive: Callable[[], None]) -> None:
        for delivery in self.deliveries(endpoint):
            at, place = self._clock() + delivery.seconds, self._random.random()
            if delivery.in_order:
                before = self._arrivals.get(way)
                if before is not None and (at, place) < before:
                    at, place = before
                self._arrivals[way] = at, place
            self._sent += 1
            heapq.heappush(self._under_way, (at, place, self._sent, arrive))


class MemoryServer(Answering):
    """Takes requests from a network, as ``transport.server.Server`` does from a socket."""

    def __init__(
        self,
        network: Network,
        endpoint: str,
        requests: Any,
        *,
        remember_replies: bool = False,
        say: Callable[[str], None] = log,
        on_mail: Callable[[], None] = _nobody,
    ) -> None:
        super().__init__(requests, remember_replies=remember_replies, say=say)
        self.endpoint = endpoint
        if network.hands_over:
            self._codec = _HandedRequests()
        self._network, self._on_mail = network, on_mail
        self._requests: list[Request] = []
        network.listen(endpoint, self)

    @property
    def has_mail(self) -> bool:
        """Whether requests have arrived that nobody has received yet."""
        return bool(self._requests)

    def arrived(self, peer: bytes, header: bytes, frames: Sequence[Any]) -> None:
        if (request := self._decoded(peer, header, list(frames))) is not None:
            self._requests.append(request)
            self._on_mail()

    def receive(self, timeout_seconds: float | None = 0.0) -> list[Request]:
        """Return the requests that have arrived. Never waits: time passes by the network's clock alone."""
        self._network.deliver()
        found, self._requests = self._requests, []
        return found if self._remembered is None else without_repeats(found)

    def _send(self, peer: bytes, header: bytes, frames: Sequence[Any] = ()) -> None:
        self._network.to_client(self.endpoint, peer, header, frames)

    def close(self) -> None:
        self._network.close_server(self.endpoint)


class MemoryClient:
    """A client of one peer on a network, as ``transport.client.Client`` is over a socket, but for ``call``, which would wait."""

    def __init__(self, network: Network, endpoint: str, replies: Any, on_mail: Callable[[], None] = _nobody) -> None:
        self.session = network.join(self)
        self._network, self._on_mail = network, on_mail
        self._endpoint = endpoint
        self._codec = _HandedReplies() if network.hands_over else ReplyCodec(replies)
        self._sequence = 0
        self._replies: deque[Reply] = deque()
        self._peer = _peer(self.session)

    def send(self, body: msgspec.Struct, frames: Sequence[Any] = (), *, sequence: int | None = None) -> int:
        """Send and return the request's sequence number; give one to repeat that request."""
        if sequence is None:
            self._sequence += 1
            sequence = self._sequence
        self._network.to_server(
            self._endpoint, self._peer, self._codec.encode(self.session, sequence, body), list(frames)
        )
        return sequence

    @property
    def has_mail(self) -> bool:
        """Whether replies have arrived that nobody has received yet."""
        return bool(self._replies)

    def arrived(self, header: bytes, frames: Sequence[Any]) -> None:
        try:
            self._replies.append(self._codec.decode(header, list(frames)))
        except MalformedMessage:
            return  # as on the wire: nobody knows what it answers
        self._on_mail()

    def receive(self, timeout_seconds: float | None = 0.0) -> Reply | None:
        """Return the next reply that has arrived; None: there is none. Never waits."""
        self._network.deliver()
        return self._replies.popleft() if self._replies else None

    def close(self) -> None:
        self._network.leave(self._peer)


class MemoryConnector:
    """Makes servers and clients of a network, as ``transport.connector.Connector`` makes those of a process."""

    def __init__(self, network: Network, on_mail: Callable[[], None] = _nobody) -> None:
        """``on_mail`` is told whenever a message has come for any of them."""
        self._network, self._on_mail = network, on_mail

    def server(self, endpoint: str, requests: Any, *, remember_replies: bool = False) -> MemoryServer:
        return MemoryServer(self._network, endpoint, requests, remember_replies=remember_replies, on_mail=self._on_mail)

    def client(
        self, endpoint: str, replies: Any, *, peer: str = "", clock: Callable[[], float] | None = None
    ) -> MemoryClient:
        """Make a client of ``endpoint``, whether or not anybody listens there yet."""
        return MemoryClient(self._network, endpoint, replies, self._on_mail)


def _peer(session: int) -> bytes:
    return session.to_bytes(8, "big")
