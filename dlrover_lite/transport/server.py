"""The answering side of the wire: a ROUTER socket that is drained in batches.

A server loop is ``for request in server.receive(timeout): server.reply(request, body, frames)``; a loop that commits to disk
receives many, applies them, commits once, then replies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from dlrover_lite.core.errors import WireError
from dlrover_lite.core.processes.log import log
from dlrover_lite.transport.answering import Answering, without_repeats
from dlrover_lite.transport.curve import Gate, JobKey, is_guarded
from dlrover_lite.transport.endpoints import may_be_ipv6
from dlrover_lite.transport.frames import MAX_FRAME_BYTES, MalformedMessage, Request, is_readable, receive_frames

ZERO_COPY_BYTES = 1 << 20
"""Bytes of a frame from which on it isn't copied. Shorter frames are cheaper to copy than to track: when a tracked one has been sent, a
thread of pyzmq wakes up for it and takes the GIL."""


class Server(Answering):
    """Binds ``endpoint`` (``ipc://…`` or ``tcp://host:port``, port ``*`` for any); ``requests`` is the protocol's union of structs.

    Over TCP, with a ``key``, only peers that hold it are let in, during ``receive``: whoever waits elsewhere waits for ``sockets``.
    """

    def __init__(
        self,
        endpoint: str,
        requests: Any,
        *,
        context: zmq.Context[Any],
        remember_replies: bool = False,
        key: JobKey | None = None,
        say: Callable[[str], None] = log,
    ) -> None:
        """Listen. ``say`` is given lines for the log. Raises WireError where that can't be."""
        super().__init__(requests, remember_replies=remember_replies, say=say)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.setsockopt(zmq.IPV6, may_be_ipv6(endpoint))
        self._gate: Gate | None = None
        try:
            if key is not None and is_guarded(endpoint):
                self._gate = Gate(self.socket, key, context)
            self._bind(endpoint)
        except WireError:
            self.close(linger_ms=0)
            raise
        self.endpoint: str = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        if self._gate is not None:
            self._poller.register(self._gate.socket, zmq.POLLIN)

    @property
    def sockets(self) -> list[zmq.Socket[Any]]:
        """Sockets that have something to be read when ``receive`` has something to do."""
        return [self.socket] if self._gate is None else [self.socket, self._gate.socket]

    def _bind(self, endpoint: str) -> None:
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise WireError(f"can't listen on {endpoint}: {error.strerror}") from error

    def receive(self, timeout_seconds: float | None, *, limit: int = 256) -> list[Request]:
        """Return up to ``limit`` requests that are here; wait for the first one. With ``remember_replies``, a repeated request is answered
        from memory and not given again."""
        if not self._wait(timeout_seconds):
            return []
        received: list[Request] = []
        while len(received) < limit and is_readable(self.socket):
            try:
                (peer, header), frames = receive_frames(self.socket, copied=2)
            except MalformedMessage as error:
                self._malformed(b"", error)
                continue
            if (request := self._decoded(peer, header, frames)) is not None:
                received.append(request)
        return received if self._remembered is None else without_repeats(received)

    def _wait(self, timeout_seconds: float | None) -> bool:
        """Wait; return whether a message is there in time. Peers at the gate are let in or turned away meanwhile."""
        left = timeout_seconds
        end = None if left is None else time.monotonic() + left
        while ready := self._poller.poll(None if left is None else max(0, int(left * 1000))):
            if self._gate is None:
                return True
            if any(socket is self._gate.socket for socket, _ in ready):
                self._gate.answer()
            if is_readable(self.socket):
                return True
            if end is not None and (left := end - time.monotonic()) <= 0:
                break
        return False

    def _send(self, peer: bytes, header: bytes, frames: Sequence[Any] = ()) -> None:
        send_frames(self.socket, [peer, header, *frames])

    def close(self, linger_ms: int | None = None) -> None:
        """Close the server. Replies under way are sent for up to a second, or ``linger_ms``."""
        self.socket.close(linger_ms)
        if self._gate is not None:
            self._gate.close()


def send_frames(socket: zmq.Socket[Any], frames: list[Any]) -> None:
    """Send one message; frames of 1 MiB and more are not copied, so their buffers must stay unchanged from here on.

    Never waits: raises zmq.Again, with nothing sent, when the socket has no connection, not even one to be made.
    """
    last = len(frames) - 1
    for i, frame in enumerate(frames):
        size = len(frame) if isinstance(frame, bytes) else memoryview(frame).nbytes
        flags = (zmq.SNDMORE if i < last else 0) | (zmq.NOBLOCK if i == 0 else 0)
        socket.send(frame, flags, copy=size < ZERO_COPY_BYTES)
