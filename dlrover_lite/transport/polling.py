"""Waiting for messages of several sockets, and for file descriptors, at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import zmq

__all__ = ["Poller", "Source", "wait_for_messages"]

Source: TypeAlias = "zmq.Socket[Any] | int"
"""The socket of a server or a client, or a file descriptor."""


class Poller:
    """Says which of its sources have something to be read."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()

    def register(self, source: Source) -> None:
        self._poller.register(source, zmq.POLLIN)

    def unregister(self, source: Source) -> None:
        self._poller.unregister(source)

    def poll(self, timeout_milliseconds: int | None) -> list[Any]:
        """Wait for the first source that has something, and return all that have; none after the timeout (None: without limit)."""
        return [source for source, _ in self._poller.poll(timeout_milliseconds)]


def wait_for_messages(sources: Iterable[Source], seconds: float) -> None:
    """Wait until any of these has something to be read, a millisecond at least."""
    zmq.zmq_poll([(source, zmq.POLLIN) for source in sources], max(1, int(seconds * 1000)))
