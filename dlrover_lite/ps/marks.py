"""Which minibatches have been applied in which slots, so that each is applied once (design, section 5).

A set of slots is a whole number here, bit i for slot i: 4,096 bits, combined in a fraction of a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dlrover_lite.intervals import IntervalSet, Range
from dlrover_lite.slots import BITMAP_BYTES, SLOTS

__all__ = ["ALL_SLOTS", "Marks", "mask_of", "to_bitmap"]

ALL_SLOTS = (1 << SLOTS) - 1


def mask_of(bitmap: bytes | memoryview) -> int:
    """A set of slots from the wire (``slots.pack``). Raises ValueError for another length."""
    if len(bitmap) != BITMAP_BYTES:
        raise ValueError(f"a set of slots of {len(bitmap)} bytes")
    return int.from_bytes(bitmap, "little")


def to_bitmap(mask: int) -> bytes:
    return mask.to_bytes(BITMAP_BYTES, "little")


class _Parcel(msgspec.Struct, frozen=True, array_like=True):
    """Marks on their way with a move."""

    below: int
    consumed: list[tuple[int, list[Range]]]
    applied: list[tuple[int, int, bytes]]


class Marks:
    """Of one parameter server. What is consumed is consumed in all slots; what isn't, is known slot by slot."""

    def __init__(self) -> None:
        self._below = 0
        self._consumed: dict[int, IntervalSet] = {}
        self._applied: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        """Minibatches known slot by slot."""
        return len(self._applied)

    def applied(self, epoch: int, k: int) -> int:
        """The slots in which a push of this name changes nothing any more."""
        if epoch < self._below:
            return ALL_SLOTS
        found = self._applied.get((epoch, k))
        if found is not None:
            return found
        consumed = self._consumed.get(epoch)
        return ALL_SLOTS if consumed is not None and k in consumed else 0

    def add(self, epoch: int, k: int, slots: int) -> None:
        self._applied[epoch, k] = self._applied.get((epoch, k), 0) | slots

    def consumed(self, below: int, ranges: Iterable[tuple[int, Iterable[Range]]]) -> None:
        """What every server has acknowledged, as the ledger says: from all epochs ``below``, and these of later ones."""
        self._below = max(self._below, below)
        for epoch, of_epoch in ranges:
            if epoch >= self._below:
                self._consumed.setdefault(epoch, IntervalSet()).update(of_epoch)
        self._consumed = {epoch: done for epoch, done in self._consumed.items() if epoch >= self._below}
        nothing = IntervalSet()
        self._applied = {
            (epoch, k): slots
            for (epoch, k), slots in self._applied.items()
            if epoch >= self._below and k not in self._consumed.get(epoch, nothing)
        }

    def forget(self, slots: int) -> None:
        """These slots are another's now."""
        self._applied = {name: left for name, mask in self._applied.items() if (left := mask & ~slots)}

    def parcel(self, slots: int) -> bytes:
        """All that is to go with a move of these slots."""
        applied = [
            (epoch, k, to_bitmap(there)) for (epoch, k), mask in self._applied.items() if (there := mask & slots)
        ]
        consumed = [(epoch, list(done)) for epoch, done in self._consumed.items()]
        return msgspec.msgpack.encode(_Parcel(self._below, consumed, applied))

    def unpack(self, parcel: bytes | memoryview) -> None:
        """Take over what ``parcel`` gave. Raises ValueError for bytes that it can't have given; nothing is changed then."""
        try:
            found = msgspec.msgpack.decode(parcel, type=_Parcel)
            applied = [(epoch, k, mask_of(bitmap)) for epoch, k, bitmap in found.applied]
        except msgspec.MsgspecError as error:
            raise ValueError(f"marks that make no sense: {error}") from error
        for epoch, k, mask in applied:
            self.add(epoch, k, mask)
        self.consumed(found.below, found.consumed)
