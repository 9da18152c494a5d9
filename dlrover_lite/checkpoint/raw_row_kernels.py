"""What ``raw_rows`` does with a block that is read, compiled: one pass over its rows, of which most may be others'.

A quarter of the processor time of doing it with numpy. Who reads a checkpoint has it only where numba is used anyway.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.layout import ArenaFacts
from dlrover_lite.checkpoint.raw_rows import META_WORDS, NEWER, RawRows
from dlrover_lite.kernels import kernel, prefetch
from dlrover_lite.rows import RowData
from dlrover_lite.slots import SlotSet

__all__ = ["compile_kernels", "decode_raw_rows"]

_U0, _U1, _U2, _U33, _U52 = (np.uint64(number) for number in (0, 1, 2, 33, 52))
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_NEWER = np.uint32(NEWER)
_META = np.uint64(META_WORDS)
_LINE, _AHEAD = np.uint64(16), np.uint64(8)


@kernel
def choose(ids, meta, salts, newer, wanted, which, slots):  # type: ignore[no-untyped-def]
    """Which rows are wanted, and their slots. (How many; the first row of a table that there isn't, or the number of all.)"""
    n, total = _U0, np.uint64(ids.shape[0])
    tables = np.uint64(salts.shape[0])
    for row in range(total):
        table = np.uint64(meta[row * _META])
        if table == _U0 or np.uint32(meta[row * _META + _U2] - newer) < _NEWER:
            continue
        if table > tables:
            return n, row
        x = ids[row] ^ salts[table - _U1]
        x ^= x >> _U33
        x *= _FIRST
        x ^= x >> _U33
        x *= _SECOND
        x ^= x >> _U33
        slot = x >> _U52
        if wanted[slot]:
            which[n], slots[n] = row, np.uint16(slot)
            n += _U1
    return n, total


@kernel
def collect(which, n, ids, meta, values, state, dim, row_state, clock, out):  # type: ignore[no-untyped-def]
    """These rows, one after the other."""
    to_ids, to_tables, to_counts, to_ages, to_values, to_state = out
    for i in range(np.uint64(n)):
        row = which[i]
        if i + _AHEAD < np.uint64(n):
            ahead = which[i + _AHEAD]
            for j in range(_U0, dim, _LINE):
                prefetch(values, np.int64(ahead * dim + j))
            for j in range(_U0, row_state, _LINE):
                prefetch(state, np.int64(ahead * row_state + j))
        to_ids[i] = ids[row]
        to_tables[i] = np.uint16(meta[row * _META] - np.uint32(1))
        to_counts[i] = meta[row * _META + _U1]
        to_ages[i] = np.uint32(clock - meta[row * _META + _U2])
        for j in range(dim):
            to_values[i * dim + j] = values[row * dim + j]
        for j in range(row_state):
            to_state[i * row_state + j] = state[row * row_state + j]


def decode_raw_rows(found: RawRows, facts: ArenaFacts, wanted: SlotSet) -> tuple[NDArray[np.uint16], RowData]:
    """As ``raw_rows.decode_raw_rows``."""
    total, dim, row_state = len(found.ids), found.values.shape[1], found.state.shape[1]
    ids, meta, values, state = (_flat(array) for array in found)
    clock, newer = np.uint32(facts.clock & 0xFFFFFFFF), np.uint32((facts.clock + 1) & 0xFFFFFFFF)
    which, slots = np.empty(total, np.uint64), np.empty(total, np.uint16)
    salts = np.array(facts.salts, np.uint64)
    n, odd = (int(number) for number in choose(ids, meta, salts, newer, wanted, which, slots))
    if odd < total:
        raise ValueError(f"a row is of table {int(found.meta[odd, 0])} of {len(salts)}")
    out = (
        np.empty(n, np.uint64),
        np.empty(n, np.uint16),
        np.empty(n, np.uint32),
        np.empty(n, np.uint32),
        np.empty(n * dim, np.float32),
        np.empty(n * row_state, np.float32),
    )
    collect(which, n, ids, meta, values, state, np.uint64(dim), np.uint64(row_state), clock, out)
    return slots[:n], RowData(*out[:4], out[4].reshape(n, dim), out[5].reshape(n, row_state))


def _flat(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Read-only whatever it was: kernels are compiled for each kind."""
    flat = array.reshape(-1)
    flat.flags.writeable = False
    return flat


def compile_kernels() -> None:
    """Before processes are forked that need them."""
    nothing = bytes(64)
    empty = RawRows(
        np.frombuffer(nothing, np.uint64, 1),
        np.frombuffer(nothing, np.uint32, META_WORDS).reshape(1, META_WORDS),
        np.frombuffer(nothing, np.float32, 1).reshape(1, 1),
        np.frombuffer(nothing, np.float32, 1).reshape(1, 1),
    )
    decode_raw_rows(empty, ArenaFacts(0, [0]), np.ones(4096, np.bool_))
