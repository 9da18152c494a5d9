"""Every field of every message has bounds: no number, text or list that a server takes can be larger than it can live with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta
from msgspec import inspect as mi

from dlrover_lite.backends.keeper import protocol
from dlrover_lite.core.bounds import LONGEST_TEXT, Cores, Items, Seconds, clipped
from dlrover_lite.protocol import brain_messages, messages, ps_messages, questions
from dlrover_lite.ps.memory import node_memory_client
from dlrover_lite.ps.snapshots import writer_messages
from dlrover_lite.recipe import schema
from dlrover_lite.transport import frames, message

MODULES: list[ModuleType] = [
    questions,
    brain_messages,
    frames,
    node_memory_client,
    messages,
    writer_messages,
    protocol,
    ps_messages,
]
ANY_VALUE = {"RegisterJob.features", "NodeRecord.data", "Advice.decision", "AdvisedDecision.predicted"}
"""Mappings whose values are read further inside, or only kept as JSON."""


def every_message() -> list[type]:
    found = {
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not message.Message
    }
    return sorted(found, key=lambda one: f"{one.__module__}.{one.__name__}")


def unbounded(kind: type) -> list[str]:
    """Fields of a struct, and of those in it, that have no bounds."""
    return list(_of_struct(mi.type_info(kind), set()))


def _of_struct(info: Any, seen: set[type]) -> Iterator[str]:
    if info.cls in seen or info.cls.__module__ == schema.__name__:  # a recipe is a file, and checked as one
        return
    seen.add(info.cls)
    for field in info.fields:
        yield from _of(field.type, f"{info.cls.__name__}.{field.name}", seen)


def _of(info: Any, where: str, seen: set[type]) -> Iterator[str]:
    match info:
        case mi.Metadata():
            yield from _of(info.type, where, seen)
        case mi.StructType():
            yield from _of_struct(info, seen)
        case mi.UnionType():
            for one in info.types:
                yield from _of(one, where, seen)
        case mi.IntType() | mi.FloatType():
            if None in (info.ge if info.gt is None else info.gt, info.le if info.lt is None else info.lt):
                yield where
        case mi.NamedTupleType():
            for field in info.fields:
                yield from _of(field.type, f"{info.cls.__name__}.{field.name}", seen)
        case mi.TupleType():
            for one in info.item_types:
                yield from _of(one, where, seen)
        case mi.DictType():
            if info.max_length is None:
                yield where
            yield from _of(info.key_type, where, seen)
            if where not in ANY_VALUE:
                yield from _of(info.value_type, where, seen)
        case mi.BoolType() | mi.NoneType() | mi.LiteralType():
            pass
        case mi.StrType() | mi.BytesType() | mi.CollectionType():
            if info.max_length is None:
                yield where
            if isinstance(info, mi.CollectionType):
                yield from _of(info.item_type, where, seen)
        case _:
            yield where


@pytest.mark.parametrize(
    "kind", every_message(), ids=lambda kind: f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
)
def test_every_message_field_has_bounds(kind: type) -> None:
    assert unbounded(kind) == []


def test_checked_messages_include_all_requests() -> None:
    unions = (
        messages.MasterRequests,
        ps_messages.PsRequests,
        brain_messages.BrainRequests,
        protocol.KeeperRequests,
        protocol.ToTemplate,
        protocol.FromTemplate,
        writer_messages.ToPersister,
        writer_messages.FromPersister,
        node_memory_client.KeeperRequest,
    )
    assert {kind for union in unions for kind in union.__args__} <= {*every_message()}


class _Inner(msgspec.Struct):
    number: float
    many: list[Cores]


class _Open(msgspec.Struct):
    fine: Seconds
    half: Annotated[int, Meta(ge=0)]
    text: str | None
    inner: Items[_Inner]
    pairs: Items[tuple[int, int]]


def test_a_field_without_bounds_is_found() -> None:
    assert {*unbounded(_Open)} == {"_Open.half", "_Open.text", "_Inner.number", "_Inner.many", "_Open.pairs"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_a_float_with_bounds_is_finite(value: float) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=Seconds)


@pytest.mark.parametrize("length", [0, LONGEST_TEXT, LONGEST_TEXT + 1, 3 * LONGEST_TEXT])
def test_a_long_text_is_clipped_in_its_middle(length: int) -> None:
    text = "".join(chr(97 + i % 26) for i in range(length))
    found = clipped(text)
    assert len(found) <= LONGEST_TEXT
    assert (found == text) == (length <= LONGEST_TEXT)
    assert found[:1000] == text[:1000] and found[-1000:] == text[-1000:]
    assert ("left out" in found) == (length > LONGEST_TEXT)
