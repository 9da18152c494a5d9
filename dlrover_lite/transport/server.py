"""The answering side of the wire: a ROUTER socket that is drained in batches.

A server loop is ``for request in server.receive(timeout): server.reply(request, body, frames)``; a loop that commits to disk
receives many, applies them, commits once, then replies.
"""

from __future__ import annotations

import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import zmq

from dlrover_lite.core.errors import DlroverLiteError, WireError
from dlrover_lite.core.process_log import log
from dlrover_lite.transport.curve import Gate, JobKey, is_guarded
from dlrover_lite.transport.frames import (
    INTERNAL,
    LATER,
    MAX_FRAME_BYTES,
    NOT_UNDERSTOOD,
    Failure,
    MalformedMessage,
    Request,
    RequestCodec,
    is_readable,
    receive_frames,
)

ZERO_COPY_BYTES = 1 << 20
"""Bytes of a frame from which on it isn't copied. Shorter frames are cheaper to copy than to track: when a tracked one has been sent, a
thread of pyzmq wakes up for it and takes the GIL."""

_REMEMBERED_SESSIONS = 4096

T = TypeVar("T")


class Server:
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
        """``say`` is given lines for the log."""
        self._codec = RequestCodec(requests)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._gate: Gate | None = None
        try:
            if key is not None and is_guarded(endpoint):
                self._gate = Gate(self.socket, key, context)
            self._bind(endpoint)
        except WireError:
            self.close(linger_ms=0)
            raise
        self.endpoint: str = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.malformed = 0
        """Number of messages that could not be understood: dropped, or answered with Failure where only the body makes no sense."""
        self.unforeseen = 0
        """Number of requests that met an exception which nobody had thought of."""
        self._say = say
        self._remembered: OrderedDict[int, tuple[int, bytes]] | None = OrderedDict() if remember_replies else None
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        if self._gate is not None:
            self._poller.register(self._gate.socket, zmq.POLLIN)
        self._watched: set[int] = set()

    @property
    def sockets(self) -> list[zmq.Socket[Any]]:
        """Sockets that have something to be read when ``receive`` has something to do."""
        return [self.socket] if self._gate is None else [self.socket, self._gate.socket]

    def watch(self, descriptor: int) -> None:
        """Watch a descriptor: while there is something to be read from it, ``receive`` doesn't wait."""
        self._watched.add(descriptor)
        self._poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        self._watched.remove(descriptor)
        self._poller.unregister(descriptor)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Have ``receive`` wait, within this, whatever there is to be read of what is watched."""
        for descriptor in self._watched:
            self._poller.unregister(descriptor)
        try:
            yield
        finally:
            for descriptor in self._watched:
                self._poller.register(descriptor, zmq.POLLIN)

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
            peer = b""
            try:
                (peer, header), frames = receive_frames(self.socket, copied=2)
                request = self._codec.decode(peer, header, frames)
            except MalformedMessage as error:
                self.malformed += 1
                if error.sequence is not None:  # not remembered: a sound request may have the same number
                    failure = Failure(NOT_UNDERSTOOD, f"the request makes no sense: {error}")
                    self._send([peer, self._codec.encode(error.sequence, failure)])
                continue
            if not self._replayed(request):
                received.append(request)
        return received if self._remembered is None else _without_repeats(received)

    def _wait(self, timeout_seconds: float | None) -> bool:
        """Wait; return whether a message, or what is watched, is there in time. Peers at the gate are let in or turned away meanwhile."""
        left = timeout_seconds
        end = None if left is None else time.monotonic() + left
        while ready := self._poller.poll(None if left is None else max(0, int(left * 1000))):
            if self._gate is None:
                return True
            if any(socket is self._gate.socket for socket, _ in ready):
                self._gate.answer()
            if is_readable(self.socket) or any(descriptor in self._watched for descriptor, _ in ready):
                return True
            if end is not None and (left := end - time.monotonic()) <= 0:
                break
        return False

    def _replayed(self, request: Request) -> bool:
        if self._remembered is None:
            return False
        known = self._remembered.get(request.session)
        if known is None or request.sequence > known[0]:
            return False
        if request.sequence == known[0]:
            self._send([request.peer, known[1]])
        return True  # older than the last answered: its client has moved on

    def attempt(self, request: Request, handle: Callable[[Request], T]) -> T | Failure | None:
        """Return what ``handle`` makes of a request: None for what turns out to be malformed, a Failure for an unforeseen exception,
        which is counted, and written to the log.

        Whatever a peer sends, it must not end the loop that serves all others: a bug that one request meets is that request's alone.
        DlroverLiteErrors pass: their meaning is known to the caller.
        """
        try:
            return handle(request)
        except MalformedMessage:
            self.malformed += 1
            return None
        except DlroverLiteError:
            raise
        except Exception as error:  # noqa: BLE001 - see above: this is the one place for all servers
            self.unforeseen += 1
            what = type(request.body).__name__
            if (
                self.unforeseen & (self.unforeseen - 1) == 0
            ):  # the 1st, 2nd, 4th, 8th, ...: a log must not fill the disk
                self._say(f"{what} met a bug (number {self.unforeseen}):\n{traceback.format_exc().rstrip()}")
            return Failure(INTERNAL, f"{what}: {type(error).__name__}: {error}", "This is a bug in dlrover-lite.")

    def reply(self, request: Request, body: msgspec.Struct, frames: Sequence[Any] = ()) -> None:
        header = self._codec.encode(request.sequence, body)
        if self._remembered is not None:
            self._remembered[request.session] = (request.sequence, header)
            self._remembered.move_to_end(request.session)
            if len(self._remembered) > _REMEMBERED_SESSIONS:
                self._remembered.popitem(last=False)
        self._send([request.peer, header, *frames])

    def put_off(self, request: Request) -> None:
        """Put off a request that can't be taken for now: it will come again, and is given again then."""
        self._send([request.peer, self._codec.encode(request.sequence, LATER)])

    def fail(self, request: Request, code: str, message: str, hint: str = "") -> None:
        self.reply(request, Failure(code, message, hint))

    def _send(self, frames: list[Any]) -> None:
        send_frames(self.socket, frames)

    def close(self, linger_ms: int | None = None) -> None:
        """Close the server. Replies under way are sent for up to a second, or ``linger_ms``."""
        self.socket.close(linger_ms)
        if self._gate is not None:
            self._gate.close()


def _without_repeats(requests: list[Request]) -> list[Request]:
    """Drop repeats: a request that came twice before it could be answered is given once: as it came last, since its client may have
    reconnected."""
    latest = {(request.session, request.sequence): request for request in requests}
    return requests if len(latest) == len(requests) else list(latest.values())


def send_frames(socket: zmq.Socket[Any], frames: list[Any]) -> None:
    """Send one message; frames of 1 MiB and more are not copied, so their buffers must stay unchanged from here on.

    Never waits: raises zmq.Again, with nothing sent, when the socket has no connection, not even one to be made.
    """
    last = len(frames) - 1
    for i, frame in enumerate(frames):
        size = len(frame) if isinstance(frame, bytes) else memoryview(frame).nbytes
        flags = (zmq.SNDMORE if i < last else 0) | (zmq.NOBLOCK if i == 0 else 0)
        socket.send(frame, flags, copy=size < ZERO_COPY_BYTES)
