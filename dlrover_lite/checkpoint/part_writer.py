"""Writing a part: rows come in any order, and go out in blocks of neighbouring slots, or as they lie.

The caller's thread puts rows in order; another one does the checksums and writes. Memory: a block for each sixteenth of the slots, if there
are such blocks, and twelve of each kind that are full and not written yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite import slots as slot_sets
from dlrover_lite.checkpoint.buckets import Buckets, Full, padding
from dlrover_lite.checkpoint.deflate import compress, crc32
from dlrover_lite.checkpoint.destination import FileWriter, Piece
from dlrover_lite.checkpoint.layout import (
    BLOCK_BYTES,
    BUCKET_SHIFT,
    BUCKETS,
    ENTRY,
    GATHERED,
    LYING,
    TAIL,
    PartHead,
    Tail,
    pack_head,
    pack_tail,
)
from dlrover_lite.checkpoint.manifest import Marks, PartEntry
from dlrover_lite.checkpoint.raw_rows import RawRoom, RawRooms, raw_row_bytes
from dlrover_lite.errors import JobError
from dlrover_lite.rows import RowData

__all__ = ["PartWriter"]

_AT_ONCE = 4
"""Blocks in one write: after each, the disk may have to wait until this process gets the processor (and a thread the interpreter) again."""
_MOST_UNDER_WAY = 2
"""Such writes."""
_TOGETHER = 16
"""The rows of a full block are a multiple of that, if there are many: then its arrays begin at cache lines."""
_LYING_TOGETHER = 8
"""As many rows as they lie: their arrays begin at cache lines behind ids."""


class _Stored(NamedTuple):
    """A block, but for its zeros at the end."""

    pieces: list[Piece]
    rows: int
    group: int
    first_slot: int
    last_slot: int
    kind: int


def _size(pieces: Sequence[Piece]) -> int:
    return sum(len(piece) for piece in pieces)


class PartWriter:
    """One part of a cut, written by one process. Used as a context, it leaves nothing behind unless ``finish`` has returned.

    Every method raises JobError for a destination that is full, forbidden, gone or failing (``add`` a little later): abandon the part then.
    """

    def __init__(
        self, file: FileWriter, name: str, head: PartHead, owned: slot_sets.SlotSet, *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        """``owned``: the slots whose rows this part has, whether or not there are any."""
        self._file, self._name, self._head, self._owned = file, name, head, owned
        self._owns_all = bool(owned.all())
        self._block_bytes = block_bytes
        self._group = -1
        self._buckets: Buckets | None = None
        self._full: list[Full] = []
        self._under_way: deque[Future[list[Full]]] = deque()
        self._rooms = RawRooms(head.groups, block_bytes, _AT_ONCE * (1 + _MOST_UNDER_WAY) + 1 + len(head.groups))
        self._free: list[RawRoom] = []
        self._laid: list[tuple[RawRoom, int]] = []
        self._laying: deque[Future[list[RawRoom]]] = deque()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._failed = False
        self._entries: list[tuple[int, ...]] = []
        self._rows = [0] * len(head.groups)
        start = pack_head(head)
        file.write([start])
        self._position = len(start)

    @property
    def bytes_written(self) -> int:
        return self._position

    def add(self, group: int, rows: RowData, slots: NDArray[np.uint16], which: NDArray[np.intp] | None = None) -> None:
        """Rows of a group with the slots [n] they are in; ``which`` of them, if not all. They are copied. Best some thousands at a time,
        and group after group.

        Raises ValueError for rows that don't fit the group, or aren't in the part's slots.
        """
        chosen = slots if which is None else slots.take(which)
        self._check(group, rows, slots, chosen)
        buckets = self.buckets(group)
        rows = RowData(*map(np.ascontiguousarray, rows))
        numbers = (chosen >> BUCKET_SHIFT).astype(np.uint8)
        order = np.argsort(numbers, kind="stable")
        if which is not None:
            order = which.take(order)
        counts = np.bincount(numbers, minlength=BUCKETS)
        ends = np.cumsum(counts)
        for number in np.flatnonzero(counts).tolist():
            left = order[ends[number] - counts[number] : ends[number]]
            while len(left):
                left = left[buckets.take(number, rows, slots, left) :]
                if buckets.used[number] == buckets.capacity:
                    self._flush(number)

    def room(self, group: int) -> RawRoom:
        """Where the next block of this group's rows as they lie may be put. Nothing of it is checked."""
        if not self._free and (made := self._rooms.make()) is not None:
            self._free.append(made)
        if not self._free:
            self._submit_laid()
            self._free += self._laying.popleft().result()
        shape = self._head.groups[group]
        capacity = max(1, self._block_bytes // raw_row_bytes(shape))
        capacity -= capacity % _LYING_TOGETHER if capacity >= _LYING_TOGETHER**2 else 0
        room = next((room for room in self._free if room.group == group), self._free[-1])
        self._free.remove(room)
        room.begin(group, shape, capacity)
        return room

    def lay(self, room: RawRoom, used: int) -> None:
        """The first numbers of ``room`` are a block; the room isn't the caller's any more."""
        self._laid.append((room, used))
        if len(self._laid) == _AT_ONCE:
            self._submit_laid()

    def counted(self, group: int, rows: int) -> None:
        """Add to the count of this group's rows that blocks of rows as they lie hold."""
        self._rows[group] += rows

    def _submit_laid(self) -> None:
        while self._laying and self._laying[0].done():
            self._free += self._laying.popleft().result()
        if self._laid:
            self._laying.append(self._writer.submit(self._store_laid, self._laid))
            self._laid = []

    def _store_laid(self, blocks: list[tuple[RawRoom, int]]) -> list[RawRoom]:
        """In the writing thread."""
        last = slot_sets.SLOTS - 1
        self._store(
            [_Stored(room.pieces(used), used, room.group, 0, last, LYING) for room, used in blocks], aligned=True
        )
        return [room for room, _ in blocks]

    def buckets(self, group: int) -> Buckets:
        """Where rows of a group may also be put, each in the bucket of its slots: none where one is full, until ``flush_full``. Nothing is
        checked. Groups come one after the other."""
        if group != self._group or self._buckets is None:
            self._flush_all()
            self._group = group
            shape = self._head.groups[group]
            capacity = max(1, self._block_bytes // shape.known_row_bytes)
            capacity -= capacity % _TOGETHER if capacity >= _TOGETHER**2 else 0
            self._buckets = Buckets(shape, capacity, _AT_ONCE * (1 + _MOST_UNDER_WAY))
        return self._buckets

    def flush_full(self) -> None:
        """There is room in all buckets again."""
        buckets = self._buckets
        assert buckets is not None
        for number in np.flatnonzero(buckets.used == buckets.capacity).tolist():
            self._flush(number)

    def _check(self, group: int, rows: RowData, slots: NDArray[np.uint16], chosen: NDArray[np.uint16]) -> None:
        shape = self._head.groups[group]
        count = len(slots)
        if rows.values.shape != (count, shape.dim) or rows.state.shape != (count, shape.state):
            raise ValueError(f"rows {rows.values.shape} with state {rows.state.shape} in group {group}: {shape}")
        if any(len(array) != count for array in rows):
            raise ValueError("arrays of different lengths")
        if chosen.max(initial=0) >= slot_sets.SLOTS or not (self._owns_all or self._owned.take(chosen).all()):
            raise ValueError(f"rows in slots that aren't those of part {self._name}")

    def _flush_all(self) -> None:
        """All is written, and the memory given back."""
        buckets = self._buckets
        if buckets is None:
            return
        self._submit()  # apart from those that aren't full, which go through the page cache
        for number in np.flatnonzero(buckets.used).tolist():
            self._flush(number)
        self._submit(last=True)
        while self._under_way:
            self._under_way.popleft().result()
        self._buckets = None

    def _flush(self, number: int) -> None:
        buckets = self._buckets
        assert buckets is not None
        self._full.append(buckets.empty(number))
        self._rows[self._group] += self._full[-1].used
        if len(self._full) == _AT_ONCE:
            self._submit()
        buckets.renew(number)

    def _submit(self, *, last: bool = False) -> None:
        assert self._buckets is not None
        while len(self._under_way) >= _MOST_UNDER_WAY:
            self._buckets.written(self._under_way.popleft().result())
        if self._full:
            self._under_way.append(self._writer.submit(self._store_full, self._full, self._group, last))
            self._full = []

    def _store_full(self, blocks: list[Full], group: int, last: bool) -> list[Full]:
        """In the writing thread."""
        found = []
        for block in blocks:
            slots = block.room.slots[: block.used]
            pieces = block.room.pieces(block.used)
            found.append(_Stored(pieces, block.used, group, int(slots.min()), int(slots.max()), GATHERED))
        self._store(found, last=last)
        return blocks

    def _store(self, blocks: list[_Stored], *, last: bool = False, aligned: bool = False) -> None:
        """In the writing thread, which alone has to do with file, position and entries meanwhile. ``last``: what follows the last block
        is aligned; ``aligned``: what follows any."""
        self._go_on()
        position, entries, together = self._position, [], []
        for block in blocks:
            pieces = self._packed(block.pieces, position, last=aligned or (last and block is blocks[-1]))
            size = _size(pieces)
            span = block.first_slot, block.last_slot
            entries.append((position, size, block.rows, block.group, *span, crc32(pieces), block.kind))
            together += pieces
            position += size
        self._failed = True  # until they are written
        self._file.write(together)
        self._failed = False
        self._entries += entries
        self._position = position

    def _packed(self, pieces: list[Piece], position: int, *, last: bool) -> list[Piece]:
        size = _size(pieces)
        if self._head.codec == "zlib":
            return [compress([*pieces, bytes(padding(size, size))])]
        zeros = padding(position + size, size, last=last)
        return [*pieces, bytes(zeros)] if zeros else pieces

    def finish(self, marks: Marks = Marks(), clocks: Sequence[int] = ()) -> PartEntry:  # noqa: B008 - frozen
        """Durably there, under its name; what the manifest is to say of it. ``clocks``: of each group, for whoever writes the next cut."""
        self._flush_all()
        self._submit_laid()
        while self._laying:
            self._laying.popleft().result()
        self._go_on()
        self._writer.shutdown()
        index = np.array(self._entries, ENTRY).tobytes()
        tail = Tail(self._position, sum(self._rows), len(self._entries), crc32([index]))
        self._file.write([index, pack_tail(tail)] if index else [pack_tail(tail)])
        self._file.finish()
        return PartEntry(
            file=self._name,
            ps=self._head.ps,
            slots=slot_sets.pack(self._owned),
            rows=self._rows,
            stored_bytes=self._position + len(index) + TAIL.size,
            blocks=len(self._entries),
            index_crc32=tail.index_crc32,
            clocks=list(clocks),
            marks=marks,
        )

    def _go_on(self) -> None:
        if self._failed:
            raise JobError(f"{self._name} can't be written any further: a block of it has failed before")

    def abandon(self) -> None:
        """Without effect on a part that is finished."""
        self._writer.shutdown(cancel_futures=True)
        self._buckets = None
        self._free, self._laid = [], []
        self._laying.clear()
        self._file.abandon()

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abandon()
