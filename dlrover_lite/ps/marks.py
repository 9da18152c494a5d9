"""Which minibatches have been applied in which slots, so that each is applied once (design, section 5).

A set of slots is a whole number here, bit i for slot i: 4,096 bits, combined in a fraction of a microsecond.

A minibatch whose push was interrupted is applied in some groups and not in others: its marks say to how many of the first groups, slot by slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from dlrover_lite.intervals import IntervalSet, Range
from dlrover_lite.slots import BITMAP_BYTES, SLOTS

__all__ = ["ALL_SLOTS", "Marks", "mask_of", "to_bitmap"]

ALL_SLOTS = (1 << SLOTS) - 1
WHOLE = 1 << 16
"""Groups that a minibatch is applied to when it is applied to all."""

Name = tuple[int, int, int]
"""Epoch, number of the minibatch, and how many of the first groups it was applied to."""


def mask_of(bitmap: bytes | memoryview) -> int:
    """A set of slots from the wire (``slots.pack``). Raises ValueError for another length."""
    if len(bitmap) != BITMAP_BYTES:
        raise ValueError(f"a set of slots of {len(bitmap)} bytes")
    return int.from_bytes(bitmap, "little")


def to_bitmap(mask: int) -> bytes:
    return mask.to_bytes(BITMAP_BYTES, "little")


class Entries(Protocol):
    """Keeps sets of slots by name, where they outlive the process (``state.MarkEntries``)."""

    def items(self) -> Iterator[tuple[Name, int]]: ...

    def put(self, name: Name, slots: int) -> None: ...

    def remove(self, name: Name) -> None: ...


class _Parcel(msgspec.Struct, frozen=True, array_like=True):
    """Marks on their way with a move."""

    below: int
    consumed: list[tuple[int, list[Range]]]
    applied: list[tuple[int, int, bytes]]
    partly: list[tuple[int, int, int, bytes]] = []
    """Applied to so many of the first groups."""


class Marks:
    """Of one parameter server. What is consumed is consumed in all slots; what isn't, is known slot by slot. What is consumed isn't in
    ``kept``: the master's orders say it, before anything is pushed."""

    def __init__(self, kept: Entries | None = None) -> None:
        self._below = 0
        self._consumed: dict[int, IntervalSet] = {}
        self._kept = kept
        self._applied: dict[Name, int] = dict(kept.items()) if kept is not None else {}
        self._partly = {(epoch, k) for epoch, k, groups in self._applied if groups < WHOLE}

    def __len__(self) -> int:
        """Minibatches known slot by slot."""
        return len({(epoch, k) for epoch, k, _ in self._applied}) if self._partly else len(self._applied)

    def applied(self, epoch: int, k: int, group: int = WHOLE - 1) -> int:
        """The slots in which a push of this name changes nothing any more in this group (default: in any)."""
        if epoch < self._below:
            return ALL_SLOTS
        consumed = self._consumed.get(epoch)
        if consumed is not None and k in consumed:
            return ALL_SLOTS
        found = self._applied.get((epoch, k, WHOLE), 0)
        if group < WHOLE - 1 and (epoch, k) in self._partly:
            for name, slots in self._applied.items():
                if name[:2] == (epoch, k) and name[2] > group:
                    found |= slots
        return found

    def is_partly(self, epoch: int, k: int) -> bool:
        """Whether it was interrupted, and there may be slots where some groups have it and others don't."""
        return (epoch, k) in self._partly

    def add(self, epoch: int, k: int, slots: int, groups: int = WHOLE) -> None:
        """It has been applied in these slots to the first ``groups`` groups; WHOLE: to all."""
        if not slots or not groups:
            return
        self._put((epoch, k, groups), self._applied.get((epoch, k, groups), 0) | slots)
        if groups < WHOLE:
            self._partly.add((epoch, k))
        elif (epoch, k) in self._partly:
            self._forget_parts(epoch, k, slots)

    def consumed(self, below: int, ranges: Iterable[tuple[int, Iterable[Range]]]) -> None:
        """What every server has acknowledged, as the ledger says: from all epochs ``below``, and these of later ones."""
        self._below = max(self._below, below)
        for epoch, of_epoch in ranges:
            if epoch >= self._below:
                self._consumed.setdefault(epoch, IntervalSet()).update(of_epoch)
        self._consumed = {epoch: done for epoch, done in self._consumed.items() if epoch >= self._below}
        nothing = IntervalSet()
        for name in list(self._applied):
            if name[0] < self._below or name[1] in self._consumed.get(name[0], nothing):
                self._put(name, 0)

    def forget(self, slots: int) -> None:
        """These slots are another's now."""
        for name, mask in list(self._applied.items()):
            if mask & slots:
                self._put(name, mask & ~slots)

    def parcel(self, slots: int) -> bytes:
        """All that is to go with a move of these slots."""
        there = [(name, to_bitmap(mask & slots)) for name, mask in self._applied.items() if mask & slots]
        applied = [(epoch, k, bitmap) for (epoch, k, groups), bitmap in there if groups == WHOLE]
        partly = [(*name, bitmap) for name, bitmap in there if name[2] < WHOLE]
        consumed = [(epoch, list(done)) for epoch, done in self._consumed.items()]
        return msgspec.msgpack.encode(_Parcel(self._below, consumed, applied, partly))

    def unpack(self, parcel: bytes | memoryview) -> None:
        """Take over what ``parcel`` gave. Raises ValueError for bytes that it can't have given; nothing is changed then."""
        try:
            found = msgspec.msgpack.decode(parcel, type=_Parcel)
            names = [((epoch, k, WHOLE), mask_of(bitmap)) for epoch, k, bitmap in found.applied]
            names += [((epoch, k, groups), mask_of(bitmap)) for epoch, k, groups, bitmap in found.partly]
        except msgspec.MsgspecError as error:
            raise ValueError(f"marks that make no sense: {error}") from error
        if any(min(name) < 0 or name[2] > WHOLE for name, _ in names):
            raise ValueError("marks that make no sense: of negative numbers, or too many groups")
        for (epoch, k, groups), mask in names:
            self.add(epoch, k, mask, groups)
        self.consumed(found.below, found.consumed)

    def _forget_parts(self, epoch: int, k: int, slots: int) -> None:
        """It is applied to all groups in these slots."""
        for name in [name for name in self._applied if name[:2] == (epoch, k) and name[2] < WHOLE]:
            self._put(name, self._applied[name] & ~slots)

    def _put(self, name: Name, slots: int) -> None:
        if slots:
            self._applied[name] = slots
            if self._kept is not None:
                self._kept.put(name, slots)
            return
        del self._applied[name]
        if self._kept is not None:
            self._kept.remove(name)
        epoch, k, groups = name
        if groups < WHOLE and not any(other[:2] == (epoch, k) and other[2] < WHOLE for other in self._applied):
            self._partly.discard((epoch, k))
