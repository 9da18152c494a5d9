"""What senders and receivers of messages need of a transport, whether it is ZeroMQ or the memory of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from dlrover_lite.transport.frames import Reply

__all__ = ["ClientFactory", "MessageClient"]


class MessageClient(Protocol):
    """A client of one peer that lets several requests be under way."""

    def send(self, body: msgspec.Struct, frames: Sequence[Any] = (), *, sequence: int | None = None) -> int:
        """Send and return the request's sequence number; give one to repeat that request. It may get lost on its way."""

    def receive(self, timeout_seconds: float | None) -> Reply | None:
        """Return the next reply, whichever request it answers; None after the timeout."""

    def close(self) -> None:
        """Close the client: replies that are still to come are lost."""


class ClientFactory(Protocol):
    """Connects to endpoints."""

    def client(self, endpoint: str, replies: Any, *, peer: str = "", clock: Callable[[], float] = ...) -> MessageClient:
        """Connect to ``endpoint``, whether or not anybody listens there yet. ``peer``: its name in words."""
