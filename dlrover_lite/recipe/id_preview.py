"""A look at how the first lines of data files have their ids; of Parquet files, at the types of their columns too."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.data_file import DataFile, located
from dlrover_lite.core.files.regular import check_regular
from dlrover_lite.core.files.retries import QUICK
from dlrover_lite.recipe.data_files import files_of
from dlrover_lite.recipe.file_preview import BOM, kind_of_type, parquet_input, read_head, whole_lines
from dlrover_lite.recipe.id_kinds import (
    CRITEO_COLUMNS,
    Agreement,
    FileIds,
    SeenColumn,
    TextValues,
    reconcile,
    text_values,
)
from dlrover_lite.recipe.line_problems import split_line
from dlrover_lite.recipe.schema import CriteoData, CsvData, Data, ParquetData

__all__ = ["look_at_files", "look_at_recipe", "types_of_ids"]

_MOST_LINES, _LEAST_LINES, _ALL_LINES = 1000, 20, 50_000
"""Numbers of lines looked at: of one file at most, of one file at least, also where there are many, and about so many of all files
together."""
_CRITEO_FIRST = 14


def look_at_files(files: Sequence[DataFile], data: CriteoData | CsvData | ParquetData) -> Iterator[FileIds]:
    """Return the categorical columns of each file, with the values in its first lines. Nothing of what can't be read: the readers say
    why."""
    lines = max(_LEAST_LINES, min(_MOST_LINES, _ALL_LINES // max(1, len(files))))
    for path in files:
        yield FileIds(
            str(path), _parquet(path, data, lines) if isinstance(data, ParquetData) else _text(path, data, lines)
        )


def look_at_recipe(data: Data, directory: Path) -> Agreement:
    """Say what the files of a recipe say together: those to train on first."""
    if not isinstance(data, CriteoData | CsvData | ParquetData):
        return reconcile([])
    files: list[DataFile] = []
    for pattern in (*data.train, *data.eval):
        files += files_of(located(pattern, directory, QUICK))
    return reconcile(look_at_files(files, data))


def types_of_ids(data: ParquetData, schema: Any) -> dict[str, SeenColumn]:
    """Return the categorical columns of a pyarrow schema; without those of nothing but nulls, or of a type that can't be used."""
    found = {}
    for name in data.categorical:
        if schema.names.count(name) == 1 and (kind := kind_of_type(schema.field(name).type)):
            found[name] = SeenColumn(kind, str(schema.field(name).type))
    return found


def _parquet(path: DataFile, data: ParquetData, lines: int) -> dict[str, SeenColumn]:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        return {}
    try:
        if isinstance(path, Path):
            check_regular(path)
        with parquet_input(path) as source, pa.parquet.ParquetFile(source) as file:
            columns = types_of_ids(data, file.schema_arrow)
            texts = [name for name, seen in columns.items() if seen.kind == "text"]
            for batch in islice(
                file.iter_batches(batch_size=lines, columns=texts, use_threads=False), 1 if texts else 0
            ):
                for name in texts:
                    values = map(_as_text, batch.column(name).to_pylist())
                    columns[name] = columns[name]._replace(values=text_values(values))
    except (pa.ArrowException, OSError, DataError):
        return {}
    return columns


def _as_text(value: str | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""


def _text(path: DataFile, data: CriteoData | CsvData, lines: int) -> dict[str, SeenColumn]:
    try:
        head = whole_lines(read_head(path).removeprefix(BOM))
    except (OSError, EOFError, zlib.error, DataError):
        return {}
    rows = [line.decode("utf-8", "replace") for line in head[: lines + 1]]
    if isinstance(data, CriteoData):
        fields = [line.split("\t")[_CRITEO_FIRST:] for line in rows[:lines]]
        return {name: SeenColumn("integer", "criteo", _values(fields, at)) for at, name in enumerate(CRITEO_COLUMNS)}
    split = _split(rows, data.delimiter)
    columns = data.columns or next(split, [])
    records = [row for row in islice(split, lines) if len(row) == len(columns)]
    found = {}
    for name in data.categorical:
        if columns.count(name) == 1:
            found[name] = SeenColumn("text", "csv", _values(records, columns.index(name)))
    return found


def _split(lines: Sequence[str], delimiter: str) -> Iterator[list[str]]:
    """Split each line into its fields; none where it can't be split."""
    for line in lines:
        fields, problem = split_line(line, delimiter)
        yield [] if problem else fields


def _values(rows: Sequence[Sequence[str]], at: int) -> TextValues:
    return text_values(row[at] for row in rows if at < len(row))
