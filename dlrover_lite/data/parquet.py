"""Samples read from Parquet files through pyarrow, a row group at a time. A "line" is a row number, from 1."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.data.base import BadLine, Batch, Schema
from dlrover_lite.data.csv import check_columns
from dlrover_lite.data.fields import category_id, hash_strings, integer_ids
from dlrover_lite.data.text import Columns, keep_good, new_columns
from dlrover_lite.errors import DataError
from dlrover_lite.recipe.heads import other_format, parquet_types
from dlrover_lite.recipe.id_heads import look_at_files, types_of_ids
from dlrover_lite.recipe.id_kinds import FileIds, reconcile
from dlrover_lite.recipe.numbers import OUT_OF_RANGE
from dlrover_lite.recipe.schema import ParquetData
from dlrover_lite.regular_files import check_regular

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParquetDataset", "parquet_samples"]

_KEPT_BYTES = 512 << 20
_KEPT_FILES = 64
_LABEL, _FIRST_DENSE = 1, 2  # codes: a bad label, or (2 + number) a dense value that float32 can't hold


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            "reading Parquet needs pyarrow, which isn't installed", hint='Run: pip install "dlrover-lite[parquet]"'
        ) from None
    return pa


def parquet_samples(files: Sequence[Path], data: ParquetData) -> int:
    """Rows of all the files, from their footers. Raises DataError, also for columns that are missing, of a type that
    can't be used, or of another kind than in the files before."""
    total = 0
    schema = Schema(tuple(data.dense), tuple(data.categorical))
    kinds: list[FileIds] = []
    for path in files:
        file = _open(path)
        _check_types(path, file.schema_arrow, data, schema)
        kinds.append(FileIds(str(path), types_of_ids(data, file.schema_arrow)))
        total += file.metadata.num_rows
        file.close()
    reconcile(kinds, whose="the data").require()
    return total


class ParquetDataset:
    """See ``base.Dataset``. The row groups used last are kept, decoded, up to 512 MiB and at least two."""

    def __init__(self, files: Sequence[Path], data: ParquetData) -> None:
        self.samples = parquet_samples(files, data)
        if self.samples == 0:
            raise DataError(f"{files[0]} holds no rows", hint="Check that it is the right file.")
        self.schema = Schema(tuple(data.dense), tuple(data.categorical))
        self._data = data
        self._label = data.label
        self._paths = list(files)
        self._files: OrderedDict[int, Any] = OrderedDict()
        self._groups: OrderedDict[int, Columns] = OrderedDict()
        self._kept_bytes = 0
        self._owners: list[tuple[int, int, int]] = []
        """Of each row group: its file, its number there, and its first row there."""
        counts = []
        for number, path in enumerate(files):
            file = _open(path)
            first = 0
            for group in range(file.metadata.num_row_groups):
                self._owners.append((number, group, first))
                counts.append(file.metadata.row_group(group).num_rows)
                first += counts[-1]
            file.close()
        self._first = np.cumsum([0, *counts])

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        """See ``base.Dataset``. Raises DataError when a file can't be read any more, or was changed."""
        numbers = np.ascontiguousarray(numbers, np.int64)
        columns = new_columns(self.schema, len(numbers))
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= self.samples):
            raise ValueError(f"sample numbers must be within [0, {self.samples})")
        owners = np.searchsorted(self._first, numbers, side="right") - 1
        bad: list[tuple[int, BadLine]] = []
        for group in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == group)
            local = numbers[rows] - self._first[group]
            decoded = self._group(group)
            columns.labels[rows] = decoded.labels[local]
            columns.dense[rows] = decoded.dense[local]
            columns.ids[:, rows] = decoded.ids[:, local]
            columns.codes[rows] = codes = decoded.codes[local]
            bad += [
                (int(rows[i]), self._bad_line(group, int(local[i]), decoded)) for i in np.flatnonzero(codes).tolist()
            ]
        return keep_good(columns, [line for _, line in sorted(bad)])

    def look_at_ids(self) -> list[FileIds]:
        return list(look_at_files(self._paths, self._data))

    def close(self) -> None:
        self._groups.clear()
        self._kept_bytes = 0
        while self._files:
            self._files.popitem()[1].close()

    def _bad_line(self, group: int, local: int, decoded: Columns) -> BadLine:
        number, _, first = self._owners[group]
        code = int(decoded.codes[local])
        if code == _LABEL:
            why = f"label column {self._label!r} is {decoded.labels[local]:g}, expected 0 or 1"
        else:
            why = f"column {self.schema.dense[code - _FIRST_DENSE]!r} is {OUT_OF_RANGE}"
        return BadLine(str(self._paths[number]), first + local + 1, why)

    def _group(self, group: int) -> Columns:
        if group in self._groups:
            self._groups.move_to_end(group)
            return self._groups[group]
        decoded = self._groups[group] = self._decode(group)
        self._kept_bytes += _bytes(decoded)
        while self._kept_bytes > _KEPT_BYTES and len(self._groups) > 2:
            self._kept_bytes -= _bytes(self._groups.popitem(last=False)[1])
        return decoded

    def _file(self, number: int) -> Any:
        if number in self._files:
            self._files.move_to_end(number)
            return self._files[number]
        file = self._files[number] = _open(self._paths[number])
        if len(self._files) > _KEPT_FILES:
            self._files.popitem(last=False)[1].close()
        return file

    def _decode(self, group: int) -> Columns:
        number, group_in_file, _ = self._owners[group]
        count = int(self._first[group + 1] - self._first[group])
        pa = _pyarrow()
        names = [self._label, *self.schema.dense, *self.schema.categorical]
        try:
            table = self._file(number).read_row_group(group_in_file, columns=names, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"row group {group_in_file} of {self._paths[number]} can't be read: {error}",
                hint="If the file was changed, start the job again; if it is damaged, fetch it again.",
            ) from error
        if table.num_rows != count:
            raise DataError(f"{self._paths[number]} was changed while it was being read", hint="Start the job again.")
        out = new_columns(self.schema, count)
        out.codes[:] = 0
        for column, name in enumerate(self.schema.dense):
            out.dense[:, column] = values = _numbers(pa, table.column(name), empty=0.0)
            np.nan_to_num(out.dense[:, column], copy=False, nan=0.0, posinf=np.inf, neginf=-np.inf)
            out.codes[np.isinf(values)] = _FIRST_DENSE + column
        for column, name in enumerate(self.schema.categorical):
            out.ids[column] = _ids(pa, table.column(name))
        out.labels[:] = _numbers(pa, table.column(self._label), empty=np.nan)
        out.codes[(out.labels != 0) & (out.labels != 1)] = _LABEL
        return out


def _bytes(columns: Columns) -> int:
    return sum(array.nbytes for array in columns)


def _open(path: Path) -> Any:
    pa = _pyarrow()
    if wrong := other_format(path, "parquet"):
        raise DataError(wrong, hint="Files are read as data.format says, also by evaluate: write it as Parquet.")
    try:
        check_regular(path)
        return pa.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} can't be read as Parquet: {error}", hint="Check that it is the right file.") from None


def _check_types(path: Path, found: pa.Schema, data: ParquetData, schema: Schema) -> None:
    check_columns(data.label, schema, found.names, str(path))
    for finding in parquet_types(path, data, found):
        raise DataError(finding.message)


def _numbers(pa: Any, column: pa.ChunkedArray, *, empty: float) -> NDArray[np.float32]:
    """Values as float32, nulls as ``empty``; what float32 can't hold becomes infinite."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    with np.errstate(over="ignore"):
        values: NDArray[np.float32] = (
            column.cast(pa.float64(), safe=False).fill_null(empty).to_numpy().astype(np.float32)
        )
    return values


def _ids(pa: Any, column: pa.ChunkedArray) -> NDArray[np.uint64]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.uint64)
    empty = column.is_null().to_numpy()
    if pa.types.is_integer(column.type):
        ids = integer_ids(column.fill_null(0).to_numpy())
    else:
        parts = [_string_ids(chunk.cast(pa.large_binary())) for chunk in column.chunks]
        ids = np.concatenate(parts) if parts else np.empty(0, np.uint64)
    ids[empty] = 0
    return ids


def _string_ids(strings: pa.LargeBinaryArray) -> NDArray[np.uint64]:
    ids = np.empty(len(strings), np.uint64)
    _, offsets, data = strings.buffers()
    if len(strings) and data is not None:
        places = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
        hash_strings(np.frombuffer(data, np.uint8), places, ids)
    else:
        ids[:] = category_id(b"")
    return ids
