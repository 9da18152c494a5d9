"""What all servers have in common, whatever carries their messages: requests are decoded, repeated ones answered from memory, and no
request ends the loop that serves all others."""

from __future__ import annotations

import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.processes.log import log
from dlrover_lite.transport.frames import (
    INTERNAL,
    LATER,
    NOT_UNDERSTOOD,
    Failure,
    Later,
    MalformedMessage,
    Request,
    RequestCodec,
)

__all__ = ["Answering", "without_repeats"]

_REMEMBERED_SESSIONS = 4096

T = TypeVar("T")


class Answering:
    """The answering side of a protocol; a subclass carries messages: ``_send``."""

    def __init__(self, requests: Any, *, remember_replies: bool = False, say: Callable[[str], None] = log) -> None:
        """``requests``: the protocol's union of structs. ``say`` is given lines for the log."""
        self._codec = RequestCodec(requests)
        self.malformed = 0
        """Number of messages that could not be understood: dropped, or answered with Failure where only the body makes no sense."""
        self.unforeseen = 0
        """Number of requests that met an exception which nobody had thought of."""
        self._say = say
        self._remembered: OrderedDict[int, tuple[int, bytes]] | None = OrderedDict() if remember_replies else None

    def _send(self, peer: bytes, header: bytes, frames: Sequence[Any] = ()) -> None:
        raise NotImplementedError

    def _decoded(self, peer: bytes, header: bytes, frames: list[Any]) -> Request | None:
        """Decode a request; None for one that makes no sense, or that was answered before and is now again."""
        try:
            request = self._codec.decode(peer, header, frames)
        except MalformedMessage as error:
            self._malformed(peer, error)
            return None
        return None if self._replayed(request) else request

    def _malformed(self, peer: bytes, error: MalformedMessage) -> None:
        self.malformed += 1
        if error.sequence is not None:  # not remembered: a sound request may have the same number
            failure = Failure(NOT_UNDERSTOOD, f"the request makes no sense: {error}")
            self._send(peer, self._codec.encode(error.sequence, failure))

    def _replayed(self, request: Request) -> bool:
        if self._remembered is None:
            return False
        known = self._remembered.get(request.session)
        if known is None or request.sequence > known[0]:
            return False
        if request.sequence == known[0]:
            self._send(request.peer, known[1])
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
        self._send(request.peer, header, frames)

    def answer(self, request: Request, body: msgspec.Struct) -> None:
        """Send an answer: to one that is put off (``Later``) so that it comes again."""
        if isinstance(body, Later):
            self._send(request.peer, self._codec.encode(request.sequence, LATER))
        else:
            self.reply(request, body)

    def fail(self, request: Request, code: str, message: str, hint: str = "") -> None:
        self.reply(request, Failure(code, message, hint))


def without_repeats(requests: list[Request]) -> list[Request]:
    """Drop repeats: a request that came twice before it could be answered is given once: as it came last, since its client may have
    reconnected."""
    latest = {(request.session, request.sequence): request for request in requests}
    return requests if len(latest) == len(requests) else list(latest.values())
