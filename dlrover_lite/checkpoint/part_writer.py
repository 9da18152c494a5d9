"""Writing a part: rows come in any order, and go out in blocks of neighbouring slots.

The caller's thread puts rows in order; another one does the checksums and writes. Memory: a block for each sixteenth of the slots, and
twelve that are full and not written yet; 28 MiB.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrover_lite import slots as slot_sets
from dlrover_lite.checkpoint.deflate import compress, crc32
from dlrover_lite.checkpoint.destination import FileWriter, Piece
from dlrover_lite.checkpoint.layout import (
    ALIGNMENT,
    BLOCK_BYTES,
    BUCKET_SHIFT,
    BUCKETS,
    ENTRY,
    LARGE_BYTES,
    TAIL,
    GroupShape,
    PartHead,
    Tail,
    block_arrays,
    pack_head,
    pack_tail,
)
from dlrover_lite.checkpoint.manifest import Marks, PartEntry
from dlrover_lite.errors import JobError
from dlrover_lite.rows import RowData

__all__ = ["PartWriter"]

_AT_ONCE = 4
"""Blocks in one write: after each, the disk may have to wait until this process gets the processor (and a thread the interpreter) again."""
_MOST_UNDER_WAY = 2
"""Such writes."""


class _Bucket:
    """Room for one block of rows, as a block has them: full, it is written from where it is, past the page cache. Memory is touched as it
    fills."""

    def __init__(self, shape: GroupShape, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        size = capacity * shape.known_row_bytes
        self._room = mmap.mmap(-1, size + _padding(size, size))  # begins at a page, and is zeros
        self.slots, rows = block_arrays(self._room, capacity, shape)
        self.ids, self.tables, self.counts, self.ages, self.values, self.state = rows

    def take(self, rows: RowData, slots: NDArray[np.uint16], which: NDArray[np.intp]) -> int:
        """As many of these rows as there is room for; how many."""
        which = which[: self.capacity - self.used]
        start, stop = self.used, self.used + len(which)
        self.used = stop
        # The mode spares numpy a copy: all numbers are good.
        rows.ids.take(which, 0, self.ids[start:stop], "clip")
        rows.values.take(which, 0, self.values[start:stop], "clip")
        rows.state.take(which, 0, self.state[start:stop], "clip")
        rows.counts.take(which, 0, self.counts[start:stop], "clip")
        rows.ages.take(which, 0, self.ages[start:stop], "clip")
        slots.take(which, 0, self.slots[start:stop], "clip")
        rows.tables.take(which, 0, self.tables[start:stop], "clip")
        return len(which)

    def pieces(self) -> list[Piece]:
        if self.used == self.capacity:
            return [memoryview(self._room)]
        arrays: tuple[NDArray[Any], ...] = (
            self.ids,
            self.values,
            self.state,
            self.counts,
            self.ages,
            self.slots,
            self.tables,
        )
        return [array[: self.used].data.cast("B") for array in arrays if array.size]


def _padding(end: int, size: int, *, last: bool = False) -> int:
    """Zeros behind a block of this size that ends there. What follows the last of a group is aligned."""
    return -end % (ALIGNMENT if last or size >= LARGE_BYTES else 8)


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
        self._buckets: dict[int, _Bucket] = {}
        self._spare: list[_Bucket] = []
        self._full: list[_Bucket] = []
        self._under_way: deque[Future[list[_Bucket]]] = deque()
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

    def add(
        self, group: int, rows: RowData, slots: NDArray[np.uint16], which: NDArray[np.intp] | None = None
    ) -> None:
        """Rows of a group with the slots [n] they are in; ``which`` of them, if not all. They are copied. Best some thousands at a time, and
        group after group.

        Raises ValueError for rows that don't fit the group, or aren't in the part's slots.
        """
        chosen = slots if which is None else slots.take(which)
        self._check(group, rows, slots, chosen)
        if group != self._group:
            self._flush_all()
            self._group = group
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
                bucket = self._bucket(number)
                left = left[bucket.take(rows, slots, left) :]
                if bucket.used == bucket.capacity:
                    self._flush(number)
        self._rows[group] += len(chosen)

    def _check(self, group: int, rows: RowData, slots: NDArray[np.uint16], chosen: NDArray[np.uint16]) -> None:
        shape = self._head.groups[group]
        count = len(slots)
        if rows.values.shape != (count, shape.dim) or rows.state.shape != (count, shape.state):
            raise ValueError(f"rows {rows.values.shape} with state {rows.state.shape} in group {group}: {shape}")
        if any(len(array) != count for array in rows):
            raise ValueError("arrays of different lengths")
        if chosen.max(initial=0) >= slot_sets.SLOTS or not (self._owns_all or self._owned.take(chosen).all()):
            raise ValueError(f"rows in slots that aren't those of part {self._name}")

    def _bucket(self, number: int) -> _Bucket:
        if number not in self._buckets:
            shape = self._head.groups[self._group]
            capacity = max(1, self._block_bytes // shape.known_row_bytes)
            self._buckets[number] = self._spare.pop() if self._spare else _Bucket(shape, capacity)
        return self._buckets[number]

    def _flush_all(self) -> None:
        """All is written, and the memory given back."""
        self._submit()  # apart from those that aren't full, which go through the page cache
        for number in sorted(self._buckets):
            self._flush(number)
        self._submit(last=True)
        while self._under_way:
            self._under_way.popleft().result()
        self._spare.clear()

    def _flush(self, number: int) -> None:
        self._full.append(self._buckets.pop(number))
        if len(self._full) == _AT_ONCE:
            self._submit()

    def _submit(self, *, last: bool = False) -> None:
        while len(self._under_way) >= _MOST_UNDER_WAY:
            self._spare += self._under_way.popleft().result()
        if self._full:
            self._under_way.append(self._writer.submit(self._store, self._full, self._group, last))
            self._full = []

    def _store(self, buckets: list[_Bucket], group: int, last: bool) -> list[_Bucket]:
        """In the writing thread, which alone has to do with file, position and entries meanwhile; the buckets, empty."""
        self._go_on()
        position, entries, together = self._position, [], []
        for bucket in buckets:
            pieces = self._stored(bucket, position, last=last and bucket is buckets[-1])
            slots = bucket.slots[: bucket.used]
            size = _size(pieces)
            entries.append((position, size, bucket.used, group, int(slots.min()), int(slots.max()), crc32(pieces)))
            together += pieces
            position += size
        self._failed = True  # until they are written
        self._file.write(together)
        self._failed = False
        self._entries += entries
        self._position = position
        for bucket in buckets:
            bucket.used = 0
        return buckets

    def _stored(self, bucket: _Bucket, position: int, *, last: bool) -> list[Piece]:
        pieces = bucket.pieces()
        size = _size(pieces)
        if self._head.codec == "zlib":
            return [compress([*pieces, bytes(_padding(size, size))])]
        padding = _padding(position + size, size, last=last)
        return [*pieces, bytes(padding)] if padding else pieces

    def finish(self, marks: Marks = Marks(), clocks: Sequence[int] = ()) -> PartEntry:  # noqa: B008 - frozen
        """Durably there, under its name; what the manifest is to say of it. ``clocks``: of each group, for whoever writes the next cut."""
        self._flush_all()
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
        self._buckets.clear()
        self._spare.clear()
        self._file.abandon()

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abandon()
