"""The bytes of a part, the file that holds one parameter server's rows of one checkpoint (docs/checkpoints.md draws them)::

    header     HEAD, JSON (PartHead), spaces up to a multiple of 4,096
    blocks     records of rows of neighbouring slots (``core.records``), zeros up to a multiple of 8, or of 4,096; compressed as
               a whole, if they are
    index      an entry of ENTRY for each block
    tail       TAIL

Everything is little-endian. Every byte is covered by a checksum (CRC-32): blocks by their entries, the index by the tail, and the tail's
and the whole file's length by the manifest.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.deflate import crc32
from dlrover_lite.checkpoint.destination import damaged
from dlrover_lite.core.errors import CheckpointForeign
from dlrover_lite.core.records import RecordShape, unpack_rows
from dlrover_lite.core.rows import RowData

__all__ = [
    "ALIGNMENT",
    "BLOCK_BYTES",
    "BUCKETS",
    "BUCKET_SHIFT",
    "COLUMNS",
    "ENTRY",
    "ENTRY_BYTES_1",
    "HEAD",
    "LARGE_BYTES",
    "PART_MAGIC",
    "RECORDS",
    "TAIL",
    "VERSION",
    "Block",
    "Codec",
    "GroupShape",
    "PartHead",
    "Records",
    "Tail",
    "column_arrays",
    "pack_head",
    "pack_tail",
    "read_head",
    "read_tail",
    "refuse_other_major",
]

VERSION = (2, 0)
"""Major and minor version. A minor version adds only what an older one can pass over: fields and keys."""
OLDEST_MAJOR = 1
"""The oldest major version that can be read: its blocks are of arrays."""
BLOCK_BYTES = 1 << 20
"""Size of a full block in bytes, before compression."""
ALIGNMENT = 4096
"""Alignment in bytes of what passes by the page cache: positions in the file, lengths, and addresses in memory."""
LARGE_BYTES = 1 << 18
"""Size in bytes from which on a block ends at a multiple of ALIGNMENT."""
BUCKET_SHIFT = 8
BUCKETS = 16
"""Number of buckets: a block holds rows of one sixteenth of the slots, so that whoever owns some of them needn't read all."""

PART_MAGIC = b"DLRLPART"
TAIL_MAGIC = b"DLRLTAIL"
HEAD = struct.Struct("<8sHHII")
"""Header of a part: magic, major, minor, bytes of JSON with its padding, CRC-32 of all of the header but these last four bytes."""
TAIL = struct.Struct("<QQIII4x8s")
"""Tail of a part: position of the index, rows, blocks, CRC-32 of the index, CRC-32 of the tail so far, magic."""
_TAIL_CHECKED = struct.Struct("<QQII")
ENTRY = np.dtype(
    [
        ("offset", "<u8"),
        ("bytes", "<u4"),
        ("rows", "<u4"),
        ("group", "<u4"),
        ("first_slot", "<u2"),
        ("last_slot", "<u2"),
        ("crc32", "<u4"),
        ("kind", "<u4"),
    ]
)
"""An entry of the index: position, number and checksum of the bytes as stored; number, group, lowest and highest slot of the rows, and the
block's kind."""
ENTRY_BYTES_1 = 28
"""Size of an index entry of version 1, which has no kind."""
COLUMNS, RECORDS = 0, 1
"""Kinds of blocks: arrays of rows one after the other, as version 1 has them; records."""
_SMALL_ROW_BYTES = 8 + 4 + 4 + 2 + 2

Codec = Literal["none", "zlib"]


class GroupShape(msgspec.Struct, frozen=True):
    """A group of tables of the same dim. ``state``: the optimizer's floats of a row."""

    dim: int
    state: int
    row_bytes: int = 0
    """Bytes of a row as version 1 stores it; more than it knows when a newer minor version has added arrays."""
    counted: bool = False
    """Records have a count of updates."""
    salts: list[int] = []
    """Salts of the group's tables: with them, ids follow from the hashes of their keys."""

    @property
    def record(self) -> RecordShape:
        return RecordShape(self.dim, self.state, self.counted)

    @property
    def column_bytes(self) -> int:
        """Size in bytes of a row in a block of columns."""
        return self.row_bytes or _SMALL_ROW_BYTES + 4 * (self.dim + self.state)


class PartHead(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    cut: int
    ps: int
    groups: list[GroupShape]
    codec: str
    entry_bytes: int


class Records(NamedTuple):
    """uint32 [n, words], and what is needed to make rows of them."""

    words: NDArray[np.uint32]
    shape: RecordShape
    salts: NDArray[np.uint64]


class Block:
    """Rows of one group. ``cut``: number of the checkpoint it is of, which may be older than the one asked for."""

    def __init__(self, cut: int, group: int, slots: NDArray[np.uint16], rows: RowData | Records) -> None:
        self.cut, self.group, self.slots = cut, group, slots
        self._rows = rows

    @property
    def records(self) -> Records | None:
        """Records as they are stored; None for what version 1 has written."""
        return self._rows if isinstance(self._rows, Records) else None

    @property
    def rows(self) -> RowData:
        return self._rows if isinstance(self._rows, RowData) else unpack_rows(*self._rows)


class Tail(NamedTuple):
    index_offset: int
    rows: int
    blocks: int
    index_crc32: int


def pack_head(head: PartHead) -> bytes:
    text = msgspec.json.encode(head)
    text += b" " * (-(HEAD.size + len(text)) % ALIGNMENT)
    start = HEAD.pack(PART_MAGIC, *VERSION, len(text), 0)[:-4]
    return start + crc32([start, text]).to_bytes(4, "little") + text


def read_head(data: bytes, file: str) -> tuple[int, int]:
    """Read a header. Return the length of the JSON and the header's checksum. Raises CheckpointDamaged, CheckpointForeign."""
    magic, major, minor, length, checksum = HEAD.unpack(data)
    if magic != PART_MAGIC:
        raise damaged(file, "it doesn't begin as parts of checkpoints do")
    refuse_other_major(file, (major, minor))
    return length, checksum


def pack_tail(tail: Tail) -> bytes:
    return TAIL.pack(*tail, crc32([_TAIL_CHECKED.pack(*tail)]), TAIL_MAGIC)


def read_tail(data: bytes | memoryview, file: str) -> Tail:
    """Read a tail. Raises CheckpointDamaged."""
    *fields, checksum, magic = TAIL.unpack(data)
    if magic != TAIL_MAGIC or crc32([_TAIL_CHECKED.pack(*fields)]) != checksum:
        raise damaged(file, "its last bytes aren't as they were written")
    return Tail(*fields)


def refuse_other_major(file: str, version: Sequence[int]) -> None:
    """Refuse a version that can't be read here. Raises CheckpointForeign."""
    if not OLDEST_MAJOR <= version[0] <= VERSION[0]:
        found = ".".join(map(str, version))
        newer = version[0] > VERSION[0]
        raise CheckpointForeign(
            f"{file} is of checkpoint format {found}; this dlrover-lite reads {OLDEST_MAJOR}.x to {VERSION[0]}.x",
            hint=f"Use {'a newer' if newer else 'an older'} dlrover-lite.",
        )


def column_arrays(payload: Any, rows: int, shape: GroupShape) -> tuple[NDArray[np.uint16], RowData]:
    """Return slots and rows of a block of version 1, as views of its bytes (uncompressed), which must be long enough."""
    position = 0

    def take(kind: str, width: int) -> NDArray[Any]:
        nonlocal position
        array = np.frombuffer(payload, kind, rows * width, position)
        position += array.nbytes
        return array

    ids, values, state = take("<u8", 1), take("<f4", shape.dim), take("<f4", shape.state)
    counts, _ages, slots, tables = take("<u4", 1), take("<u4", 1), take("<u2", 1), take("<u2", 1)
    wide = values.reshape(rows, shape.dim), state.reshape(rows, shape.state)
    return slots, RowData(ids, tables, counts, *wide)
