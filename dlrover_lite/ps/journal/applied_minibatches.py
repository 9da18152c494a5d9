"""Which minibatches have been applied in which slots, so that each is applied once (design, section 5).

A set of slots is a whole number here, bit i for slot i: 4,096 bits, combined in a fraction of a microsecond.

A minibatch whose push was interrupted is applied in some groups and not in others: ``Part`` says how far, until a repeat has done the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.decoding import from_msgpack
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.intervals import IntervalSet, Range
from dlrover_lite.core.slot_sets import BITMAP_BYTES, SLOTS, unpack
from dlrover_lite.ps.journal.state_words import Header, damaged
from dlrover_lite.tables.hashing import SLOT_SHIFT

__all__ = ["ALL_SLOTS", "AppliedEntries", "AppliedMinibatches", "Part", "mask_of", "to_bitmap"]

ALL_SLOTS = (1 << SLOTS) - 1
_HALF_BYTES = 8 * (Header.HALVES[1] - Header.HALVES[0])

Name = tuple[int, int]
"""Epoch, and number of the minibatch."""


def mask_of(bitmap: bytes | memoryview) -> int:
    """Decode a set of slots from the wire (``slot_sets.pack``). Raises ValueError for another length."""
    if len(bitmap) != BITMAP_BYTES:
        raise ValueError(f"a set of slots of {len(bitmap)} bytes")
    return int.from_bytes(bitmap, "little")


def to_bitmap(mask: int) -> bytes:
    return mask.to_bytes(BITMAP_BYTES, "little")


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What was applied of an interrupted push in these slots: all of the first groups, and some keys of the next one."""

    epoch: int
    k: int
    slots: bytes
    groups: int
    """Number of groups, from the first on, that were applied completely."""
    tables: bytes = b""
    """uint16 [keys]: positions of the applied keys' tables in the next group."""
    hashes: bytes = b""
    """uint64 [keys]: hashes of the applied keys of the next group."""

    @property
    def mask(self) -> int:
        return mask_of(self.slots)

    def done(self, table: int) -> NDArray[np.uint64]:
        """Return the hashes of the applied keys of one table of the next group."""
        of_table = np.frombuffer(self.tables, np.uint16) == table
        return np.extract(of_table, np.frombuffer(self.hashes, np.uint64))

    def within(self, slots: int) -> Part:
        """Return the part of it that is about these slots."""
        hashes = np.frombuffer(self.hashes, np.uint64)
        there = unpack(to_bitmap(slots))[hashes >> np.uint64(SLOT_SHIFT)]
        tables = np.frombuffer(self.tables, np.uint16)[there]
        bitmap = to_bitmap(self.mask & slots)
        return Part(self.epoch, self.k, bitmap, self.groups, tables.tobytes(), hashes[there].tobytes())

    def check(self) -> None:
        """Raise ValueError for a record that makes no sense."""
        if len(self.hashes) != 4 * len(self.tables) or len(self.tables) % 2 or min(self.epoch, self.k, self.groups) < 0:
            raise ValueError("applied minibatches that make no sense: half a push of no keys")
        mask_of(self.slots)


class AppliedEntries:
    """The applied minibatches in memory that outlives the process, at every moment as they are or as they were: sets of slots by name. An
    entry: whether there is one, the name, the set's words. Interrupted pushes are rare and few: all that is known of them is written anew
    when it changes, in that half of its region that doesn't count, and counts from one store on."""

    _WORDS = 3 + BITMAP_BYTES // 8
    MOST = (Header.HALVES[0] - Header.APPLIED) // _WORDS

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words
        self._places: dict[Name, int] = {}
        self._free: list[int] = []
        for place in range(self._used):
            entry = self._entry(place)
            if entry[0]:
                self._places[int(entry[1]), int(entry[2])] = place
            else:
                self._free.append(place)

    def items(self) -> Iterator[tuple[Name, int]]:
        for name, place in self._places.items():
            yield name, int.from_bytes(self._entry(place)[3:].tobytes(), "little")

    def put(self, name: Name, slots: int) -> None:
        """Store the slots of ``name``. In between the entry holds some of what the old set and some of what the new one has: sets only grow
        by what has been applied, and shrink by what other servers have taken over, so any such mixture is as true."""
        bitmap = np.frombuffer(to_bitmap(slots), np.uint64)
        place = self._places.get(name)
        if place is not None:
            self._entry(place)[3:] = bitmap
            return
        place = self._free.pop() if self._free else self._used
        if place >= self.MOST:
            raise JobError(f"{place} minibatches are open: there is no room to note another")
        entry = self._entry(place)
        entry[1:3] = name
        entry[3:] = bitmap
        self._words[Header.ENTRIES] = max(self._used, place + 1)
        entry[0] = 1
        self._places[name] = place

    def remove(self, name: Name) -> None:
        place = self._places.pop(name)
        self._entry(place)[0] = 0
        self._free.append(place)

    def parts(self) -> list[Part]:
        """Decode the interrupted pushes. Raises JobError for bytes that can't be them."""
        half, size = divmod(int(self._words[Header.PARTS]), 1 << 32)
        if not size:
            return []
        if half > 1 or size > _HALF_BYTES:
            raise damaged("it has no such interrupted pushes")
        try:
            parts = from_msgpack(self._half(half)[:size].tobytes(), list[Part])
            for part in parts:
                part.check()
        except ValueError as error:
            raise damaged(f"its interrupted pushes can't be read: {error}") from error
        return parts

    def put_parts(self, parts: list[Part]) -> None:
        """Store ``parts`` in place of all interrupted pushes stored before."""
        encoded = msgspec.msgpack.encode(parts) if parts else b""
        if len(encoded) > _HALF_BYTES:
            raise JobError(f"there is no room to note {len(parts)} interrupted pushes")
        half = 1 - (int(self._words[Header.PARTS]) >> 32)
        self._half(half)[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        self._words[Header.PARTS] = half << 32 | len(encoded)

    def _half(self, half: int) -> NDArray[np.uint8]:
        start = Header.HALVES[half]
        return self._words[start : start + _HALF_BYTES // 8].view(np.uint8)

    @property
    def _used(self) -> int:
        return int(self._words[Header.ENTRIES])

    def _entry(self, place: int) -> NDArray[np.uint64]:
        start = Header.APPLIED + place * self._WORDS
        return self._words[start : start + self._WORDS]


class _Parcel(msgspec.Struct, frozen=True, array_like=True):
    """Applied minibatches on their way with a move."""

    below: int
    consumed: list[tuple[int, list[Range]]]
    applied: list[tuple[int, int, bytes]]
    parts: list[Part] = []


class AppliedMinibatches:
    """The applied minibatches of one parameter server, kept in ``entries``. What is consumed is consumed in all slots; what isn't, is known
    slot by slot. What is consumed isn't in the entries: the master's orders say it, before anything is pushed."""

    def __init__(self, entries: AppliedEntries) -> None:
        self._below = 0
        self._consumed: dict[int, IntervalSet] = {}
        self._entries = entries
        self._applied: dict[Name, int] = dict(entries.items())
        self._parts: list[Part] = entries.parts()

    def applied(self, epoch: int, k: int) -> int:
        """Return the slots in which a push of this name changes nothing any more."""
        if epoch < self._below:
            return ALL_SLOTS
        found = self._applied.get((epoch, k))
        if found is not None:
            return found
        consumed = self._consumed.get(epoch)
        return ALL_SLOTS if consumed is not None and k in consumed else 0

    def parts(self, epoch: int, k: int) -> list[Part]:
        """Return what else has been applied of the minibatch, in slots that ``applied`` doesn't return."""
        return [part for part in self._parts if (part.epoch, part.k) == (epoch, k)]

    def add(self, epoch: int, k: int, slots: int) -> None:
        self._put((epoch, k), self._applied.get((epoch, k), 0) | slots)
        if self._parts:
            self._limit_parts(lambda part: 0 if (part.epoch, part.k) != (epoch, k) else slots)

    def add_part(self, part: Part) -> None:
        """Record what has been applied of an interrupted push."""
        if part not in self._parts:
            self._put_parts([*self._parts, part])

    def consumed(self, below: int, ranges: Iterable[tuple[int, Iterable[Range]]]) -> None:
        """Record what every server has acknowledged, as the ledger says: all epochs before ``below``, and these ranges of later epochs."""
        self._below = max(self._below, below)
        for epoch, of_epoch in ranges:
            if epoch >= self._below:
                self._consumed.setdefault(epoch, IntervalSet()).update(of_epoch)
        self._consumed = {epoch: done for epoch, done in self._consumed.items() if epoch >= self._below}
        for name in list(self._applied):
            if self._is_consumed(*name):
                self._put(name, 0)
        if self._parts:
            self._limit_parts(lambda part: ALL_SLOTS if self._is_consumed(part.epoch, part.k) else 0)

    def forget(self, slots: int) -> None:
        """Forget what was applied in these slots, which another server owns now."""
        for name, mask in list(self._applied.items()):
            if mask & slots:
                self._put(name, mask & ~slots)
        if self._parts:
            self._limit_parts(lambda _: slots)

    def parcel(self, slots: int) -> bytes:
        """Encode all that is to go with a move of these slots."""
        below, consumed, applied = self.noted(slots)
        packed = [(epoch, k, to_bitmap(there)) for epoch, k, there in applied]
        parts = [part.within(slots) for part in self._parts if part.mask & slots]
        return msgspec.msgpack.encode(_Parcel(below, consumed, packed, parts))

    def noted(self, slots: int) -> tuple[int, list[tuple[int, list[Range]]], list[tuple[int, int, int]]]:
        """Return all that is known of these slots except interrupted pushes: what is consumed, as ``consumed`` takes it; and the names of
        what is applied, with the slots."""
        consumed = [(epoch, list(done)) for epoch, done in self._consumed.items()]
        applied = [(epoch, k, there) for (epoch, k), mask in self._applied.items() if (there := mask & slots)]
        return self._below, consumed, applied

    @property
    def interrupted(self) -> bool:
        """Whether there are pushes that were applied only in part, which a set of slots can't say."""
        return bool(self._parts)

    def unpack(self, parcel: bytes | memoryview) -> None:
        """Take over what ``parcel`` gave. Raises ValueError for bytes that it can't have given; nothing is changed then."""
        try:
            found = from_msgpack(parcel, _Parcel)
            applied = [(epoch, k, mask_of(bitmap)) for epoch, k, bitmap in found.applied]
        except msgspec.MsgspecError as error:
            raise ValueError(f"applied minibatches that make no sense: {error}") from error
        if any(min(epoch, k) < 0 for epoch, k, _ in applied):
            raise ValueError("applied minibatches that make no sense: negative numbers")
        for part in found.parts:
            part.check()
        for part in found.parts:
            self.add_part(part)
        for epoch, k, mask in applied:
            self.add(epoch, k, mask)
        self.consumed(found.below, found.consumed)

    def _is_consumed(self, epoch: int, k: int) -> bool:
        return epoch < self._below or (epoch in self._consumed and k in self._consumed[epoch])

    def _put(self, name: Name, slots: int) -> None:
        if slots:
            self._applied[name] = slots
            self._entries.put(name, slots)
        elif self._applied.pop(name, None) is not None:
            self._entries.remove(name)

    def _limit_parts(self, without: Callable[[Part], int]) -> None:
        """Remove from the parts the slots that ``without`` returns for each of them."""
        parts = []
        for part in self._parts:
            left = part.mask & ~without(part)
            if left:
                parts.append(part if left == part.mask else part.within(left))
        if parts != self._parts:
            self._put_parts(parts)

    def _put_parts(self, parts: list[Part]) -> None:
        self._parts = parts
        self._entries.put_parts(parts)
