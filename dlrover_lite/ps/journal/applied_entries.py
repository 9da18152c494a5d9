"""Applied minibatches in memory that outlives the process: those of ``AppliedMinibatches``, at every moment as they are or as they were."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError
from dlrover_lite.core.slots import BITMAP_BYTES
from dlrover_lite.ps.journal.applied_minibatches import Name, Part
from dlrover_lite.ps.journal.state_words import Header, damaged

__all__ = ["AppliedEntries"]

_HALF_BYTES = 8 * (Header.HALVES[1] - Header.HALVES[0])


class AppliedEntries:
    """Sets of slots by name. An entry: whether there is one, the name, the set's words. Interrupted pushes are rare and few: all that is
    known of them is written anew when it changes, in that half of its region that doesn't count, and counts from one store on."""

    _WORDS = 3 + BITMAP_BYTES // 8
    MOST = (Header.HALVES[0] - Header.MARKS) // _WORDS

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
        bitmap = np.frombuffer(slots.to_bytes(BITMAP_BYTES, "little"), np.uint64)
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
            parts = msgspec.msgpack.decode(self._half(half)[:size].tobytes(), type=list[Part])
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
        start = Header.MARKS + place * self._WORDS
        return self._words[start : start + self._WORDS]
