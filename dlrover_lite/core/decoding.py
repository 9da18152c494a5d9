"""Typed values from JSON, MessagePack and plain objects, by msgspec, in any thread.

msgspec finds out what a type is made of when it is first decoded, or converted to, and publishes that before it is complete, so that types
may contain themselves. A thread that meets such a type, or one within it, before another one has finished with it reads a null pointer:
the process ends with a segmentation fault (msgspec 0.22). So types are made known here, one after the other, before anything is decoded.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

__all__ = ["convert", "from_json", "from_msgpack", "json_decoder", "msgpack_decoder"]

T = TypeVar("T")

_known: set[Any] = set()
_lock = threading.Lock()


def _make_known(kind: Any) -> None:
    if kind in _known:
        return
    with _lock:
        msgspec.msgpack.Decoder(kind)  # all that it is made of is known once there is one
        _known.add(kind)


@overload
def from_json(data: bytes | memoryview | str, kind: type[T]) -> T: ...
@overload
def from_json(data: bytes | memoryview | str, kind: Any) -> Any: ...
def from_json(data: bytes | memoryview | str, kind: Any) -> Any:
    """Decode JSON. Raises msgspec.DecodeError, or its ValidationError where it is of another type."""
    _make_known(kind)
    return msgspec.json.decode(data, type=kind)


@overload
def from_msgpack(data: bytes | memoryview, kind: type[T]) -> T: ...
@overload
def from_msgpack(data: bytes | memoryview, kind: Any) -> Any: ...
def from_msgpack(data: bytes | memoryview, kind: Any) -> Any:
    """Decode MessagePack. Raises msgspec.DecodeError, or its ValidationError where it is of another type."""
    _make_known(kind)
    return msgspec.msgpack.decode(data, type=kind)


@overload
def convert(value: Any, kind: type[T], *, strict: bool = ..., from_attributes: bool = ...) -> T: ...
@overload
def convert(value: Any, kind: Any, *, strict: bool = ..., from_attributes: bool = ...) -> Any: ...
def convert(value: Any, kind: Any, *, strict: bool = True, from_attributes: bool = False) -> Any:
    """Make a typed value of plain ones, or with ``from_attributes`` of another struct. Raises msgspec.ValidationError."""
    _make_known(kind)
    return msgspec.convert(value, kind, strict=strict, from_attributes=from_attributes)


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Make a decoder of JSON."""
    _make_known(kind)
    return msgspec.json.Decoder(kind)


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Make a decoder of MessagePack."""
    _make_known(kind)
    return msgspec.msgpack.Decoder(kind)
