"""Reading a part: only the blocks that hold wanted slots, each checked against its checksum before anything is made of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite import slots as slot_sets
from dlrover_lite.checkpoint.deflate import BrokenStream, crc32, decompress
from dlrover_lite.checkpoint.destination import FileReader, damaged
from dlrover_lite.checkpoint.layout import (
    ALIGNMENT,
    ENTRY,
    HEAD,
    TAIL,
    Block,
    GroupShape,
    PartHead,
    block_arrays,
    read_head,
    read_tail,
)
from dlrover_lite.checkpoint.manifest import PartEntry
from dlrover_lite.errors import CheckpointDamaged, CheckpointForeign
from dlrover_lite.rows import RowData

__all__ = ["PartReader"]

READ_BYTES = 8 << 20
"""Of one read: neighbouring blocks together."""


class PartReader:
    """Opening reads header and index and compares them with the manifest's entry. A context that closes the file.

    Raises CheckpointDamaged naming the file (and block), CheckpointForeign for a compression that isn't known here, and JobError when
    the destination can't be read.
    """

    def __init__(self, file: FileReader, entry: PartEntry, groups: list[GroupShape]) -> None:
        self._file, self._entry = file, entry
        self.url = file.url
        try:
            self.head = self._read_head(groups)
            self.index = self._read_index()
        except BaseException:
            file.close()
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
            head = msgspec.json.decode(text, type=PartHead)
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
        if wrong or entry_bytes < ENTRY.itemsize or length != tail.blocks * entry_bytes:
            raise damaged(self.url, "it isn't the file that its manifest means")
        if not length:
            return np.empty(0, ENTRY)
        data = self._file.read(tail.index_offset, length)
        if crc32([data]) != tail.index_crc32:
            raise damaged(self.url, "its index isn't as it was written")
        # A newer minor version's entries are longer.
        wide = np.frombuffer(data, np.uint8).reshape(tail.blocks, entry_bytes)[:, : ENTRY.itemsize]
        return np.ascontiguousarray(wide).view(ENTRY).reshape(tail.blocks)

    def blocks(
        self, owned: slot_sets.SlotSet | None = None, groups: Collection[int] | None = None
    ) -> Iterator[tuple[int, Block]]:
        """Position in the index, and the rows that are in the slots ``owned`` (all, by default) of these groups."""
        runs = list(self._runs(self._wanted(owned, groups)))
        for at, run in enumerate(runs):
            if at + 1 < len(runs):
                self._file.ahead(*self._extent(runs[at + 1]))
            start, length = self._extent(run)
            data = np.frombuffer(self._file.read(start, length), np.uint8)
            for number in run:
                entry = self.index[number]
                offset = int(entry["offset"]) - start
                block = self._block(number, entry, data[offset : offset + int(entry["bytes"])], owned)
                if len(block.slots):
                    yield number, block

    def _wanted(self, owned: slot_sets.SlotSet | None, groups: Collection[int] | None) -> list[int]:
        wanted = np.ones(len(self.index), np.bool_)
        if groups is not None:
            wanted &= np.isin(self.index["group"], list(groups))
        if owned is not None:
            below = np.concatenate(([0], np.cumsum(owned)))  # owned slots below each slot
            first, last = self.index["first_slot"].astype(np.int64), self.index["last_slot"].astype(np.int64)
            wanted &= below[last + 1] > below[first]
        return list(np.flatnonzero(wanted).tolist())

    def _runs(self, numbers: list[int]) -> Iterator[list[int]]:
        """Neighbours that are read at once."""
        run: list[int] = []
        size = 0
        for number in numbers:
            length = int(self.index["bytes"][number])
            if run and (number != run[-1] + 1 or size + length > READ_BYTES):
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
        group, rows = int(entry["group"]), int(entry["rows"])
        shape = self.head.groups[group]
        payload: Any = stored
        if self.head.codec == "zlib":
            try:
                payload = decompress(stored.data, rows * shape.stored_row_bytes + ALIGNMENT)
            except BrokenStream as error:
                raise self._damaged_block(number, str(error)) from error
        if len(payload) < rows * shape.stored_row_bytes:
            raise self._damaged_block(number, "it is too short")
        slots, data = block_arrays(payload, rows, shape)
        if owned is not None and len(chosen := np.flatnonzero(owned[slots])) < rows:
            slots, data = slots[chosen], _chosen(data, chosen)
        return Block(self.head.cut, group, slots, data)

    def _damaged_block(self, number: int, what: str) -> CheckpointDamaged:
        return damaged(self.url, f"block {number} of {len(self.index)}: {what}")

    def damages(self) -> list[CheckpointDamaged]:
        """Of all blocks; each is read."""
        found = []
        for number in range(len(self.index)):
            start, length = self._extent([number])
            try:
                self._block(number, self.index[number], np.frombuffer(self._file.read(start, length), np.uint8), None)
            except CheckpointDamaged as error:
                found.append(error)
        return found

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> PartReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _chosen(rows: RowData, which: NDArray[np.intp]) -> RowData:
    narrow = rows.ids[which], rows.tables[which], rows.counts[which], rows.ages[which]
    return RowData(*narrow, rows.values.take(which, axis=0), rows.state.take(which, axis=0))
