"""Reading a part: only the blocks that hold wanted slots, each checked against its checksum before anything is made of it.

Threads read while the caller takes what was read before. Memory: four reads (``FileReader.read_bytes``), and what the caller keeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.deflate import BrokenStream, crc32, decompress
from dlrover_lite.checkpoint.destination import FileReader, damaged
from dlrover_lite.checkpoint.layout import (
    ALIGNMENT,
    COLUMNS,
    ENTRY,
    ENTRY_BYTES_1,
    HEAD,
    RECORDS,
    TAIL,
    Block,
    GroupShape,
    PartHead,
    Records,
    column_arrays,
    read_head,
    read_tail,
)
from dlrover_lite.checkpoint.manifest import PartEntry
from dlrover_lite.core import slot_sets
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import CheckpointDamaged, CheckpointForeign
from dlrover_lite.core.records import positions_of, slots_of
from dlrover_lite.core.rows import RowData

__all__ = ["PartReader"]

_READERS = 2
"""Number of threads that read: so the disk has the next request when it is done with one."""
_AHEAD = 3
"""Number of reads under way or done beside the one whose blocks are being taken."""
_MOSTLY = 0.5


class PartReader:
    """Opening reads header and index and compares them with the manifest's entry. To be closed.

    Raises CheckpointDamaged naming the file (and block), CheckpointForeign for a compression that isn't known here, and JobError when
    the destination can't be read.
    """

    def __init__(self, file: FileReader, entry: PartEntry, groups: list[GroupShape]) -> None:
        self._file, self._entry = file, entry
        self.url = file.url
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="checkpoint")  # has none until it reads blocks
        try:
            self.head = self._read_head(groups)
            self.index = self._read_index()
        except BaseException:
            self.close()
            raise

    def _read_head(self, groups: list[GroupShape]) -> PartHead:
        if self._file.size != self._entry.stored_bytes:
            raise damaged(self.url, f"it has {self._file.size:,} bytes instead of {self._entry.stored_bytes:,}")
        if self._file.size < HEAD.size + TAIL.size:
            raise damaged(self.url, "it is too short")
        start = bytes(self._file.read(0, HEAD.size))
        length, checksum = read_head(start, self.url)
        if HEAD.size + length + TAIL.size > self._file.size:
            raise damaged(self.url, "its header makes no sense")
        text = bytes(self._file.read(HEAD.size, length))
        if crc32([start[:-4], text]) != checksum:
            raise damaged(self.url, "its header isn't as it was written")
        try:
            head = from_json(text, PartHead)
        except msgspec.MsgspecError as error:
            raise damaged(self.url, f"its header makes no sense: {error}") from error
        if head.codec not in ("none", "zlib"):
            raise CheckpointForeign(f"{self.url} is compressed by {head.codec}", hint="Use a newer dlrover-lite.")
        shapes = [(shape.dim, shape.state) for shape in head.groups]
        if head.ps != self._entry.ps or shapes != [(shape.dim, shape.state) for shape in groups]:
            raise damaged(self.url, "it is the part of another checkpoint")
        return head

    def _read_index(self) -> NDArray[Any]:
        size, entry_bytes = self._file.size, self.head.entry_bytes
        tail = read_tail(self._file.read(size - TAIL.size, TAIL.size), self.url)
        length = size - TAIL.size - tail.index_offset
        wrong = tail.index_crc32 != self._entry.index_crc32 or tail.blocks != self._entry.blocks
        if wrong or entry_bytes < ENTRY_BYTES_1 or length != tail.blocks * entry_bytes:
            raise damaged(self.url, "it isn't the file that its manifest means")
        if not length:
            return np.empty(0, ENTRY)
        data = self._file.read(tail.index_offset, length)
        if crc32([data]) != tail.index_crc32:
            raise damaged(self.url, "its index isn't as it was written")
        # A newer minor version's entries are longer, version 1's are shorter.
        wide = np.zeros((tail.blocks, ENTRY.itemsize), np.uint8)
        known = min(entry_bytes, ENTRY.itemsize)
        wide[:, :known] = np.frombuffer(data, np.uint8).reshape(tail.blocks, entry_bytes)[:, :known]
        return wide.view(ENTRY).reshape(tail.blocks)

    def blocks(
        self, owned: slot_sets.SlotSet | None = None, groups: Collection[int] | None = None
    ) -> Iterator[tuple[int, Block]]:
        """Yield position in the index, and the rows that are in the slots ``owned`` (all, by default) of these groups."""
        wanted = self._wanted(owned, groups)
        if self._share(wanted, owned) >= _MOSTLY:
            self._file.read_once()
        for run, reading in self._read(list(self._runs(wanted))):
            for number, stored in self._cut_up(run, reading.result()):
                block = self._block(number, self.index[number], stored, owned)
                if len(block.slots):
                    yield number, block

    def _read(self, runs: list[list[int]]) -> Iterator[tuple[list[int], Future[memoryview]]]:
        """Yield these runs, in their order, with the bytes of each; some that follow are being read meanwhile."""
        under_way: deque[Future[memoryview]] = deque()
        for at, run in enumerate(runs):
            for later in runs[at + len(under_way) : at + 1 + _AHEAD]:
                under_way.append(self._readers.submit(self._file.read, *self._extent(later)))
            yield run, under_way.popleft()

    def _cut_up(self, run: list[int], data: memoryview) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        array = np.frombuffer(data, np.uint8)
        start, _ = self._extent(run)
        for number in run:
            offset = int(self.index["offset"][number]) - start
            yield number, array[offset : offset + int(self.index["bytes"][number])]

    def _share(self, wanted: list[int], owned: slot_sets.SlotSet | None) -> float:
        """Return how much of these blocks is in the slots ``owned``. Others own the rest, and will read the same blocks."""
        if owned is None or not wanted:
            return 1.0
        blocks = self.index[wanted]
        share = _count(owned, blocks) / (blocks["last_slot"].astype(np.int64) + 1 - blocks["first_slot"])
        return float(np.average(share, weights=blocks["rows"]))

    def _wanted(self, owned: slot_sets.SlotSet | None, groups: Collection[int] | None) -> list[int]:
        wanted = np.ones(len(self.index), np.bool_)
        if groups is not None:
            wanted &= np.isin(self.index["group"], list(groups))
        if owned is not None:
            wanted &= _count(owned, self.index) > 0
        return list(np.flatnonzero(wanted).tolist())

    def _runs(self, numbers: list[int]) -> Iterator[list[int]]:
        """Yield runs of neighbours that are read at once."""
        run: list[int] = []
        size = 0
        for number in numbers:
            length = int(self.index["bytes"][number])
            if run and (number != run[-1] + 1 or size + length > self._file.read_bytes):
                yield run
                run, size = [], 0
            run.append(number)
            size += length
        if run:
            yield run

    def _extent(self, run: list[int]) -> tuple[int, int]:
        first, last = self.index[run[0]], self.index[run[-1]]
        return int(first["offset"]), int(last["offset"]) + int(last["bytes"]) - int(first["offset"])

    def _block(self, number: int, entry: Any, stored: NDArray[np.uint8], owned: slot_sets.SlotSet | None) -> Block:
        if crc32([stored.data]) != int(entry["crc32"]):
            raise self._damaged_block(number, "its checksum is another")
        group, rows, kind = int(entry["group"]), int(entry["rows"]), int(entry["kind"])
        if kind not in (COLUMNS, RECORDS):
            raise CheckpointForeign(f"{self.url} has blocks of a kind {kind}", hint="Use a newer dlrover-lite.")
        shape = self.head.groups[group]
        size = rows * (shape.record.bytes if kind == RECORDS else shape.column_bytes)
        payload: Any = stored
        if self.head.codec == "zlib":
            try:
                payload = decompress(stored.data, size + ALIGNMENT)
            except BrokenStream as error:
                raise self._damaged_block(number, str(error)) from error
        if len(payload) < size:
            raise self._damaged_block(number, "it is too short")
        if kind == RECORDS:
            return self._records(number, group, np.frombuffer(payload, np.uint32, size // 4), owned)
        slots, data = column_arrays(payload, rows, shape)
        if owned is not None and len(chosen := np.flatnonzero(owned[slots])) < rows:
            slots, data = slots[chosen], _chosen(data, chosen)
        return Block(self.head.cut, group, slots, data)

    def _records(self, number: int, group: int, words: NDArray[np.uint32], owned: slot_sets.SlotSet | None) -> Block:
        shape = self.head.groups[group]
        records = words.reshape(-1, shape.record.words)
        positions = positions_of(records)
        if not 0 < positions.min(initial=1) <= positions.max(initial=1) <= len(shape.salts):
            raise self._damaged_block(number, f"it has rows of tables that there aren't: {len(shape.salts)} are known")
        slots = slots_of(records)
        if owned is not None and len(chosen := np.flatnonzero(owned.take(slots))) < len(slots):
            slots, records = slots[chosen], records.take(chosen, axis=0)
        return Block(self.head.cut, group, slots, Records(records, shape.record, np.array(shape.salts, np.uint64)))

    def _damaged_block(self, number: int, what: str) -> CheckpointDamaged:
        return damaged(self.url, f"block {number} of {len(self.index)}: {what}")

    def damages(self) -> Iterator[tuple[int, list[CheckpointDamaged]]]:
        """Read all blocks, some at a time: how many bytes they have, and what is damaged."""
        for run, reading in self._read(list(self._runs(list(range(len(self.index)))))):
            found = []
            try:
                data = reading.result()
            except CheckpointDamaged:
                found = [error for number in run if (error := self._damage_of_one(number)) is not None]
            else:
                for number, stored in self._cut_up(run, data):
                    try:
                        self._block(number, self.index[number], stored, None)
                    except CheckpointDamaged as error:
                        found.append(error)
            yield self._extent(run)[1], found

    def _damage_of_one(self, number: int) -> CheckpointDamaged | None:
        """Read by itself."""
        try:
            ((_, stored),) = self._cut_up([number], self._file.read(*self._extent([number])))
            self._block(number, self.index[number], stored, None)
        except CheckpointDamaged as error:
            return error
        return None

    def close(self) -> None:
        self._readers.shutdown(cancel_futures=True)
        self._file.close()


def _count(owned: slot_sets.SlotSet, blocks: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many of the slots ``owned`` are from the first to the last one of each block."""
    below = np.concatenate(([0], np.cumsum(owned)), dtype=np.int64)
    counts: NDArray[np.int64] = below[blocks["last_slot"].astype(np.int64) + 1] - below[blocks["first_slot"]]
    return counts


def _chosen(rows: RowData, which: NDArray[np.intp]) -> RowData:
    narrow = rows.ids[which], rows.tables[which], rows.counts[which]
    return RowData(*narrow, rows.values.take(which, axis=0), rows.state.take(which, axis=0))
