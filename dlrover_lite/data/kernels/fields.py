"""What the bytes of a field mean: numbers and category ids. Kernels shared by the readers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.recipe.numbers import FLOAT32_LIMIT
from dlrover_lite.tables.hashing import mix64

__all__ = [
    "FNV_START",
    "INSTEAD_OF_ZERO",
    "byte_hash",
    "category_id",
    "fnv_finish",
    "fnv_step",
    "hash_strings",
    "integer_ids",
    "is_nan",
    "parse_float",
]

FNV_START = 0xCBF29CE484222325
# The id of what would otherwise be 0, which stands for the empty field only.
INSTEAD_OF_ZERO = 1 << 63


@kernel
def fnv_step(state, byte):  # type: ignore[no-untyped-def]
    """Add one byte to a 64-bit FNV-1a hash, which starts with ``FNV_START``."""
    return (state ^ np.uint64(byte)) * np.uint64(0x100000001B3)


@kernel
def fnv_finish(state):  # type: ignore[no-untyped-def]
    """Return the hash of the bytes that led to ``state``: all its bits are mixed, and it is never 0."""
    value = mix64(state)
    return value if value != np.uint64(0) else np.uint64(INSTEAD_OF_ZERO)


@kernel
def byte_hash(buffer, start, stop):  # type: ignore[no-untyped-def]
    """Return the hash of ``buffer[start:stop]``."""
    state = np.uint64(FNV_START)
    for i in range(start, stop):
        state = fnv_step(state, buffer[i])
    return fnv_finish(state)


@kernel
def hash_strings(buffer, offsets, out):  # type: ignore[no-untyped-def]
    """Compute ids of strings lying one after the other, string i at ``offsets[i]:offsets[i + 1]``: 0 for an empty one."""
    for i in range(out.shape[0]):
        out[i] = np.uint64(0) if offsets[i] == offsets[i + 1] else byte_hash(buffer, offsets[i], offsets[i + 1])


def category_id(text: str | bytes) -> int:
    """Return the id that CSV and Parquet data give a category (Criteo's are hexadecimal, see ``criteo.category_id``)."""
    data = text.encode() if isinstance(text, str) else text
    return int(byte_hash(np.frombuffer(data, np.uint8), 0, len(data))) if data else 0


def integer_ids(values: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return ids of integer categories: the value plus 1 (modulo 2^64; -1, which would be 0, gets 2^63)."""
    ids = values.astype(np.uint64) + np.uint64(1)
    ids[ids == 0] = INSTEAD_OF_ZERO
    return ids


@kernel
def _digits(buffer, position, stop):  # type: ignore[no-untyped-def]
    """Return (value, where the digits end)."""
    value = 0.0
    while position < stop and 48 <= buffer[position] <= 57:
        value = value * 10.0 + (buffer[position] - 48)
        position += 1
    return value, position


@kernel
def _sign(buffer, position, stop):  # type: ignore[no-untyped-def]
    """Return (1 or -1, where the number's digits start)."""
    if position < stop and buffer[position] == 45:
        return -1.0, position + 1
    if position < stop and buffer[position] == 43:
        return 1.0, position + 1
    return 1.0, position


@kernel
def parse_float(buffer, start, stop):  # type: ignore[no-untyped-def]
    """Return ``buffer[start:stop]`` as (value, True), or (0, False) when it isn't an integer, decimal or exponent number that a float32 can
    hold. Nothing at all is 0."""
    if start == stop:
        return 0.0, True
    sign, first = _sign(buffer, start, stop)
    value, position = _digits(buffer, first, stop)
    given = position - first
    shift = 0.0
    if position < stop and buffer[position] == 46:
        point = position + 1
        fraction, position = _digits(buffer, point, stop)
        shift = np.float64(point - position)
        value = value * 10.0**-shift + fraction
        given += position - point
    if given == 0:
        return 0.0, False
    if position < stop and (buffer[position] | 32) == 101:
        exponent_sign, first = _sign(buffer, position + 1, stop)
        exponent, position = _digits(buffer, first, stop)
        if position == first:
            return 0.0, False
        shift += exponent_sign * min(exponent, 100000.0)
    if position < stop:
        return 0.0, False
    # In two steps, so that neither a long fraction nor a small number leaves the range on the way.
    if value != 0.0:
        half = shift // 2
        value = value * 10.0**half * 10.0 ** (shift - half)
    if not value < FLOAT32_LIMIT:
        return 0.0, False
    return sign * value, True


@kernel
def is_nan(buffer, start, stop):  # type: ignore[no-untyped-def]
    """Return whether ``buffer[start:stop]`` is NaN in letters of either case, with a sign or without."""
    if start < stop and (buffer[start] == 43 or buffer[start] == 45):
        start += 1
    if stop - start != 3:
        return False
    return (buffer[start] | 32) == 110 and (buffer[start + 1] | 32) == 97 and (buffer[start + 2] | 32) == 110
