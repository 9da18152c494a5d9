"""Delimited text with named columns.

A field may be quoted, with two quotes for one inside, but a line ends at its newline: a quote still open there makes it
a bad line. Categories are hashed by their bytes (quotes taken off), so 7 and 07 are different ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.data_file import DataFile
from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.data.base import Schema
from dlrover_lite.data.fields import FNV_START, fnv_finish, fnv_step, is_nan, parse_float
from dlrover_lite.data.files import for_each
from dlrover_lite.data.index import open_head
from dlrover_lite.data.lines import Spans
from dlrover_lite.data.text import UNEXPLAINED, Columns
from dlrover_lite.recipe.file_preview import BOM, missing_columns
from dlrover_lite.recipe.line_problems import csv_columns, csv_problem
from dlrover_lite.recipe.schema import CsvData, ParquetData

__all__ = ["CsvParser", "check_columns"]

_BAD = 1  # the code of a bad line
_IGNORED, _IS_LABEL = -1, -2
_LONGEST_HEADER = 1 << 20


class CsvParser:
    """See ``text.LineParser``. Each file's own header says where its columns are."""

    def __init__(self, data: CsvData, files: Sequence[DataFile]) -> None:
        self.schema = Schema(tuple(data.dense), tuple(data.categorical))
        self.header_lines = 0 if data.columns else 1
        self._data = data
        self._delimiter = data.delimiter
        if len(data.delimiter.encode()) != 1 or data.delimiter in '"\r\n':
            raise DataError(
                f"{data.delimiter!r} can't delimit fields", hint="Use one ASCII character that is no quote or newline."
            )
        self._columns: list[list[str]] = []
        self._roles: list[NDArray[np.int32]] = []
        headers = [data.columns] * len(files)
        if not data.columns:
            headers = for_each(files, lambda path: _read_header(path, data.delimiter))
        for path, columns in zip(files, headers, strict=True):
            check_columns(data, columns, "columns" if data.columns else str(path))
            self._columns.append(columns)
            self._roles.append(self._role_of_each(columns, data.label))

    def _role_of_each(self, columns: Sequence[str], label: str) -> NDArray[np.int32]:
        """Return the role of each column [columns]: dense column d is d, categorical column c is (number of dense columns) + c."""
        roles = {name: number for number, name in enumerate((*self.schema.dense, *self.schema.categorical))}
        roles[label] = _IS_LABEL
        return np.array([roles.get(name, _IGNORED) for name in columns], np.int32)

    def parse(self, file: int, spans: Spans, rows: NDArray[np.int64], out: Columns) -> int:
        roles, delimiter = self._roles[file], ord(self._delimiter)
        return int(_parse_lines(spans.buffer, spans.starts, spans.ends, rows, roles, delimiter, *out))

    def explain(self, file: int, line: bytes) -> str:
        return csv_problem(line.removesuffix(b"\r"), self._data, self._columns[file]) or UNEXPLAINED

    def data(self) -> CsvData:
        return self._data


def check_columns(data: CsvData | ParquetData, columns: Sequence[str], where: str) -> None:
    """Check columns. Raises DataError unless the wanted columns are all different and all among ``columns`` exactly once."""
    wanted = [data.label, *data.dense, *data.categorical]
    for name in wanted:
        if wanted.count(name) > 1:
            raise DataError(f"column {name!r} is named twice", hint="Use each as label, dense or categorical, once.")
    for finding in missing_columns(where, data, columns):
        raise DataError(finding.message, hint="Name each column as it is called in the files, where it is there once.")


def _read_header(path: DataFile, delimiter: str) -> list[str]:
    head = open_head(path, _LONGEST_HEADER).removeprefix(BOM)
    try:
        return csv_columns(head.split(b"\n", 1)[0].removesuffix(b"\r"), delimiter)
    except ValueError as error:
        raise DataError(
            f"the first line of {path} is not a header: {error}",
            hint="Check that it is the right file, or list its columns under data.columns.",
        ) from None


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
