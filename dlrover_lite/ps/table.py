"""Embedding tables of one dim: an open-addressing index over rows, with values, optimizer state and metadata side by side.

A row is a number; ids (uint64), values (float32 [dim]), state (float32 [dim x parts]) and metadata (uint32: table, count of
updates, last change, spare) each lie in an arena of their own, so that a pull touches one cache line of the index and the values alone
(with a row's parts next to each other, pulls of random rows took 3 to 4 times as long). An index entry is two uint64: the key's
hash, and row number + 1 in the low 48 bits with the table above; 0 is free. A pull never writes: an unknown key reads as its initial
value, and its row is made at the first push.

Keys go in chunks: hash all and prefetch their index entries, find all and prefetch their rows, then touch the rows, so that cache
misses overlap. Positions are uint64 throughout: numba leaves out the check for negative indices, and inner loops vectorise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import psutil
from numpy.typing import NDArray

from dlrover_lite.errors import JobError
from dlrover_lite.kernels import kernel, prefetch
from dlrover_lite.ps import optimizers
from dlrover_lite.ps.arena import Arena
from dlrover_lite.ps.dedupe import Deduplicator
from dlrover_lite.ps.hashing import init_salt, initial_value, mix64, table_salt
from dlrover_lite.ps.optimizers import init_state, update_rows
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.wire.messages import TableSpec

_CHUNK = 128
_LOAD = 0.6
"""Rows per index entry at most; beyond, the index doubles."""
_META_WORDS = 4
_TABLE, _COUNT, _CHANGED = 0, 1, 2

_U0, _U1, _U2 = np.uint64(0), np.uint64(1), np.uint64(2)
_TABLE_SHIFT = np.uint64(48)
_ROW_MASK = np.uint64((1 << 48) - 1)
_META = np.uint64(_META_WORDS)
_LINE = np.uint64(16)
"""float32 values in a cache line."""


@kernel
def _probe(key_hash, table, index, mask):  # type: ignore[no-untyped-def]
    """Position of the key's entry in the index, or of the free one where it would go."""
    position = key_hash & mask
    while True:
        entry = index[position * _U2 + _U1]
        if entry == _U0 or (index[position * _U2] == key_hash and entry >> _TABLE_SHIFT == table):
            return position
        position = (position + _U1) & mask


@kernel
def _hash_chunk(keys, start, n, salt, index, mask, hashes):  # type: ignore[no-untyped-def]
    """Hashes of keys [start, start + n), their index entries on the way into the cache."""
    for i in range(n):
        key_hash = mix64(keys[start + i] ^ salt)
        hashes[i] = key_hash
        prefetch(index, np.int64((key_hash & mask) * _U2))


@kernel
def _gather(keys, counts, salts, init_salts, scales, index, mask, values, dim, out):  # type: ignore[no-untyped-def]
    """Rows of ``keys`` (uint64 [n], table after table by ``counts``) into ``out`` (float32 [n * dim])."""
    hashes = np.empty(_CHUNK, np.uint64)
    rows = np.empty(_CHUNK, np.uint64)  # row + 1; 0: unknown
    start = _U0
    for t in range(np.uint64(counts.shape[0])):
        end = start + np.uint64(counts[t])
        while start < end:
            n = min(np.uint64(_CHUNK), end - start)
            _hash_chunk(keys, start, n, salts[t], index, mask, hashes)
            for i in range(n):
                row = index[_probe(hashes[i], t, index, mask) * _U2 + _U1] & _ROW_MASK
                rows[i] = row
                for line in range(_U0, dim, _LINE):
                    prefetch(values, np.int64((row - _U1) * dim + line))
            for i in range(n):
                row = rows[i]
                target = (start + i) * dim
                if row != _U0:
                    source = (row - _U1) * dim
                    for j in range(dim):
                        out[target + j] = values[source + j]
                else:
                    for j in range(dim):
                        out[target + j] = initial_value(hashes[i], init_salts[t], j, scales[t])
            start += n


@kernel
def _update(  # type: ignore[no-untyped-def]
    keys,
    counts,
    salts,
    init_salts,
    scales,
    index,
    mask,
    ids,
    meta,
    values,
    state,
    dim,
    parts,
    grads,
    kind,
    hyper,
    factor,
    used,
    clock,
):
    """Apply ``grads`` (float32 [n * dim]) to the rows of ``keys``, making rows from number ``used`` on; returns the new ``used``.

    The caller has made sure that index and arenas have room for n more rows, and that no key comes twice.
    """
    hashes = np.empty(_CHUNK, np.uint64)
    rows = np.empty(_CHUNK, np.uint64)
    steps = np.empty(_CHUNK, np.uint32)
    row_state = dim * parts
    start = _U0
    for t in range(np.uint64(counts.shape[0])):
        end = start + np.uint64(counts[t])
        while start < end:
            n = min(np.uint64(_CHUNK), end - start)
            _hash_chunk(keys, start, n, salts[t], index, mask, hashes)
            for i in range(n):
                position = _probe(hashes[i], t, index, mask)
                entry = index[position * _U2 + _U1]
                if entry != _U0:
                    row = (entry & _ROW_MASK) - _U1
                    prefetch(meta, np.int64(row * _META))
                    for line in range(_U0, dim, _LINE):
                        prefetch(values, np.int64(row * dim + line))
                    for line in range(_U0, row_state, _LINE):
                        prefetch(state, np.int64(row * row_state + line))
                else:
                    row = used
                    used += _U1
                    index[position * _U2] = hashes[i]
                    index[position * _U2 + _U1] = (t << _TABLE_SHIFT) | used
                    ids[row] = keys[start + i]
                    meta[row * _META + np.uint64(_TABLE)] = np.uint32(t)
                    meta[row * _META + np.uint64(_COUNT)] = np.uint32(0)
                    for j in range(dim):
                        values[row * dim + j] = initial_value(hashes[i], init_salts[t], j, scales[t])
                    init_state(kind, hyper, values, state, dim, row)
                rows[i] = row
            for i in range(n):
                at = rows[i] * _META
                steps[i] = meta[at + np.uint64(_COUNT)] + np.uint32(1)
                meta[at + np.uint64(_COUNT)] = steps[i]
                meta[at + np.uint64(_CHANGED)] = clock
            update_rows(kind, hyper, factor, values, state, dim, rows, n, grads, start * dim, steps)
            start += n
    return used


@kernel
def _fill_index(index, mask, ids, meta, used, salts):  # type: ignore[no-untyped-def]
    """Enter rows [0, used) into an empty index."""
    for row in range(used):
        table = np.uint64(meta[row * _META + np.uint64(_TABLE)])
        key_hash = mix64(ids[row] ^ salts[table])
        position = key_hash & mask
        while index[position * _U2 + _U1] != _U0:
            position = (position + _U1) & mask
        index[position * _U2] = key_hash
        index[position * _U2 + _U1] = (table << _TABLE_SHIFT) | (row + _U1)


class TableGroup:
    """All tables of one dim. ``counts`` arguments are int64 [tables]: how many of the keys belong to each table, in order."""

    def __init__(
        self, tables: Sequence[TableSpec], optimizer: Optimizer, *, seed: int, reserve_bytes: int | None = None
    ) -> None:
        self.tables = list(tables)
        self.dim = tables[0].dim
        if any(table.dim != self.dim for table in tables):
            raise ValueError("the tables of a group have one dim")
        self.rows = 0
        self._kind = optimizers.KINDS[optimizer.use]
        self._hyper = optimizers.hyperparameters(optimizer)
        self._parts = optimizers.STATE_PARTS[optimizer.use]
        reserve = reserve_bytes or psutil.virtual_memory().total
        row_bytes = 8 + 4 * _META_WORDS + 4 * self.dim * (1 + self._parts)
        self._capacity = min(reserve // row_bytes, 1 << 40)
        name = f"tables-{self.dim}"
        self._ids = Arena(f"{name}-ids", 8 * self._capacity).bytes.view(np.uint64)
        self._meta = Arena(f"{name}-meta", 4 * _META_WORDS * self._capacity).bytes.view(np.uint32)
        self._values = Arena(f"{name}-values", 4 * self.dim * self._capacity).bytes.view(np.float32)
        self._state = Arena(f"{name}-state", max(1, 4 * self.dim * self._parts * self._capacity)).bytes.view(np.float32)
        self._row_bytes = row_bytes
        self._salts = np.array([table_salt(t.name) for t in tables], np.uint64)
        self._init_salts = np.array([init_salt(seed, t.name) for t in tables], np.uint64)
        self._scales = np.array([t.init_scale for t in tables], np.float32)
        self._index = np.zeros(2 << 12, np.uint64)
        self._deduplicator = Deduplicator()
        self._clock = 0

    @property
    def bytes(self) -> int:
        """Memory that rows and index take."""
        return self.rows * self._row_bytes + self._index.nbytes

    def gather(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Values of ``keys`` [n]: float32 [n, dim]; initial values for those without a row."""
        self._check(keys, counts)
        out = np.empty((len(keys), self.dim), np.float32)
        _gather(
            keys,
            counts,
            self._salts,
            self._init_salts,
            self._scales,
            self._index,
            self._mask,
            self._values,
            np.uint64(self.dim),
            out.reshape(-1),
        )
        return out

    def update(
        self,
        keys: NDArray[np.uint64],
        counts: NDArray[np.int64],
        grads: NDArray[np.float32],
        *,
        learning_rate_factor: float = 1.0,
        unique: bool = False,
    ) -> None:
        """Apply ``grads`` [n, dim]. Gradients of a key that comes more than once are summed first; ``unique``: none does.

        Raises JobError when the arena's address space is used up.
        """
        self._check(keys, counts)
        if grads.shape != (len(keys), self.dim):
            raise ValueError(f"gradients of shape {grads.shape}, expected {(len(keys), self.dim)}")
        if not unique:
            keys, counts, grads = self._deduplicator.sum_duplicates(keys, counts, grads)
        self._make_room(len(keys))
        self._clock += 1
        rows = _update(
            keys,
            counts,
            self._salts,
            self._init_salts,
            self._scales,
            self._index,
            self._mask,
            self._ids,
            self._meta,
            self._values,
            self._state,
            np.uint64(self.dim),
            np.uint64(self._parts),
            np.ascontiguousarray(grads).reshape(-1),
            self._kind,
            self._hyper,
            np.float32(learning_rate_factor),
            np.uint64(self.rows),
            np.uint32(self._clock & 0xFFFFFFFF),
        )
        self.rows = int(rows)

    def scan(self, start: int, limit: int) -> tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.float32]]:
        """Rows [start, start + limit) in the order they were made: ids, table positions, values [rows, dim]."""
        if start < 0 or limit < 0:
            raise ValueError(f"rows from {start}, {limit} of them")
        stop = max(start, min(start + limit, self.rows))
        tables = self._meta[start * _META_WORDS : stop * _META_WORDS : _META_WORDS].astype(np.uint16)
        values = self._values[start * self.dim : stop * self.dim].reshape(-1, self.dim)
        return self._ids[start:stop].copy(), tables, values.copy()

    @property
    def _mask(self) -> np.uint64:
        return np.uint64(len(self._index) // 2 - 1)

    def _check(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
        # the kernels trust these: a wrong length would read beyond the arrays
        fit = len(counts) == len(self.tables) and ((counts >= 0) & (counts <= len(keys))).all()
        if not fit or int(counts.sum()) != len(keys):
            raise ValueError(f"counts {counts.tolist()} don't fit {len(keys)} keys in {len(self.tables)} tables")

    def _make_room(self, new_rows: int) -> None:
        if self.rows + new_rows > self._capacity:
            raise JobError(
                f"embedding tables of dim {self.dim} are full: {self.rows} rows",
                hint="Give the parameter servers more memory, or use more of them.",
            )
        size = len(self._index) // 2
        while (self.rows + new_rows) > size * _LOAD:
            size *= 2
        if 2 * size != len(self._index):
            index = np.zeros(2 * size, np.uint64)
            _fill_index(index, np.uint64(size - 1), self._ids, self._meta, np.uint64(self.rows), self._salts)
            self._index = index
