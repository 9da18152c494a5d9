"""Sets of slots: the 4,096 slices of the key space that parameter servers own (design, section 4).

In memory a set is a bool array [4096]; on the wire and on disk 512 bytes, a bit a slot, the lowest bit first.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import UsageError

__all__ = ["BITMAP_BYTES", "SLOTS", "SlotSet", "describe", "none", "of", "pack", "parse", "unpack"]

SLOTS = 4096
BITMAP_BYTES = SLOTS // 8

SlotSet = NDArray[np.bool_]


def none() -> SlotSet:
    return np.zeros(SLOTS, np.bool_)


def of(slots: Iterable[int]) -> SlotSet:
    """Make the set of these slots. Raises IndexError for a number that is none."""
    members = none()
    members[list(slots)] = True
    return members


def pack(members: SlotSet) -> bytes:
    return np.packbits(members, bitorder="little").tobytes()


def unpack(bitmap: bytes | memoryview) -> SlotSet:
    """Unpack a set of slots. Raises ValueError for anything but 512 bytes."""
    if len(bitmap) != BITMAP_BYTES:
        raise ValueError(f"a set of slots of {len(bitmap)} bytes")
    return np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little").view(np.bool_)


def describe(members: SlotSet) -> str:
    """Write a set of slots in words: ``0-99, 200``."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], members, [False])).astype(np.int8)))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return ", ".join(f"{start}-{stop - 1}" if stop - start > 1 else str(start) for start, stop in pairs)


def parse(text: str) -> SlotSet:
    """Parse what ``describe`` writes. Raises UsageError for anything else, and for an empty set."""
    members = none()
    for piece in text.split(","):
        first, dash, last = (part.strip() for part in piece.partition("-"))
        numbers = (first, last) if dash else (first, first)
        if not all(number.isascii() and number.isdecimal() and len(number) <= 4 for number in numbers):
            raise UsageError(
                f"{text!r} is no set of slots", hint=f"Write numbers and ranges from 0 to {SLOTS - 1}: 0-99,200"
            )
        start, stop = (int(number) for number in numbers)
        if stop < start or stop >= SLOTS:
            raise UsageError(
                f"there are no slots {piece.strip()}", hint=f"They go from 0 to {SLOTS - 1}, the lower one first: 0-99"
            )
        members[start : stop + 1] = True
    return members
