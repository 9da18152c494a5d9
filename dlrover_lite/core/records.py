"""Records: how the row of an embedding lies in the memory of a parameter server, and in the checkpoints it writes
(docs/decisions/0013-records.md). All of it is neighbouring 4-byte words::

    word 0, 1   the key's 64-bit hash, its lower half first; its highest 12 bits are the row's slot
    word 2      the row's table + 1 (upper 12 bits; 0: the record is free), and the epoch of its last change (lower 20 bits)
    then        count of updates, in groups that count them
    then        values (float32 [dim]), state of the optimizer (float32 [dim x parts])

The id isn't kept: ``unmix64(hash) ^ salt of the table`` is it, since ``mix64`` is a bijection.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.bounds import Count
from dlrover_lite.core.rows import RowData

__all__ = [
    "EPOCHS_MOST",
    "EPOCH_BITS",
    "EPOCH_MASK",
    "HASH_HIGH",
    "HASH_LOW",
    "HEAD_WORDS",
    "TABLES_MOST",
    "TABLE_EPOCH",
    "RecordShape",
    "epochs_of",
    "hashes_of",
    "mixed",
    "pack_rows",
    "positions_of",
    "slots_of",
    "table_salt",
    "unpack_rows",
]

HASH_LOW, HASH_HIGH, TABLE_EPOCH = (np.uint64(word) for word in range(3))
"""Positions of the words of a record's head."""
HEAD_WORDS = 3
EPOCH_BITS = np.uint32(20)
EPOCH_MASK = np.uint32((1 << 20) - 1)
EPOCHS_MOST = (1 << 20) - 1
TABLES_MOST = (1 << 12) - 1
"""The most tables of one dim."""
_SLOT_SHIFT = np.uint32(20)
"""Bits that the upper half of the hash is shifted by to give the slot."""
_SHIFT = np.uint64(33)
_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_WORD = 1 << 64


class RecordShape(NamedTuple):
    """Shape of one group's records."""

    dim: Count
    state: Count
    """Number of floats of the optimizer's state."""
    counted: bool
    """Records have a count of updates."""

    @property
    def values_at(self) -> int:
        """Position of the word that values begin with."""
        return HEAD_WORDS + self.counted

    @property
    def words(self) -> int:
        return self.values_at + self.dim + self.state

    @property
    def bytes(self) -> int:
        return 4 * self.words


def table_salt(table: str) -> np.uint64:
    """Compute the number that tells a table's keys from others'; it depends on the name alone, so that a slot map can outlive a job."""
    return np.uint64(int.from_bytes(hashlib.blake2b(table.encode(), digest_size=8).digest(), "little"))


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply ``mix64``, the finalizer of MurmurHash3 (public domain constants), to each: uint64 -> uint64, bijective."""
    x = x ^ (x >> _SHIFT)
    x *= np.uint64(_FIRST)
    x ^= x >> _SHIFT
    x *= np.uint64(_SECOND)
    x ^= x >> _SHIFT
    return x


def _unmixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return what ``mixed`` has made these of."""
    x = x ^ (x >> _SHIFT)  # shifted by more than half of the bits: it undoes itself
    x *= np.uint64(pow(_SECOND, -1, _WORD))
    x ^= x >> _SHIFT
    x *= np.uint64(pow(_FIRST, -1, _WORD))
    x ^= x >> _SHIFT
    return x


def hashes_of(records: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the hashes of the keys of records [n, words]."""
    return records[:, int(HASH_HIGH)].astype(np.uint64) << np.uint64(32) | records[:, int(HASH_LOW)]


def slots_of(records: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Return the slots of records [n, words]."""
    return (records[:, int(HASH_HIGH)] >> _SLOT_SHIFT).astype(np.uint16)


def epochs_of(records: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the epochs of the last changes of records [n, words]."""
    epochs: NDArray[np.uint32] = records[:, int(TABLE_EPOCH)] & EPOCH_MASK
    return epochs


def positions_of(records: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the positions of the tables of records [n, words] within their group, from 1 on; 0: there is no row."""
    positions: NDArray[np.uint32] = records[:, int(TABLE_EPOCH)] >> EPOCH_BITS
    return positions


def pack_rows(rows: RowData, shape: RecordShape, salts: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Pack rows as records [n, words], of epoch 0. ``salts``: of the group's tables."""
    records = np.empty((len(rows.ids), shape.words), np.uint32)
    hashes = mixed(rows.ids ^ salts[rows.tables])
    records[:, int(HASH_LOW)] = hashes & np.uint64(0xFFFFFFFF)
    records[:, int(HASH_HIGH)] = hashes >> np.uint64(32)
    records[:, int(TABLE_EPOCH)] = (rows.tables.astype(np.uint32) + np.uint32(1)) << EPOCH_BITS
    if shape.counted:
        records[:, HEAD_WORDS] = rows.counts
    numbers = records.view(np.float32)
    numbers[:, shape.values_at : shape.values_at + shape.dim] = rows.values
    numbers[:, shape.values_at + shape.dim :] = rows.state
    return records


def unpack_rows(
    records: NDArray[np.uint32], shape: RecordShape, salts: NDArray[np.uint64], *, with_state: bool = True
) -> RowData:
    """Copy what live records [n, words] hold. Counts are 0 where none are kept; without ``with_state``, state is [n, 0].

    Raises ValueError for one that is free, or of a table that there isn't.
    """
    positions = positions_of(records)
    if len(positions) and not (positions.min() > 0 and positions.max() <= len(salts)):
        odd = positions[(positions == 0) | (positions > len(salts))][0]
        raise ValueError(f"a row is of table {odd} of {len(salts)}" if odd else "a free row")
    tables = (positions - np.uint32(1)).astype(np.uint16)
    hashes = hashes_of(records)
    counts = records[:, HEAD_WORDS].copy() if shape.counted else np.zeros(len(records), np.uint32)
    state_at = shape.values_at + shape.dim
    values = np.ascontiguousarray(records[:, shape.values_at : state_at]).view(np.float32)
    state = np.ascontiguousarray(records[:, state_at : shape.words if with_state else state_at]).view(np.float32)
    ids = _unmixed(hashes) ^ salts[tables] if len(tables) else hashes
    return RowData(ids, tables, counts, values, state)
