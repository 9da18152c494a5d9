"""Criteo's TSV as published: label, 13 integers, 26 hexadecimal categories; any field but the label may be empty.

Empty columns at the end of a line are left out in the published files, so a line may have fewer than 40 fields. One
that ends before the first category (under 15 fields) has been cut off and is bad, as is one with more than 40.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.data.base import Schema
from dlrover_lite.data.fields import INSTEAD_OF_ZERO, byte_hash, signed_log1p
from dlrover_lite.data.lines import Spans
from dlrover_lite.data.text import Columns, show
from dlrover_lite.kernels import kernel

__all__ = ["CATEGORICAL", "CRITEO_SCHEMA", "DENSE", "CriteoParser", "category_id"]

DENSE = 13
CATEGORICAL = 26
FIELDS = 1 + DENSE + CATEGORICAL
LEAST_FIELDS = 1 + DENSE + 1
CRITEO_SCHEMA = Schema(
    tuple(f"I{i}" for i in range(1, DENSE + 1)), tuple(f"C{i}" for i in range(1, CATEGORICAL + 1))
)

_EMPTY, _LABEL, _FEW, _MANY, _INTEGER = 1, 2, 3, 4, 5
_CODE_BITS = 8  # a code is the kind, and above these bits the number of the dense column
_TABLE_SIZE = 4096
_MOST_DIGITS = 18

_LOGARITHMS = np.log1p(np.arange(_TABLE_SIZE)).astype(np.float32)
_HEX = np.full(256, 16, np.uint8)
for _digit in b"0123456789abcdefABCDEF":
    _HEX[_digit] = int(chr(_digit), 16)


class CriteoParser:
    """See ``text.LineParser``."""

    schema = CRITEO_SCHEMA
    header_lines = 0

    def parse(self, file: int, spans: Spans, rows: NDArray[np.int64], out: Columns) -> int:
        return int(_parse_lines(spans.buffer, spans.starts, spans.ends, rows, _LOGARITHMS, _HEX, *out))

    def explain(self, file: int, code: int, line: bytes) -> str:
        kind, column = code & ((1 << _CODE_BITS) - 1), code >> _CODE_BITS
        fields = line.rstrip(b"\r").split(b"\t")
        if kind == _EMPTY:
            return "the line is empty"
        if kind == _LABEL:
            return f"the label is {show(fields[0])}, expected 0 or 1"
        if kind == _INTEGER:
            return f"I{column + 1} is {show(fields[1 + column])}, expected an integer"
        many = f"over {FIELDS}" if kind == _MANY else str(len(fields))
        return f"{many} fields separated by tabs, expected {LEAST_FIELDS} to {FIELDS}"


def category_id(text: str) -> int:
    """The id of one category field: its hexadecimal value plus 1, a hash if it isn't one, 0 if it is empty."""
    data = np.frombuffer(text.encode(), np.uint8)
    return int(_category(data, 0, len(data), _HEX)[0])


@kernel
def _category(buffer, position, end, hex_digits):  # type: ignore[no-untyped-def]
    """(id of the field that starts here, where it ends)."""
    start = position
    value = np.uint64(0)
    others = np.uint8(0)
    while position < end and buffer[position] != 9:
        digit = hex_digits[buffer[position]]
        others |= digit & np.uint8(16)
        value = (value << np.uint64(4)) | np.uint64(digit)
        position += 1
    if position == start:
        return np.uint64(0), position
    if others or position - start > 16:
        return byte_hash(buffer, start, position), position
    value += np.uint64(1)
    return (value if value != np.uint64(0) else np.uint64(INSTEAD_OF_ZERO)), position


@kernel
def _integer(buffer, position, end):  # type: ignore[no-untyped-def]
    """(magnitude, negative, good, where the field ends); an empty field is 0."""
    start = position
    negative = position < end and buffer[position] == 45
    if negative:
        position += 1
    first = position
    value = 0
    while position < end:
        digit = np.int64(buffer[position]) - 48
        if digit < 0 or digit > 9:
            break
        value = value * 10 + digit
        position += 1
    digits = position - first
    stops = position == end or buffer[position] == 9
    good = stops and digits <= _MOST_DIGITS and (digits > 0 or position == start)
    return value, negative, good, position


@kernel
def _parse_line(buffer, start, end, row, logarithms, hex_digits, labels, dense, ids):  # type: ignore[no-untyped-def]
    """The line's code."""
    if end > start and buffer[end - 1] == 13:
        end -= 1
    if end == start:
        return _EMPTY
    label = buffer[start]
    if (label != 48 and label != 49) or (end > start + 1 and buffer[start + 1] != 9):  # noqa: PLR1714
        return _LABEL
    labels[row] = label - 48
    # Position of the separator before the next field; at the end of the line there is no next field.
    position = start + 1
    for j in range(DENSE):
        if position == end:
            return _FEW
        value, negative, good, position = _integer(buffer, position + 1, end)
        if not good:
            return _INTEGER | (j << _CODE_BITS)
        feature = logarithms[value] if value < _TABLE_SIZE else np.float32(signed_log1p(np.float64(value)))
        dense[row, j] = -feature if negative else feature
    if position == end:
        return _FEW
    for j in range(CATEGORICAL):
        if position == end:
            ids[j, row] = np.uint64(0)
        else:
            ids[j, row], position = _category(buffer, position + 1, end, hex_digits)
    return 0 if position == end else _MANY


@kernel
def _parse_lines(  # type: ignore[no-untyped-def]
    buffer, starts, ends, rows, logarithms, hex_digits, labels, dense, ids, codes
):
    bad = 0
    for i in range(starts.shape[0]):
        row = rows[i]
        code = _parse_line(buffer, starts[i], ends[i], row, logarithms, hex_digits, labels, dense, ids)
        codes[row] = code
        bad += code != 0
    return bad
