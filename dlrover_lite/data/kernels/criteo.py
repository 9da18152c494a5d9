"""The inner loops of the reader of Criteo's TSV."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.data.base import CRITEO_SCHEMA
from dlrover_lite.data.kernels.fields import FNV_START, INSTEAD_OF_ZERO, fnv_finish, fnv_step, is_nan
from dlrover_lite.data.lines import Spans
from dlrover_lite.data.text import Columns

__all__ = ["category_id", "parse_lines"]

_DENSE = len(CRITEO_SCHEMA.dense)
_CATEGORICAL = len(CRITEO_SCHEMA.categorical)

_BAD = 1  # the code of a bad line
_TABLE_SIZE = 4096
_MOST_DIGITS = 18

_LOGARITHMS = np.log1p(np.arange(_TABLE_SIZE)).astype(np.float32)
_HEX = np.full(256, 16, np.uint8)
for _digit in b"0123456789abcdefABCDEF":
    _HEX[_digit] = int(chr(_digit), 16)


def parse_lines(spans: Spans, rows: NDArray[np.int64], out: Columns) -> int:
    """Parse the spans' lines into these rows of ``out``; return how many were bad."""
    return int(_parse_lines(spans.buffer, spans.starts, spans.ends, rows, _LOGARITHMS, _HEX, *out))


def category_id(text: str) -> int:
    """Return the id of one category field: its hexadecimal value plus 1, a hash if it isn't one, 0 if it is empty."""
    data = np.frombuffer(text.encode(), np.uint8)
    return int(_category(data, np.uint64(0), np.uint64(len(data)), _HEX)[0])


# Positions are unsigned 64-bit integers, since numba checks each index of a signed type for being negative. Functions
# called for each field are small, or get no arrays: where a call isn't inlined, each array argument is an atomic count.


@kernel
def _eight_digits(buffer, start):  # type: ignore[no-untyped-def]
    """Return (value, True) of the eight hexadecimal digits that start here, or (anything, False); all eight at once."""
    word = np.uint64(0)
    for i in range(8):  # compiles to one load
        word |= np.uint64(buffer[start + np.uint64(i)]) << np.uint64(8 * i)
    # Range checks byte by byte: adding 0x80 - x carries into a byte's high bit if the byte is at least x.
    low = word & np.uint64(0x7F7F7F7F7F7F7F7F)
    digits = (low + np.uint64(0x5050505050505050)) & ~(low + np.uint64(0x4646464646464646))
    lower = low | np.uint64(0x2020202020202020)
    letters = (lower + np.uint64(0x1F1F1F1F1F1F1F1F)) & ~(lower + np.uint64(0x1919191919191919))
    good = (digits | letters) & ~word & np.uint64(0x8080808080808080)
    # A letter's low four bits are 1 to 6, and its bit 6 is set. Then nibbles to bytes, to halves, to a word.
    value = (word & np.uint64(0x0F0F0F0F0F0F0F0F)) + np.uint64(9) * (
        (word >> np.uint64(6)) & np.uint64(0x0101010101010101)
    )
    value = ((value << np.uint64(4)) | (value >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    value = ((value << np.uint64(8)) | (value >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    value = ((value << np.uint64(16)) | (value >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return value, good == np.uint64(0x8080808080808080)


@kernel
def _category(buffer, position, end, hex_digits):  # type: ignore[no-untyped-def]
    """Return (id of the field that starts here, where it ends)."""
    one = np.uint64(1)
    eighth = position + np.uint64(8)
    if eighth == end or (eighth < end and buffer[eighth] == 9):  # as nearly all fields that aren't empty
        value, good = _eight_digits(buffer, position)
        if good:
            return value + one, eighth
    start = position
    value = np.uint64(0)
    others = np.uint8(0)
    state = np.uint64(FNV_START)
    while position < end and buffer[position] != 9:
        digit = hex_digits[buffer[position]]
        others |= digit
        value = (value << np.uint64(4)) | np.uint64(digit)
        state = fnv_step(state, buffer[position])
        position += one
    if position == start:
        return np.uint64(0), position
    if others >= 16 or position - start > np.uint64(16):
        return fnv_finish(state), position
    value += one
    return (value if value != np.uint64(0) else np.uint64(INSTEAD_OF_ZERO)), position


@kernel
def _integer(buffer, position, end):  # type: ignore[no-untyped-def]
    """Return (magnitude, negative, good, where the field ends); an empty field is 0."""
    one = np.uint64(1)
    start = position
    negative = position < end and buffer[position] == 45
    if negative:
        position += one
    first = position
    value = np.uint64(0)
    while position < end:
        digit = np.uint64(buffer[position]) - np.uint64(48)  # anything but a digit wraps around or is above 9
        if digit > np.uint64(9):
            break
        value = value * np.uint64(10) + digit
        position += one
    stops = position == end or buffer[position] == 9
    good = stops and position - first <= np.uint64(_MOST_DIGITS) and (position > first or position == start)
    return value, negative, good, position


@kernel
def _missing_end(buffer, start, end):  # type: ignore[no-untyped-def]
    """Return where the field that starts here ends if it is NaN, a missing value; else ``start``."""
    stop = start
    while stop < end and buffer[stop] != 9:
        stop += np.uint64(1)
    return stop if is_nan(buffer, np.int64(start), np.int64(stop)) else start


@kernel
def _parse_line(buffer, start, end, row, logarithms, hex_digits, labels, dense, ids):  # type: ignore[no-untyped-def]
    """Parse a line; return its code."""
    one = np.uint64(1)
    if end > start and buffer[end - one] == 13:
        end -= one
    if end == start:
        return _BAD
    label = buffer[start]
    # Position of the separator before the next field; at the end of the line there is no next field.
    position = start + one
    if label < 48 or label > 49 or (position < end and buffer[position] != 9):
        return _BAD
    labels[row] = label - 48
    for j in range(_DENSE):
        if position == end:
            return _BAD
        first = position + one
        value, negative, good, position = _integer(buffer, first, end)
        if not good:
            position = _missing_end(buffer, first, end)
            if position == first:
                return _BAD
            value, negative = np.uint64(0), False
        small = value < np.uint64(_TABLE_SIZE)
        feature = logarithms[value] if small else np.float32(math.log1p(np.float64(value)))
        dense[row, np.uint64(j)] = -feature if negative else feature
    if position == end:
        return _BAD
    for j in range(_CATEGORICAL):
        if position == end:
            ids[np.uint64(j), row] = np.uint64(0)
        else:
            ids[np.uint64(j), row], position = _category(buffer, position + one, end, hex_digits)
    return 0 if position == end else _BAD


@kernel
def _parse_lines(  # type: ignore[no-untyped-def]
    buffer, starts, ends, rows, logarithms, hex_digits, labels, dense, ids, codes
):
    bad = 0
    for i in range(starts.shape[0]):
        row = np.uint64(rows[i])
        start, end = np.uint64(starts[i]), np.uint64(ends[i])
        code = _parse_line(buffer, start, end, row, logarithms, hex_digits, labels, dense, ids)
        codes[row] = code
        bad += code != 0
    return bad
