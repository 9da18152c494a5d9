"""A look at the first lines of data files, cheap enough for ``validate``: no numpy, no compiled kernels. Of Parquet files, at the footer.

What is refused here, the readers refuse too. They look more closely, and have the last word.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dlrover_lite.core.files.regular import open_regular
from dlrover_lite.core.problems import nearest
from dlrover_lite.recipe.numbers import dense_problem, number
from dlrover_lite.recipe.schema import CriteoData, CsvData, ParquetData

__all__ = [
    "BOM",
    "PARQUET_MAGIC",
    "Finding",
    "examine",
    "other_format",
    "parquet_types",
    "read_head",
    "whole_lines",
    "wrong_format",
]

_HEAD_LINES = 1000
_HEAD_BYTES = 256 << 10
_SHOWN_COLUMNS = 20
_GZIP_MAGIC = b"\x1f\x8b"
PARQUET_MAGIC = b"PAR1"
BOM = b"\xef\xbb\xbf"
_INTEGER = re.compile(rb"-?[0-9]+|[+-]?[nN][aA][nN]")


class Finding(NamedTuple):
    """Something wrong with a file. ``field`` and ``column`` say which of the recipe's keys it contradicts; "" for the file itself."""

    message: str
    field: str = ""
    column: str = ""


def examine(path: Path, data: CriteoData | CsvData | ParquetData) -> Iterator[Finding]:
    """Find what shows in the first lines that this regular file isn't what ``data`` says. Nothing about files that can't be read."""
    try:
        head = read_head(path)
    except (OSError, EOFError, zlib.error):
        return  # the readers say why
    if wrong := wrong_format(path, head, data.__struct_config__.tag):
        yield Finding(wrong)
        return
    if isinstance(data, ParquetData):
        yield from _parquet(path, data)
        return
    lines = whole_lines(head.removeprefix(BOM))
    if isinstance(data, CriteoData):
        yield from _unusable(path, lines, 1, "criteo", _criteo_problem)
    elif len(data.delimiter.encode()) == 1:
        yield from _csv(path, data, lines)


def wrong_format(path: Path, head: bytes, data_format: object) -> str:
    """Say why a file that begins with ``head`` isn't of a recipe's ``data.format``: Parquet where text is expected, or the reverse; else
    ""."""
    is_parquet = head.startswith(PARQUET_MAGIC)
    if is_parquet == (data_format == "parquet"):
        return ""
    return f"{path} is a Parquet file, not {data_format}" if is_parquet else f"{path} is no Parquet file"


def other_format(path: Path, data_format: str) -> str:
    """Say the same as ``wrong_format`` of a file that may not be there: then ""."""
    try:
        with open_regular(path) as file:
            return wrong_format(path, file.read(len(PARQUET_MAGIC)), data_format)
    except OSError:
        return ""  # the readers say why


def read_head(path: Path) -> bytes:
    with open_regular(path) as file:
        if file.peek(2)[:2] != _GZIP_MAGIC:
            return file.read(_HEAD_BYTES)
        with gzip.GzipFile(fileobj=file) as unpacked:
            return unpacked.read(_HEAD_BYTES)


def whole_lines(head: bytes) -> list[bytes]:
    """Return the whole lines in ``head``, without their ends."""
    lines = head.split(b"\n")
    if len(head) >= _HEAD_BYTES or not lines[-1]:
        lines.pop()  # cut off, or nothing behind the last newline
    return [line.removesuffix(b"\r") for line in lines]


def _unusable(
    path: Path, lines: list[bytes], first: int, kind: str, problem_of: Callable[[bytes], str]
) -> Iterator[Finding]:
    """Give a finding unless one of the lines, the first of which has this number, can be used."""
    seen = lines[:_HEAD_LINES]
    why = ""
    for line in seen:
        problem = problem_of(line)
        if not problem:
            return
        why = why or problem
    if why:
        none = f"; none of its first {len(seen):,} lines can be used" if len(seen) > 1 else ""
        yield Finding(f"{path} isn't {kind} data as described: line {first}: {why}{none}")


def _criteo_problem(line: bytes) -> str:
    if not line:
        return "the line is empty"
    fields = line.split(b"\t")
    if fields[0] not in (b"0", b"1"):
        return f"the label is {_shown(fields[0])}, expected 0 or 1"
    if not 15 <= len(fields) <= 40:
        return f"{_fields(fields)} separated by tabs, expected 15 to 40"
    for column, field in enumerate(fields[1:14], 1):
        if field and not _INTEGER.fullmatch(field):
            return f"I{column} is {_shown(field)}, expected an integer"
    return ""


def _fields(fields: Sequence[object]) -> str:
    return f"{len(fields)} field{'' if len(fields) == 1 else 's'}"


def _shown(field: bytes) -> str:
    text = field[:41].decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:40] + "…")


def _csv(path: Path, data: CsvData, lines: list[bytes]) -> Iterator[Finding]:
    columns, first = data.columns, 1
    if not columns:
        try:
            columns = next(csv.reader([lines[0].decode()], delimiter=data.delimiter, strict=True), []) if lines else []
        except (csv.Error, UnicodeDecodeError):
            yield Finding(f"the first line of {path} is no header line of columns separated by {data.delimiter!r}")
            return
        missing = list(_missing_columns(path, data, columns))
        if missing or not columns:
            yield from missing
            return
        lines, first = lines[1:], 2
    yield from _unusable(path, lines, first, "csv", _csv_rule(data, columns))


def _missing_columns(path: Path, data: CsvData | ParquetData, columns: list[str]) -> Iterator[Finding]:
    shown = ", ".join(columns[:_SHOWN_COLUMNS]) + (", …" if len(columns) > _SHOWN_COLUMNS else "")
    for field, names in (("label", [data.label]), ("dense", data.dense), ("categorical", data.categorical)):
        for name in names:
            if columns.count(name) > 1:
                yield Finding(f"{path} has several columns named {name!r}", field, name)
            elif name not in columns:
                close = nearest(name, columns)
                more = f"did you mean {close}?" if close else f"its columns are: {shown}"
                yield Finding(f"{path} has no column {name!r}; {more}", field, name)


def _csv_rule(data: CsvData, columns: list[str]) -> Callable[[bytes], str]:
    label, dense = columns.index(data.label), [columns.index(name) for name in data.dense]

    def problem(line: bytes) -> str:
        if not line:
            return "the line is empty"
        try:
            fields = next(csv.reader([line.decode("utf-8", "replace")], delimiter=data.delimiter), [])
        except csv.Error:
            return ""  # a limit of this parser
        if len(fields) != len(columns):
            return f"{_fields(fields)} separated by {data.delimiter!r}, expected {len(columns)}"
        if number(fields[label]) not in (0.0, 1.0):
            return f"label column {data.label!r} is {_shown(fields[label].encode())}, expected 0 or 1"
        for name, at in zip(data.dense, dense, strict=True):
            if why := dense_problem(fields[at]):
                return f"column {name!r} is {_shown(fields[at].encode())}, {why}"
        return ""

    return problem


def _parquet(path: Path, data: ParquetData) -> Iterator[Finding]:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        return  # another check says so
    try:
        schema = pa.parquet.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        yield Finding(f"{path} can't be read as Parquet: {error}")
        return
    missing = list(_missing_columns(path, data, schema.names))
    yield from missing or parquet_types(path, data, schema)


def parquet_types(path: Path, data: ParquetData, schema: Any) -> Iterator[Finding]:
    """Find the columns of a pyarrow schema, which has them all, that are of a type that can't be used."""
    import pyarrow as pa

    types = pa.types

    def is_whole(kind: Any) -> bool:
        return bool(types.is_integer(kind) or types.is_boolean(kind))

    def is_text(kind: Any) -> bool:
        known = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
        return any(check(kind) for check in known)

    for field, names in (("label", [data.label]), ("dense", data.dense)):
        for name in names:
            kind = schema.field(name).type
            empty = types.is_null(kind) and field != "label"
            if not (empty or is_whole(kind) or types.is_floating(kind)):
                message = f"column {name!r} of {path} is of type {kind}; use an integer, float or bool column"
                yield Finding(message, field, name)
    for name in data.categorical:
        kind = schema.field(name).type
        inner = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_null(inner) or is_whole(inner) or is_text(inner)):
            message = f"column {name!r} of {path} is of type {kind}; use an integer or string column"
            if types.is_floating(inner):
                message += " (pandas makes floats of integers where one is missing: .astype('Int64') brings them back)"
            yield Finding(message, "categorical", name)
