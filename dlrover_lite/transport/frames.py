"""How a message lies on the wire: one msgpack header frame, then raw tensor frames (long ones without a copy).

Request header: [wire version, session, sequence, body]; reply header: [wire version, sequence, body]. ``session`` is a random
number a client keeps for its life, ``sequence`` counts its requests: together they name a request, so that a retry is known as such.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import zmq

from dlrover_lite.core.bounds import IdBits, Name, Text
from dlrover_lite.core.decoding import msgpack_decoder

WIRE_VERSION = 1
MAX_FRAME_BYTES = 1 << 30
"""The most bytes of a frame: ZeroMQ closes a connection that announces a longer one."""
MAX_FRAMES = 256
MAX_HEADER_BYTES = 1 << 26
"""The most bytes of a header: of a longer one nothing is decoded."""

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no message: malformed, text that is no UTF-8, nested too deeply."""

Frames = list[Any]
"""Buffers (bytes, memoryview, contiguous numpy arrays) sent after the header, or zmq.Frame when received."""


class Failure(msgspec.Struct, frozen=True, tag="!", array_like=True):
    """What a peer answers when it can't do what was asked. ``code`` is stable, the message is for people."""

    code: Name
    message: Text
    hint: Text = ""


class Later(msgspec.Struct, frozen=True, tag="...", array_like=True):
    """What a peer answers that can't take a request for now: nothing of it counts, and it is to be sent again until it is answered."""


LATER = Later()

UNUSABLE = "unusable"
"""``Failure.code`` for what is the asker's to mend: a node that never was, more workers than there may be."""
NOT_UNDERSTOOD = "not understood"
"""``Failure.code`` for a request whose body makes no sense, or has values beyond their bounds: don't repeat it."""
NO_SENSE_HINT = "This is a bug in dlrover-lite, or the two processes are of different versions of it: stop the job, and go on with it."
INTERNAL = "internal error"
"""``Failure.code`` for a request that something unforeseen has happened with. Nobody knows how far it has got."""


class Request(NamedTuple):
    peer: bytes
    session: int
    sequence: int
    body: Any
    frames: list[zmq.Frame]

    def buffer(self, index: int) -> memoryview:
        """Return frame ``index`` as a read-only buffer that lives as long as the request."""
        return self.frames[index].buffer


class Reply(NamedTuple):
    sequence: int
    body: Any
    frames: list[zmq.Frame]

    def buffer(self, index: int) -> memoryview:
        return self.frames[index].buffer


class MalformedMessage(Exception):
    """Bytes that are no message of ours: dropped and counted, never raised out of a server loop. ``sequence``: that of a request of which
    only the body can't be understood."""

    def __init__(self, message: str, sequence: int | None = None) -> None:
        super().__init__(message)
        self.sequence = sequence


class RequestCodec:
    """Encodes replies and decodes requests of one protocol (a union of tagged structs)."""

    def __init__(self, requests: Any) -> None:
        self._decoder = msgpack_decoder(tuple[IdBits, IdBits, IdBits, requests])
        self._envelope = msgpack_decoder(tuple[IdBits, IdBits, IdBits, msgspec.Raw])
        self._encoder = msgspec.msgpack.Encoder()

    def decode(self, peer: bytes, header: bytes, frames: list[zmq.Frame]) -> Request:
        try:
            version, session, sequence, body = self._decoder.decode(header)
        except UNREADABLE as error:
            raise MalformedMessage(str(error), self._sequence(header)) from error
        if version != WIRE_VERSION:
            raise MalformedMessage(f"wire version {version}, expected {WIRE_VERSION}")
        return Request(peer, session, sequence, body, frames)

    def _sequence(self, header: bytes) -> int | None:
        """Return the number of a request whose body can't be understood; None if nothing else can."""
        try:
            version, _, sequence, _ = self._envelope.decode(header)
        except UNREADABLE:
            return None
        return sequence if version == WIRE_VERSION else None

    def encode(self, sequence: int, body: Any) -> bytes:
        return self._encoder.encode((WIRE_VERSION, sequence, body))


class ReplyCodec:
    """Encodes requests and decodes replies of one protocol."""

    def __init__(self, replies: Any) -> None:
        self._decoder = msgpack_decoder(tuple[int, int, replies | Failure | Later])
        self._envelope = msgpack_decoder(tuple[int, int, msgspec.Raw])
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, session: int, sequence: int, body: Any) -> bytes:
        return self._encoder.encode((WIRE_VERSION, session, sequence, body))

    def decode(self, header: bytes, frames: list[zmq.Frame]) -> Reply:
        """Decode a reply. One of which only the body can't be understood is a Failure: who asks again would get the same."""
        try:
            version, sequence, body = self._decoder.decode(header)
        except UNREADABLE as error:
            return self._failure(header, str(error))
        if version != WIRE_VERSION:
            raise MalformedMessage(f"wire version {version}, expected {WIRE_VERSION}")
        return Reply(sequence, body, frames)

    def _failure(self, header: bytes, why: str) -> Reply:
        try:
            version, sequence, _ = self._envelope.decode(header)
        except UNREADABLE:
            raise MalformedMessage(why) from None
        if version != WIRE_VERSION:
            raise MalformedMessage(f"wire version {version}, expected {WIRE_VERSION}")
        return Reply(sequence, Failure(NOT_UNDERSTOOD, f"the answer makes no sense: {why}", NO_SENSE_HINT), [])


def receive_frames(socket: zmq.Socket[Any], *, copied: int) -> tuple[list[bytes], list[zmq.Frame]]:
    """Receive one message that is there: its first ``copied`` frames as bytes (cheaper for short ones), the others in place.

    Raises MalformedMessage, with the whole message taken, when it has fewer frames than that or too many.
    """
    heads = [socket.recv(zmq.NOBLOCK)]
    frames: list[zmq.Frame] = []
    more = socket.get(zmq.RCVMORE)
    while more:
        if len(heads) < copied:
            heads.append(socket.recv())
            more = socket.get(zmq.RCVMORE)
        else:
            frame = socket.recv(copy=False)
            frames.append(frame)
            more = frame.more
    if len(heads) < copied or len(frames) >= MAX_FRAMES:
        raise MalformedMessage(f"{len(heads) + len(frames)} frames")
    if max(map(len, heads)) > MAX_HEADER_BYTES:
        raise MalformedMessage(f"a header of {max(map(len, heads))} bytes")
    return heads, frames


def is_readable(socket: zmq.Socket[Any]) -> bool:
    """Say whether a message is there; cheaper than an attempt that fails."""
    return bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN)
