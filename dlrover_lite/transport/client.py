"""The asking side of the wire: a DEALER socket with deadlines and retries that are safe to repeat."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import zmq

from dlrover_lite.core.errors import DeadlineExceeded, RemoteError
from dlrover_lite.transport.curve import JobKey, is_guarded, present_key
from dlrover_lite.transport.endpoints import may_be_ipv6
from dlrover_lite.transport.frames import (
    MAX_FRAME_BYTES,
    Failure,
    Later,
    MalformedMessage,
    Reply,
    ReplyCodec,
    receive_frames,
)
from dlrover_lite.transport.server import send_frames

DEFAULT_DEADLINE_SECONDS = 30.0
RETRY_SECONDS = 2.0
RECONNECT_RETRIES = 4


class Client:
    """A client of one peer. ``call`` sends and waits; ``send`` and ``receive`` let several requests be under way. Not for several threads.

    With a ``key``, a peer that is reached over TCP must hold it too.
    """

    def __init__(
        self,
        endpoint: str,
        replies: Any,
        *,
        context: zmq.Context[Any],
        peer: str = "",
        clock: Callable[[], float] = time.monotonic,
        key: JobKey | None = None,
    ) -> None:
        self._codec = ReplyCodec(replies)
        self._clock = clock
        self.peer = peer or endpoint
        self.session = secrets.randbits(63)
        self._sequence = 0
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self.socket.setsockopt(zmq.IPV6, may_be_ipv6(endpoint))
        self._guarded = is_guarded(endpoint)
        if key is not None and self._guarded:
            present_key(self.socket, key)
        self._endpoint = endpoint
        self._unanswered_since: float | None = None
        self._reconnect_after = 0.0
        self.socket.connect(endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)

    def send(self, body: msgspec.Struct, frames: Sequence[Any] = (), *, sequence: int | None = None) -> int:
        """Send and return the request's sequence number; give one to repeat that request. It may get lost on its way."""
        if sequence is None:
            self._sequence += 1
            sequence = self._sequence
        message = [self._codec.encode(self.session, sequence, body), *frames]
        if self._guarded:
            self._look_for_another()
        try:
            send_frames(self.socket, message)
        except zmq.Again:
            self._reconnect()
            with suppress(zmq.Again):  # the new connection has been given up by now, too: the request is lost
                send_frames(self.socket, message)
        return sequence

    def _reconnect(self) -> None:
        """Connect anew: who answered there doesn't speak as we do, so ZeroMQ has given up for good. It may be another one by now."""
        self.socket.disconnect(self._endpoint)
        self.socket.connect(self._endpoint)

    def _look_for_another(self) -> None:
        """Reconnect after silence. ZeroMQ doesn't always say that it has given a peer up: one in some hundred times it goes on taking
        messages that nobody gets. So silence is taken for it, ever longer each time, as the answer may just be slow, and what is on its way
        is lost."""
        now = self._clock()
        if self._unanswered_since is None:
            self._unanswered_since, self._reconnect_after = now, RECONNECT_RETRIES * RETRY_SECONDS
        elif now - self._unanswered_since > self._reconnect_after:
            self._unanswered_since, self._reconnect_after = now, 2 * self._reconnect_after
            self._reconnect()

    def receive(self, timeout_seconds: float | None) -> Reply | None:
        """Return the next reply, whichever request it answers; None after the timeout. Replies that make no sense are dropped."""
        while self._poller.poll(None if timeout_seconds is None else max(0, int(timeout_seconds * 1000))):
            try:
                (header,), frames = receive_frames(self.socket, copied=1)
                self._unanswered_since = None
                return self._codec.decode(header, frames)
            except MalformedMessage:
                continue
        return None

    def call(
        self,
        body: msgspec.Struct,
        frames: Sequence[Any] = (),
        *,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> Reply:
        """Return the reply to ``body``, asked again every two seconds until the deadline, or until the peer ``has_ended`` for good.

        A peer that can't take it for now (``Later``) may take as long as it needs, as long as it says so. Raises DeadlineExceeded when none
        came, RemoteError when the peer refused. Don't mix with requests under way.
        """
        end = self._clock() + deadline_seconds
        sequence = self.send(body, frames)
        while (left := end - self._clock()) > 0:
            reply = self.receive(min(left, RETRY_SECONDS))
            if reply is None:
                if has_ended():
                    raise DeadlineExceeded(f"{self.peer} ended before it answered {type(body).__name__}")
                self.send(body, frames, sequence=sequence)
            elif reply.sequence == sequence and isinstance(reply.body, Later):
                end = self._clock() + deadline_seconds
            elif reply.sequence == sequence:
                if isinstance(reply.body, Failure):
                    raise RemoteError(reply.body.code, reply.body.message, hint=reply.body.hint)
                return reply
        hint = "If it runs, check that both have the same job's key." if self._guarded else ""
        raise DeadlineExceeded(
            f"{self.peer} did not answer {type(body).__name__} within {deadline_seconds:g} s", hint=hint
        )

    def close(self) -> None:
        self.socket.close()
