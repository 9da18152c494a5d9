"""How a message lies on the wire: one msgpack header frame, then raw tensor frames (zero copy).

Request header: [wire version, session, sequence, body]; reply header: [wire version, sequence, body]. ``session`` is a random
number a client keeps for its life, ``sequence`` counts its requests: together they name a request, so that a retry is known as such.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import zmq

WIRE_VERSION = 1
MAX_FRAME_BYTES = 1 << 30
"""ZeroMQ closes a connection that announces a longer frame."""
MAX_FRAMES = 256

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no message: malformed, text that is no UTF-8, nested too deeply."""

Frames = list[Any]
"""Buffers (bytes, memoryview, contiguous numpy arrays) sent after the header, or zmq.Frame when received."""


class Failure(msgspec.Struct, frozen=True, tag="!", array_like=True):
    """What a peer answers when it can't do what was asked. ``code`` is stable, the message is for people."""

    code: str
    message: str
    hint: str = ""


class Request(NamedTuple):
    peer: bytes
    session: int
    sequence: int
    body: Any
    frames: list[zmq.Frame]

    def buffer(self, index: int) -> memoryview:
        """Frame ``index`` as a read-only buffer that lives as long as the request."""
        return self.frames[index].buffer


class Reply(NamedTuple):
    sequence: int
    body: Any
    frames: list[zmq.Frame]

    def buffer(self, index: int) -> memoryview:
        return self.frames[index].buffer


class MalformedMessage(Exception):
    """Bytes that are no message of ours: dropped and counted, never raised out of a server loop."""


class RequestCodec:
    """Encodes replies and decodes requests of one protocol (a union of tagged structs)."""

    def __init__(self, requests: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(tuple[int, int, int, requests])
        self._encoder = msgspec.msgpack.Encoder()

    def decode(self, peer: bytes, frames: list[zmq.Frame]) -> Request:
        if not 1 <= len(frames) <= MAX_FRAMES:
            raise MalformedMessage(f"{len(frames)} frames")
        try:
            version, session, sequence, body = self._decoder.decode(frames[0].buffer)
        except _UNREADABLE as error:
            raise MalformedMessage(str(error)) from error
        if version != WIRE_VERSION:
            raise MalformedMessage(f"wire version {version}, expected {WIRE_VERSION}")
        return Request(peer, session, sequence, body, frames[1:])

    def encode(self, sequence: int, body: Any) -> bytes:
        return self._encoder.encode((WIRE_VERSION, sequence, body))


class ReplyCodec:
    """Encodes requests and decodes replies of one protocol."""

    def __init__(self, replies: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(tuple[int, int, replies | Failure])
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, session: int, sequence: int, body: Any) -> bytes:
        return self._encoder.encode((WIRE_VERSION, session, sequence, body))

    def decode(self, frames: list[zmq.Frame]) -> Reply:
        if not 1 <= len(frames) <= MAX_FRAMES:
            raise MalformedMessage(f"{len(frames)} frames")
        try:
            version, sequence, body = self._decoder.decode(frames[0].buffer)
        except _UNREADABLE as error:
            raise MalformedMessage(str(error)) from error
        if version != WIRE_VERSION:
            raise MalformedMessage(f"wire version {version}, expected {WIRE_VERSION}")
        return Reply(sequence, body, frames[1:])
