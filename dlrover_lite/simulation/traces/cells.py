"""Single values of a trace's file: from text to numbers within their bounds, and back."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
from msgspec import inspect as mi

from dlrover_lite.core.units import LEAST_MEMORY, MOST_MEMORY, format_bytes, parse_memory
from dlrover_lite.recipe.words import expected
from dlrover_lite.simulation.traces.columns import DURATION
from dlrover_lite.simulation.traces.trace import NAME_PATTERN, Seconds, TraceJob, TraceTable

__all__ = ["parse_cell", "write_cell"]

_TYPES: dict[str, mi.Type] = {
    **{field.name: mi.type_info(field.type) for field in msgspec.structs.fields(TraceJob)},
    DURATION: mi.type_info(Seconds),
}
_MEMORY = ("worker_memory", "server_memory", "server_base_memory", "worker_base_memory", "minibatch_memory")
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_TABLES = "tables as in 26x1000000:16, that is COUNTxIDS:DIM, with :EXPONENT:IDS_PER_SAMPLE behind it if need be"
_LONGEST_SHOWN = 40


def parse_cell(name: str, text: str) -> Any:
    """Return the value of a column's cell. Raises ValueError that says what was expected and what was found."""
    kind = _inner(_TYPES[name])
    if name == "tables":
        return tuple(_parse_table(part) for part in text.split())
    if isinstance(kind, mi.StrType):
        return _parse_text(name, kind, text)
    text = text.strip()
    if isinstance(kind, mi.BoolType):
        if text.lower() not in (*_YES, *_NO):
            raise ValueError(f"expected yes or no, found {_shown(text)}")
        return text.lower() in _YES
    if name in _MEMORY and not _NUMBER.fullmatch(text):
        return _checked(kind, _parse_memory(text), text, memory=True)
    return _checked(kind, _number(kind, text), text, memory=name in _MEMORY)


def write_cell(value: Any) -> str:
    """Write a value so that ``parse_cell`` reads the same."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(
            f"{one.count}x{_short(one.ids)}:{one.dim}:{_short(one.exponent)}:{_short(one.ids_per_sample)}"
            for one in value
        )
    return _short(value) if isinstance(value, float) else str(value)


def _short(value: float) -> str:
    """Write a float so that it is read as the same, whole ones without a fraction."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _inner(kind: mi.Type) -> mi.Type:
    return kind.type if isinstance(kind, mi.Metadata) else kind


def _parse_text(name: str, kind: mi.StrType, text: str) -> str:
    if kind.pattern is not None and re.search(kind.pattern, text) is None:
        blanks = " and blanks" if kind.pattern == NAME_PATTERN else ""
        raise ValueError(f"expected up to 200 characters without control characters{blanks}, found {_shown(text)}")
    return text


def _number(kind: mi.Type, text: str) -> float | int:
    if not _NUMBER.fullmatch(text) or not math.isfinite(number := float(text)):
        raise ValueError(f"expected {expected(kind)}, found {_shown(text)}")
    if isinstance(kind, mi.IntType):
        if number != int(number):
            raise ValueError(f"expected {expected(kind)}, found {_shown(text)}")
        return int(text) if text.lstrip("+-").isdigit() else int(number)
    return number


def _parse_memory(text: str) -> int:
    try:
        return parse_memory(text)
    except OverflowError:
        raise ValueError(f"expected an amount of memory, found {_shown(text)}") from None


def _checked(kind: mi.Type, value: float | int, text: str, *, memory: bool) -> float | int:
    assert isinstance(kind, mi.IntType | mi.FloatType)
    low = kind.ge is not None and value < kind.ge
    high = kind.le is not None and value > kind.le
    if low or high:
        if memory:
            bounds = f"from {format_bytes(kind.ge or 0)} to {format_bytes(kind.le or MOST_MEMORY)}"
            advice = f"; 0.5GiB is {1 << 29} bytes" if kind.ge == LEAST_MEMORY and low else ""
            raise ValueError(f"expected an amount of memory {bounds}, found {_shown(text)}{advice}")
        raise ValueError(f"expected {expected(kind)}, found {_shown(text)}")
    return value


def _parse_table(text: str) -> TraceTable:
    """Parse COUNTxIDS:DIM[:EXPONENT[:IDS_PER_SAMPLE]]."""
    count, x, rest = text.partition("x")
    parts = rest.split(":")
    if not x or not 2 <= len(parts) <= 4 or not all(_NUMBER.fullmatch(part) for part in (count, *parts)):
        raise ValueError(f"expected {_TABLES}; found {_shown(text)}")
    fields = msgspec.structs.fields(TraceTable)
    values = {}
    for field, part in zip(fields, (count, *parts), strict=False):
        kind = _inner(mi.type_info(field.type))
        try:
            values[field.name] = _checked(kind, _number(kind, part), part, memory=False)
        except ValueError as error:
            raise ValueError(f"{field.name} of {_shown(text)}: {error}") from None
    return TraceTable(**values)  # type: ignore[arg-type]


def _shown(text: str) -> str:
    if not text:
        return "nothing"
    return repr(text[:_LONGEST_SHOWN]) + "…" * (len(text) > _LONGEST_SHOWN)
