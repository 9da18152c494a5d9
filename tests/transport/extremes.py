"""Messages with extreme values: at the bounds of each field, and beyond them, made from the types that the fields are declared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect as mi

__all__ = ["KNOWN_NAMES", "bodies_of"]

KNOWN_NAMES = ["worker-0", "worker-1", "ps-0", "ps-1", "ads-1", "master", "0/0", "C1"]
"""So that more than the first check of a message is passed."""
_BEYOND_INTS = [-1, 1 << 31, 1 << 53, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63)]
_BEYOND_FLOATS = [math.nan, math.inf, -math.inf, -1.0, 1e300, -1e300, 5e-324]
_TEXTS = ["", "9" * 5000, "\0", "../../etc/passwd", "ünï/..", "x" * 1024, "%s{}", "-1", "last"]
Values = st.SearchStrategy[Any]


def bodies_of(kind: type, *, beyond: bool) -> Values:
    """Bodies of messages of this type as plain lists, as they lie on the wire; ``beyond``: some fields are outside their bounds, or of
    another type."""
    return _struct(mi.type_info(kind), beyond)


def _struct(info: Any, beyond: bool) -> Values:
    fields: list[Values] = [_value(field.type, beyond) for field in info.fields]
    if info.array_like:
        head = [] if info.tag is None else [info.tag]
        return st.tuples(*fields).map(lambda values: [*head, *values])
    names = [field.encode_name for field in info.fields]
    tag = {} if info.tag is None else {info.tag_field: info.tag}
    return st.tuples(*fields).map(lambda values: {**tag, **dict(zip(names, values, strict=True))})


def _value(info: Any, beyond: bool) -> Values:
    inside = _inside(info, beyond)
    if not beyond:
        return inside
    odd = st.sampled_from([*_BEYOND_INTS, *_BEYOND_FLOATS, None, True, "x", b"x", [], {}, [[]]])
    return st.integers(0, 9).flatmap(lambda chance: odd if chance == 0 else inside)


def _inside(info: Any, beyond: bool) -> Values:
    match info:
        case mi.Metadata():
            return _inside(info.type, beyond)
        case mi.StructType():
            return _struct(info, beyond)
        case mi.UnionType():
            return st.one_of([_value(one, beyond) for one in info.types])
        case mi.IntType():
            least, most = info.ge or 0, info.le if info.le is not None else (1 << 63) - 1
            return st.sampled_from(_kept([0, 1, 2, 3, least, most, most - 1, 1 << 31, 1 << 32], least, most))
        case mi.FloatType():
            least, most = info.ge or 0.0, info.le if info.le is not None else 1.7e308
            return st.sampled_from(_kept([0.0, 5e-324, 1e-9, 0.5, 1.0, 4.0, least, most, 1e10], least, most))
        case mi.StrType():
            most = info.max_length or 1 << 20
            texts = [*KNOWN_NAMES * 2, *(text for text in _TEXTS if len(text) <= most), "ß" * min(most, 1 << 14)]
            return st.sampled_from(texts)
        case mi.BytesType():
            most = min(info.max_length or 1, 1 << 16)
            return st.sampled_from([b"", b"\0" * most, b"\xff" * most, b"\xff" * (most // 2), b"{}"])
        case mi.TupleType():
            return st.tuples(*[_value(one, beyond) for one in info.item_types]).map(list)
        case mi.DictType():
            return st.dictionaries(_inside(info.key_type, beyond), _value(info.value_type, beyond), max_size=3)
        case mi.CollectionType():
            return st.lists(_value(info.item_type, beyond), max_size=3)
        case mi.LiteralType():
            return st.sampled_from(info.values)
        case mi.BoolType():
            return st.booleans()
        case mi.NoneType():
            return st.none()
        case mi.AnyType():
            return st.sampled_from(
                [None, math.nan, math.inf, (1 << 64) - 1, -(1 << 63), "x" * 5000, [[[]]], {"a": {}}, b"x"]
            )
    raise AssertionError(f"no values are known for {info}")


def _kept(values: Sequence[Any], least: Any, most: Any) -> list[Any]:
    return [value for value in values if least <= value <= most]


def encoded(session: int, sequence: int, body: Any) -> bytes:
    """A request's header."""
    return msgspec.msgpack.encode([1, session, sequence, body])
