"""Writing a part: records come in any order, and go out in blocks of neighbouring slots.

The caller's thread puts records in order; another one does the checksums and writes. Memory: a block for each sixteenth of the slots, and
twelve that are full and not written yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.buckets import Buckets, Full, padding, room_apart
from dlrover_lite.checkpoint.deflate import compress, crc32
from dlrover_lite.checkpoint.destination import FileWriter, Piece
from dlrover_lite.checkpoint.layout import (
    BLOCK_BYTES,
    BUCKET_SHIFT,
    BUCKETS,
    ENTRY,
    RECORDS,
    TAIL,
    PartHead,
    Tail,
    pack_head,
    pack_tail,
)
from dlrover_lite.checkpoint.manifest import PartEntry
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.records import positions_of, slots_of

__all__ = ["PartWriter"]

_AT_ONCE = 4
"""Number of blocks in one write: after each, the disk may have to wait until this process gets the processor (and a thread the interpreter)
again."""
_MOST_UNDER_WAY = 2
"""Number of writes under way, at most."""


class PartWriter:
    """One part of a checkpoint, written by one process. Used as a context, it leaves nothing behind unless ``finish`` has returned.

    Every method raises JobError for a destination that is full, forbidden, gone or failing (``add`` a little later): abandon the part then.
    """

    def __init__(
        self, file: FileWriter, name: str, head: PartHead, owned: slot_sets.SlotSet, *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        """Begin the part. ``owned``: the slots whose rows this part has, whether or not there are any."""
        self._file, self._name, self._head, self._owned = file, name, head, owned
        self._owns_all = bool(owned.all())
        self._block_bytes = block_bytes
        self._group = -1
        self._buckets: Buckets | None = None
        self._full: list[Full] = []
        self._under_way: deque[tuple[Future[None], list[Full]]] = deque()
        """Writes under way, and the blocks of each that are taken back into the buckets after it."""
        self._aside: dict[int, Full] = {}
        """Blocks of any slots that fill, by group."""
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

    def add(self, group: int, records: NDArray[np.uint32]) -> None:
        """Add records [n, words] of live rows of a group. They are copied. Best some thousands at a time, and group after group.

        Raises ValueError for records that don't fit the group, or aren't in the part's slots.
        """
        slots = self._check(group, records)
        buckets = self.buckets(group)
        numbers = (slots >> BUCKET_SHIFT).astype(np.uint8)
        order = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers, minlength=BUCKETS)
        ends = np.cumsum(counts)
        for number in np.flatnonzero(counts).tolist():
            left = order[ends[number] - counts[number] : ends[number]]
            while len(left):
                left = left[buckets.take(number, records, left) :]
                if buckets.used[number] == buckets.capacity:
                    self._flush(number)

    def set_aside(self, group: int, records: NDArray[np.uint32]) -> None:
        """Add records as ``add``, of a group whose turn hasn't come: into blocks of whatever slots."""
        self._check(group, records)
        while len(records):
            room, used = self._aside.get(group) or Full(room_apart(self._capacity(group), records.shape[1]), 0)
            count = min(len(records), room.capacity - used)
            room.records[used : used + count] = records[:count]
            records = records[count:]
            self._aside[group] = Full(room, used + count)
            if used + count == room.capacity:
                self._flush_aside(group)

    def buckets(self, group: int) -> Buckets:
        """Return the buckets where records of a group may also be put, each in the bucket of its slots: none where one is full, until
        ``flush_full``. Nothing is checked. Groups come one after the other."""
        if group != self._group or self._buckets is None:
            self._flush_all()
            self._group = group
            words = self._head.groups[group].record.words
            self._buckets = Buckets(words, self._capacity(group), _AT_ONCE * (1 + _MOST_UNDER_WAY))
        return self._buckets

    def flush_full(self) -> None:
        """Make room in all buckets again."""
        buckets = self._buckets
        assert buckets is not None
        for number in np.flatnonzero(buckets.used == buckets.capacity).tolist():
            self._flush(number)

    def _capacity(self, group: int) -> int:
        """Return the number of rows of a block."""
        return max(1, self._block_bytes // self._head.groups[group].record.bytes)

    def _check(self, group: int, records: NDArray[np.uint32]) -> NDArray[np.uint16]:
        """Check records; return their slots."""
        shape = self._head.groups[group]
        if records.ndim != 2 or records.shape[1] != shape.record.words:
            raise ValueError(f"records of shape {records.shape} in group {group}: {shape.record.words} words each")
        positions = positions_of(records)
        if len(positions) and not 0 < positions.min() <= positions.max() <= len(shape.salts):
            raise ValueError(f"rows of tables {positions.min()} to {positions.max()} of {len(shape.salts)}")
        slots = slots_of(records)
        if not (self._owns_all or self._owned.take(slots).all()):
            raise ValueError(f"rows in slots that aren't those of part {self._name}")
        return slots

    def _flush_all(self) -> None:
        """Write all, and give the memory back."""
        buckets = self._buckets
        if buckets is None:
            return
        self._submit_full()  # apart from those that aren't full, which go through the page cache
        for number in np.flatnonzero(buckets.used).tolist():
            self._flush(number)
        self._submit_full(last=True)
        while self._under_way:
            self._take_back()
        self._buckets = None

    def _flush(self, number: int) -> None:
        buckets = self._buckets
        assert buckets is not None
        self._full.append(buckets.empty(number))
        if len(self._full) == _AT_ONCE:
            self._submit_full()
        buckets.renew(number)

    def _flush_aside(self, group: int) -> None:
        self._submit([self._aside.pop(group)], group, last=True, again=False)

    def _submit_full(self, *, last: bool = False) -> None:
        full, self._full = self._full, []
        if full:
            self._submit(full, self._group, last=last)

    def _submit(self, blocks: list[Full], group: int, *, last: bool, again: bool = True) -> None:
        """Have blocks stored by the writing thread. ``again``: they are of the buckets, which fill them again."""
        self._rows[group] += sum(block.used for block in blocks)
        while len(self._under_way) >= _MOST_UNDER_WAY:
            self._take_back()
        writing = self._writer.submit(self._store, blocks, group, last=last)
        self._under_way.append((writing, blocks if again else []))

    def _take_back(self) -> None:
        """Wait for the first of the writes under way, and have its blocks in the buckets again."""
        writing, blocks = self._under_way.popleft()
        writing.result()
        if self._buckets is not None:
            self._buckets.written(blocks)

    def _store(self, blocks: list[Full], group: int, *, last: bool) -> None:
        """Store blocks, in the writing thread, which alone has to do with file, position and entries meanwhile. ``last``: what follows the
        last block is aligned."""
        self._go_on()
        position, entries, together = self._position, [], []
        for block in blocks:
            pieces = self._packed(block.room.pieces(block.used), position, last=last and block is blocks[-1])
            size = _size(pieces)
            slots = slots_of(block.room.records[: block.used])
            span = int(slots.min()), int(slots.max())
            entries.append((position, size, block.used, group, *span, crc32(pieces), RECORDS))
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

    def finish(self) -> PartEntry:
        """Finish the part: it is durably there, under its name. Return what the manifest is to say of it."""
        for group in list(self._aside):
            self._flush_aside(group)
        self._flush_all()
        while self._under_way:
            self._take_back()
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
        )

    def _go_on(self) -> None:
        if self._failed:
            raise JobError(f"{self._name} can't be written any further: a block of it has failed before")

    def abandon(self) -> None:
        """Abandon the part; without effect on one that is finished."""
        self._writer.shutdown(cancel_futures=True)
        self._buckets = None
        self._aside = {}
        self._file.abandon()

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


def _size(pieces: Sequence[Piece]) -> int:
    return sum(len(piece) for piece in pieces)
