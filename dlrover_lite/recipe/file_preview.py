"""A look at the first lines of data files, cheap enough for ``validate``: no numpy, no compiled kernels. Of Parquet files, at the footer.

What is refused here, the readers refuse too: the rules stand once (``line_problems``). They look at all lines, and have the last word.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.data_file import DataFile, open_stream
from dlrover_lite.core.files.remote import RemoteFile
from dlrover_lite.core.problems import nearest
from dlrover_lite.recipe.line_problems import criteo_problem, csv_columns, csv_problem
from dlrover_lite.recipe.schema import CriteoData, CsvData, ParquetData

__all__ = [
    "BOM",
    "PARQUET_MAGIC",
    "Finding",
    "examine",
    "kind_of_type",
    "missing_columns",
    "other_format",
    "parquet_input",
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


class Finding(NamedTuple):
    """Something wrong with a file. ``field`` and ``column`` say which of the recipe's keys it contradicts; "" for the file itself."""

    message: str
    field: str = ""
    column: str = ""


def examine(path: DataFile, data: CriteoData | CsvData | ParquetData) -> Iterator[Finding]:
    """Find what shows in the first lines that this regular file isn't what ``data`` says. Nothing about files that can't be read."""
    try:
        head = read_head(path)
    except (OSError, EOFError, zlib.error, DataError):
        return  # the readers say why
    if wrong := wrong_format(path, head, data.__struct_config__.tag):
        yield Finding(wrong)
        return
    if isinstance(data, ParquetData):
        yield from _parquet(path, data)
        return
    lines = whole_lines(head.removeprefix(BOM))
    if isinstance(data, CriteoData):
        yield from _unusable(path, lines, 1, "criteo", criteo_problem)
    elif len(data.delimiter.encode()) == 1:
        yield from _csv(path, data, lines)


def wrong_format(path: DataFile, head: bytes, data_format: object) -> str:
    """Say why a file that begins with ``head`` isn't of a recipe's ``data.format``: Parquet where text is expected, or the reverse; else
    ""."""
    is_parquet = head.startswith(PARQUET_MAGIC)
    if is_parquet == (data_format == "parquet"):
        return ""
    return f"{path} is a Parquet file, not {data_format}" if is_parquet else f"{path} is no Parquet file"


def other_format(path: DataFile, data_format: str) -> str:
    """Say the same as ``wrong_format`` of a file that may not be there: then ""."""
    try:
        with open_stream(path) as file:
            return wrong_format(path, file.read(len(PARQUET_MAGIC)), data_format)
    except (OSError, DataError):
        return ""  # the readers say why


def read_head(path: DataFile) -> bytes:
    with open_stream(path) as file:
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
    path: DataFile, lines: list[bytes], first: int, kind: str, problem_of: Callable[[bytes], str]
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


def _csv(path: DataFile, data: CsvData, lines: list[bytes]) -> Iterator[Finding]:
    columns, first = data.columns, 1
    if not columns:
        try:
            columns = csv_columns(lines[0], data.delimiter) if lines else []
        except ValueError:
            yield Finding(f"the first line of {path} is no header line of columns separated by {data.delimiter!r}")
            return
        yield from missing_columns(str(path), data, columns)
        lines, first = lines[1:], 2
    if not any(missing_columns("", data, columns)):
        yield from _unusable(path, lines, first, "csv", lambda line: csv_problem(line, data, columns))


def missing_columns(where: str, data: CsvData | ParquetData, columns: Sequence[str]) -> Iterator[Finding]:
    """Find the columns that are needed, and aren't, or not once, among the ``columns`` of a file or list."""
    shown = ", ".join(columns[:_SHOWN_COLUMNS]) + (", …" if len(columns) > _SHOWN_COLUMNS else "")
    for field, names in (("label", [data.label]), ("dense", data.dense), ("categorical", data.categorical)):
        for name in names:
            if columns.count(name) > 1:
                yield Finding(f"{where} has several columns named {name!r}", field, name)
            elif name not in columns:
                close = nearest(name, columns)
                more = f"did you mean {close}?" if close else f"its columns are: {shown}"
                yield Finding(f"{where} has no column {name!r}; {more}", field, name)


def _parquet(path: DataFile, data: ParquetData) -> Iterator[Finding]:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        return  # another check says so
    try:
        with parquet_input(path) as source:
            schema = pa.parquet.read_schema(source)
    except (pa.ArrowException, OSError, DataError) as error:
        yield Finding(f"{path} can't be read as Parquet: {error}")
        return
    missing = list(missing_columns(str(path), data, schema.names))
    yield from missing or parquet_types(path, data, schema)


@contextmanager
def parquet_input(path: DataFile) -> Iterator[Path | BufferedReader]:
    """Give what pyarrow is to open: a path, or a stream of ranges of a file under a URL. Raises DataError for the latter."""
    if isinstance(path, RemoteFile):
        with open_stream(path) as stream:
            yield stream
    else:
        yield path


def parquet_types(path: DataFile, data: ParquetData, schema: Any) -> Iterator[Finding]:
    """Find the columns of a pyarrow schema, which has them all, that are of a type that can't be used."""
    import pyarrow as pa

    types = pa.types
    for field, names in (("label", [data.label]), ("dense", data.dense)):
        for name in names:
            kind = schema.field(name).type
            empty = types.is_null(kind) and field != "label"
            if not (empty or types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind)):
                message = f"column {name!r} of {path} is of type {kind}; use an integer, float or bool column"
                yield Finding(message, field, name)
    for name in data.categorical:
        kind = schema.field(name).type
        inner = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_null(inner) or kind_of_type(inner)):
            message = f"column {name!r} of {path} is of type {kind}; use an integer or string column"
            if types.is_floating(inner):
                message += " (pandas makes floats of integers where one is missing: .astype('Int64') brings them back)"
            yield Finding(message, "categorical", name)


def kind_of_type(kind: Any) -> Literal["integer", "text"] | None:
    """Return the kind of ids in a column of this pyarrow type; None for nulls, and for a type that can't be used."""
    import pyarrow as pa

    types = pa.types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_integer(inner) or types.is_boolean(inner):
        return "integer"
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return "text" if any(check(inner) for check in texts) else None
