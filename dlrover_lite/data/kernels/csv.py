"""The inner loops of the reader of delimited text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.data.base import Schema
from dlrover_lite.data.kernels.fields import FNV_START, fnv_finish, fnv_step, is_nan, parse_float
from dlrover_lite.data.lines import Spans
from dlrover_lite.data.text import Columns

__all__ = ["parse_lines", "roles_of"]

_BAD = 1  # the code of a bad line
_IGNORED, _IS_LABEL = -1, -2


def roles_of(columns: Sequence[str], label: str, schema: Schema) -> NDArray[np.int32]:
    """Return the role of each column [columns]: dense column d is d, categorical column c is (number of dense columns) + c."""
    roles = {name: number for number, name in enumerate((*schema.dense, *schema.categorical))}
    roles[label] = _IS_LABEL
    return np.array([roles.get(name, _IGNORED) for name in columns], np.int32)


def parse_lines(spans: Spans, rows: NDArray[np.int64], roles: NDArray[np.int32], delimiter: int, out: Columns) -> int:
    """Parse the spans' lines, whose columns have these ``roles``, into these rows of ``out``; return how many were bad."""
    return int(_parse_lines(spans.buffer, spans.starts, spans.ends, rows, roles, delimiter, *out))


@kernel
def _number(buffer, start, stop):  # type: ignore[no-untyped-def]
    """Return (value, whether it can be used, whether there is any). Spaces around it are left out; nothing, and NaN, is a missing value:
    0."""
    while start < stop and buffer[start] == 32:
        start += 1
    while stop > start and buffer[stop - 1] == 32:
        stop -= 1
    value, good = parse_float(buffer, start, stop)
    if not good and is_nan(buffer, start, stop):
        return 0.0, True, False
    return value, good, stop > start


@kernel
def _field_end(buffer, position, end, delimiter):  # type: ignore[no-untyped-def]
    """Return (first byte of the content, its end, where the field ends, whether its quotes are wrong)."""
    if position == end or buffer[position] != 34:
        start = position
        while position < end and buffer[position] != delimiter:
            position += 1
        return start, position, position, 0
    position += 1
    start = position
    while True:
        while position < end and buffer[position] != 34:
            position += 1
        if position == end:
            return start, position, position, _BAD
        if position + 1 < end and buffer[position + 1] == 34:
            position += 2
            continue
        stop = position
        position += 1
        good = position == end or buffer[position] == delimiter
        return start, stop, position, 0 if good else _BAD


@kernel
def _category(buffer, start, stop, quoted):  # type: ignore[no-untyped-def]
    """Return the id of a field with this content; in a quoted one two quotes stand for one."""
    if start == stop:
        return np.uint64(0)
    state = np.uint64(FNV_START)
    while start < stop:
        state = fnv_step(state, buffer[start])
        start += 2 if quoted and buffer[start] == 34 else 1
    return fnv_finish(state)


@kernel
def _parse_line(buffer, start, end, row, roles, delimiter, labels, dense, ids):  # type: ignore[no-untyped-def]
    """Parse a line; return its code."""
    if end > start and buffer[end - 1] == 13:
        end -= 1
    if end == start:
        return _BAD
    position = start - 1  # of the delimiter before the next field
    for column in range(roles.shape[0]):
        if position == end:
            return _BAD
        first = position + 1
        content, stop, position, error = _field_end(buffer, first, end, delimiter)
        if error:
            return _BAD
        role = roles[column]
        if role == _IGNORED:
            continue
        if role >= dense.shape[1]:
            ids[role - dense.shape[1], row] = _category(buffer, content, stop, content != first)
            continue
        value, good, given = _number(buffer, content, stop)
        if role == _IS_LABEL:
            if not (good and given and (value == 0.0 or value == 1.0)):  # noqa: PLR1714
                return _BAD
            labels[row] = value
        else:
            if not good:
                return _BAD
            dense[row, role] = value
    return 0 if position == end else _BAD


@kernel
def _parse_lines(buffer, starts, ends, rows, roles, delimiter, labels, dense, ids, codes):  # type: ignore[no-untyped-def]
    bad = 0
    for i in range(starts.shape[0]):
        code = _parse_line(buffer, starts[i], ends[i], rows[i], roles, delimiter, labels, dense, ids)
        codes[rows[i]] = code
        bad += code != 0
    return bad
