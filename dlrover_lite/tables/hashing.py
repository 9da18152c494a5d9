"""Hashes of embedding ids: which slot a key lives in, where its index probe starts, and what a new row holds.

A key is (table, id). ``mix64`` is a bijection, so within a table different ids never share a hash.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.core.records import table_salt
from dlrover_lite.core.slot_sets import SLOTS

SLOT_SHIFT = 64 - (SLOTS - 1).bit_length()


@kernel
def mix64(x):  # type: ignore[no-untyped-def]  # numba infers
    """Apply the finalizer of MurmurHash3 (public domain constants): uint64 -> uint64, bijective."""
    x = np.uint64(x)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    x ^= x >> np.uint64(33)
    return x


@kernel
def initial_value(key_hash, salt, position, scale):  # type: ignore[no-untyped-def]
    """Return the value at ``position`` of a row nobody has changed yet: uniform in [-scale, scale), a function of its arguments."""
    bits = mix64(key_hash ^ (salt + (np.uint64(position) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)))
    unit = np.float32(bits >> np.uint64(40)) * np.float32(1.0 / 16777216.0)
    return (unit * np.float32(2.0) - np.float32(1.0)) * np.float32(scale)


@kernel
def fill_initial(ids, table_salt, init_salt, scale, out):  # type: ignore[no-untyped-def]
    """Write the initial rows of ``ids`` (uint64 [n]) into ``out`` (float32 [n, dim])."""
    for i in range(ids.shape[0]):
        key_hash = mix64(ids[i] ^ table_salt)
        for j in range(out.shape[1]):
            out[i, j] = initial_value(key_hash, init_salt, j, scale)


def init_salt(seed: int, table: str) -> np.uint64:
    """Return the seed of a table's initial values."""
    return np.uint64(int.from_bytes(hashlib.blake2b(f"{seed}/{table}".encode(), digest_size=8).digest(), "little"))


def initial_rows(ids: NDArray[np.uint64], *, table: str, seed: int, dim: int, scale: float) -> NDArray[np.float32]:
    """Return what a pull returns for ids that no push has touched: float32 [n, dim]."""
    out = np.empty((len(ids), dim), np.float32)
    fill_initial(np.ascontiguousarray(ids, np.uint64), table_salt(table), init_salt(seed, table), scale, out)
    return out
