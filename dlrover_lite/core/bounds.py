"""Types of the fields of messages: what a number, a text or a list may be at most. msgspec refuses whatever lies outside when it decodes.

All bounds are far beyond what any job needs, and small enough that sums of such numbers, sleeps of so many seconds and limits of so many
cores are still possible. A float with bounds is never NaN nor infinite.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta

__all__ = [
    "Blob",
    "ByKey",
    "Bytes",
    "Cores",
    "Count",
    "ExitCode",
    "IdBits",
    "Items",
    "Json",
    "Name",
    "Nice",
    "Number",
    "OptionalIndex",
    "Owners",
    "Pid",
    "Rate",
    "Row",
    "Seconds",
    "SignalNumber",
    "SlotBits",
    "Text",
    "Timestamp",
    "Url",
    "clipped",
]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Count = Annotated[int, Meta(ge=0, le=1 << 53)]
"""Number of anything; also the number of one of them, where they are numbered."""
OptionalIndex = Annotated[int, Meta(ge=-1, le=1 << 53)]
"""A number; -1: none."""
Bytes = Annotated[int, Meta(ge=0, le=1 << 53)]
IdBits = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""A random number that tells one thing from another."""
Nice = Annotated[int, Meta(ge=-20, le=19)]
SignalNumber = Annotated[int, Meta(ge=1, le=64)]
Pid = Annotated[int, Meta(ge=0, le=1 << 31)]
ExitCode = Annotated[int, Meta(ge=-(1 << 16), le=1 << 32)]
"""Exit code of a process: minus the number of a signal, or what the process has returned."""

Seconds = Annotated[float, Meta(ge=0, le=1e10)]
"""A duration of up to 300 years."""
Timestamp = Annotated[float, Meta(ge=0, le=1e12)]
"""Seconds since the epoch."""
Cores = Annotated[float, Meta(ge=0, le=1e5)]
Rate = Annotated[float, Meta(ge=0, le=1e15)]
"""Rate of anything, per second or per anything else."""
Number = Annotated[float, Meta(ge=-1.7e308, le=1.7e308)]
"""Any finite number: a loss, for instance."""

Name = Annotated[str, Meta(max_length=1024)]
"""Name of a node, a job, a table, a version."""
Url = Annotated[str, Meta(max_length=16384)]
"""A path, an endpoint, a URL."""
LONGEST_TEXT = 1 << 20
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
"""Text for people, tracebacks included."""

SlotBits = Annotated[bytes, Meta(max_length=512)]
"""A set of slots, ``slot_sets.pack``."""
Owners = Annotated[bytes, Meta(max_length=8192)]
"""A uint16 for each slot."""
Blob = Annotated[bytes, Meta(max_length=1 << 25)]

Json = Annotated[str, Meta(max_length=1 << 25)]
"""JSON as it is stored, to be understood by whoever reads it."""

Items = Annotated[list[T], Meta(max_length=1 << 20)]
Row = Annotated[tuple[T, ...], Meta(max_length=1 << 20)]
"""A row of items, as ``Items``, for structs that are compared or hashed."""
ByKey = Annotated[dict[K, V], Meta(max_length=1 << 20)]


def clipped(text: str, most: int = LONGEST_TEXT) -> str:
    """Return ``text``, without its middle if it is longer than ``most`` characters."""
    if len(text) <= most:
        return text
    left_out = f"\n[… {len(text) - most:,} characters and more are left out …]\n"
    kept = max(0, most - len(left_out))
    return text[: kept // 2] + left_out + text[len(text) - (kept - kept // 2) :]
