"""Samples read from Parquet files through pyarrow, a row group at a time. A "line" is a row number, from 1."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.data_file import DataFile
from dlrover_lite.core.files.regular import check_regular
from dlrover_lite.core.files.remote import RangeStream, RemoteFile
from dlrover_lite.data.base import BadLine, Batch, Schema, checked_numbers
from dlrover_lite.data.block_cache import FileRange, process_cache
from dlrover_lite.data.csv import check_columns
from dlrover_lite.data.files import for_each
from dlrover_lite.data.spilled_group import PIECE_ROWS, SpilledGroup
from dlrover_lite.data.text import Columns, Head, keep_good, new_columns
from dlrover_lite.recipe.file_preview import other_format, parquet_types
from dlrover_lite.recipe.id_kinds import FileIds, reconcile
from dlrover_lite.recipe.id_preview import look_at_files, types_of_ids
from dlrover_lite.recipe.numbers import OUT_OF_RANGE
from dlrover_lite.recipe.schema import ParquetData

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParquetDataset", "parquet_samples", "read_head"]

_KEPT_BYTES, _LEAST_KEPT = 64 << 20, 4
_LARGE_ROWS = 2 * PIECE_ROWS
"""Number of rows in a row group beyond which they are not held all at once."""
_SPILLED_BYTES = 4 << 30
"""Bytes of row groups kept on the disk, at most; two groups are kept all the same."""
_BUFFER_BYTES = 1 << 16
"""Bytes of a column's data that are read ahead of the decoder."""
_REMOTE_BUFFER_BYTES = 1 << 20
_FOOTER_BYTES = 64 << 10
"""Bytes at a file's end that pyarrow reads first."""
_NEAR_BYTES = 256 << 10
"""Bytes between columns of a row group that are fetched with them rather than that another request is made."""
_KEPT_FILES = 64
_HEAD_ROWS = 1000
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


def parquet_samples(files: Sequence[DataFile], data: ParquetData) -> int:
    """Return the number of rows of all the files, from their footers. Raises DataError, also for columns that are missing, of a type that
    can't be used, or of another kind than in the files before."""
    return sum(rows for one in _footers(files, data) for rows in one.rows)


class _Footer(NamedTuple):
    """What a file's footer says, as far as it is used."""

    ids: FileIds
    rows: list[int]
    """Number of rows of each row group."""
    ranges: list[list[tuple[int, int]]]
    """Where the columns of each row group are; nothing for a file on this machine."""


def _footers(files: Sequence[DataFile], data: ParquetData) -> list[_Footer]:
    """Read all footers: see ``parquet_samples``."""
    found = for_each(files, lambda path: _footer(path, data))
    reconcile([one.ids for one in found], whose="the data").require()
    return found


def _footer(path: DataFile, data: ParquetData) -> _Footer:
    file = _open(path)
    _check_types(path, file.schema_arrow, data)
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    columns = {data.label, *data.dense, *data.categorical}
    ranges = [_ranges_of(group, columns) for group in groups] if isinstance(path, RemoteFile) else []
    found = _Footer(
        FileIds(str(path), types_of_ids(data, file.schema_arrow)), [group.num_rows for group in groups], ranges
    )
    file.close()
    return found


def _ranges_of(group: Any, columns: set[str]) -> list[tuple[int, int]]:
    """Return where the chunks of these columns are, those that are near each other in one range."""
    chunks = []
    for number in range(group.num_columns):
        chunk = group.column(number)
        if {chunk.path_in_schema, chunk.path_in_schema.partition(".")[0]} & columns:
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            chunks.append((start, start + chunk.total_compressed_size))
    found: list[tuple[int, int]] = []
    for start, stop in sorted(chunks):
        if found and start - found[-1][1] <= _NEAR_BYTES:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def read_head(path: DataFile, data: ParquetData) -> Head:
    """Return the first 1,000 rows of a file. Raises DataError, also when none of them can be used."""
    dataset = ParquetDataset([path], data)
    try:
        count = min(_HEAD_ROWS, dataset.samples)
        batch = dataset.read(np.arange(count, dtype=np.int64))
    finally:
        dataset.close()
    if not len(batch.labels):
        first = batch.bad[0]
        raise DataError(
            f"none of the first {count} rows of {path} can be used; row {first.line}: {first.why}",
            hint="Check that it is the right file, and data.label.",
        )
    return Head(batch, count, count == dataset.samples)


class _Piece(NamedTuple):
    """Rows that are decoded together: of a small row group all, of a large one ``PIECE_ROWS``."""

    file: int
    group: int
    """Number of the row group in the file."""
    number: int
    """Number of the piece in the row group."""
    first: int
    """Row of the file that the piece begins with."""
    group_rows: int


class ParquetDataset:
    """See ``base.Dataset``. The pieces of row groups used last are kept, decoded, up to 64 MiB and at least four (two blocks of samples
    lie in them); those of large groups come from a file, see ``SpilledGroup``."""

    def __init__(self, files: Sequence[DataFile], data: ParquetData) -> None:
        footers = _footers(files, data)
        self.samples = sum(rows for one in footers for rows in one.rows)
        self.remote = any(isinstance(path, RemoteFile) for path in files)
        self._ranges = [one.ranges for one in footers]
        if self.samples == 0:
            raise DataError(f"{files[0]} holds no rows", hint="Check that it is the right file.")
        self.schema = Schema(tuple(data.dense), tuple(data.categorical))
        self._data = data
        self._label = data.label
        self._paths = list(files)
        self._files: OrderedDict[int, Any] = OrderedDict()
        self._kept: OrderedDict[int, Columns] = OrderedDict()
        self._kept_bytes = 0
        self._spilled: OrderedDict[tuple[int, int], SpilledGroup] = OrderedDict()
        self._pieces: list[_Piece] = []
        counts = []
        for number, footer in enumerate(footers):
            first = 0
            for group, rows in enumerate(footer.rows):
                size = rows if rows <= _LARGE_ROWS else PIECE_ROWS
                for at, start in enumerate(range(0, rows, size or 1)):
                    self._pieces.append(_Piece(number, group, at, first + start, rows))
                    counts.append(min(size, rows - start))
                first += rows
        self._first = np.cumsum([0, *counts])

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        """See ``base.Dataset``. Raises DataError when a file can't be read any more, or was changed."""
        numbers = checked_numbers(numbers, self.samples)
        columns = new_columns(self.schema, len(numbers))
        owners = np.searchsorted(self._first, numbers, side="right") - 1
        bad: list[tuple[int, BadLine]] = []
        for piece in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == piece)
            local = numbers[rows] - self._first[piece]
            decoded = self._decoded(piece)
            columns.labels[rows] = decoded.labels[local]
            columns.dense[rows] = decoded.dense[local]
            columns.ids[:, rows] = decoded.ids[:, local]
            columns.codes[rows] = codes = decoded.codes[local]
            bad += [
                (int(rows[i]), self._bad_line(piece, int(local[i]), decoded)) for i in np.flatnonzero(codes).tolist()
            ]
        return keep_good(columns, [line for _, line in sorted(bad)])

    def expect(self, ranges: Sequence[range]) -> None:
        groups = dict.fromkeys(group for samples in ranges for group in self._undecoded(samples))
        wanted = [found for file, group in groups for found in self._file_ranges(file, group)]
        if wanted:
            process_cache().expect(wanted)

    def _undecoded(self, samples: range) -> Iterator[tuple[int, int]]:
        """Give file and row group of what is still to be decoded of these samples: a row group is decoded as a whole."""
        first, last = np.searchsorted(self._first, (samples.start, samples.stop - 1), side="right") - 1
        for number in range(int(first), int(last) + 1):
            piece = self._pieces[number]
            key = (piece.file, piece.group)
            if number not in self._kept and not (key in self._spilled and self._spilled[key].finished):
                yield key

    def _file_ranges(self, file: int, group: int) -> Iterator[FileRange]:
        """Give what is read of a file under a URL to decode a row group."""
        path = self._paths[file]
        if isinstance(path, RemoteFile):
            if file not in self._files:
                yield _end_of(path)
            for start, stop in self._ranges[file][group]:
                yield FileRange(path, start, stop, alone=True)

    def look_at_ids(self) -> list[FileIds]:
        return list(look_at_files(self._paths, self._data))

    def close(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0
        while self._spilled:
            self._spilled.popitem()[1].close()
        while self._files:
            self._files.popitem()[1].close()

    def _bad_line(self, piece: int, local: int, decoded: Columns) -> BadLine:
        code = int(decoded.codes[local])
        if code == _LABEL:
            why = f"label column {self._label!r} is {decoded.labels[local]:g}, expected 0 or 1"
        else:
            why = f"column {self.schema.dense[code - _FIRST_DENSE]!r} is {OUT_OF_RANGE}"
        found = self._pieces[piece]
        return BadLine(str(self._paths[found.file]), found.first + local + 1, why)

    def _decoded(self, number: int) -> Columns:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        piece = self._pieces[number]
        large = piece.group_rows > _LARGE_ROWS
        decoded = self._kept[number] = self._large(piece).piece(piece.number) if large else self._decode(piece)
        self._kept_bytes += _bytes(decoded)
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > _LEAST_KEPT:
            self._kept_bytes -= _bytes(self._kept.popitem(last=False)[1])
        return decoded

    def _large(self, piece: _Piece) -> SpilledGroup:
        """Return the group of a piece, as far as it has been decoded. Only one of them is being decoded at any time."""
        key = (piece.file, piece.group)
        if key in self._spilled:
            self._spilled.move_to_end(key)
            return self._spilled[key]
        for other in self._spilled.values():
            other.finish()
        name = f"row group {piece.group} of {self._paths[piece.file]}"
        found = SpilledGroup(name, piece.group_rows, self.schema, self._parts(piece))
        self._spilled[key] = found
        while sum(group.bytes for group in self._spilled.values()) > _SPILLED_BYTES and len(self._spilled) > 2:
            self._spilled.popitem(last=False)[1].close()
        return found

    def _parts(self, piece: _Piece) -> Iterator[Columns]:
        """Yield the rows of a group, decoded a part at a time, without ever having a whole column in memory."""
        pa = _pyarrow()
        try:
            path = self._paths[piece.file]
            buffer = _REMOTE_BUFFER_BYTES if isinstance(path, RemoteFile) else _BUFFER_BYTES
            source = _input(path, self._known(piece.file))
            with pa.parquet.ParquetFile(source, pre_buffer=False, buffer_size=buffer) as file:
                batches = file.iter_batches(PIECE_ROWS, [piece.group], columns=self._columns(), use_threads=False)
                for batch in batches:
                    yield self._columns_of(pa.Table.from_batches([batch]))
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(piece, error) from error

    def _file(self, number: int) -> Any:
        if number in self._files:
            self._files.move_to_end(number)
            return self._files[number]
        file = self._files[number] = _reopen(self._paths[number], self._known(number))
        if len(self._files) > _KEPT_FILES:
            self._files.popitem(last=False)[1].close()
        return file

    def _known(self, file: int) -> list[tuple[int, int]]:
        return [one for group in self._ranges[file] for one in group]

    def _decode(self, piece: _Piece) -> Columns:
        pa = _pyarrow()
        try:
            table = self._file(piece.file).read_row_group(piece.group, columns=self._columns(), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(piece, error) from error
        if table.num_rows != piece.group_rows:
            changed = f"{self._paths[piece.file]} was changed while it was being read"
            raise DataError(changed, hint="Start the job again.")
        return self._columns_of(table)

    def _columns(self) -> list[str]:
        return [self._label, *self.schema.dense, *self.schema.categorical]

    def _unreadable(self, piece: _Piece, error: Exception) -> DataError:
        return DataError(
            f"row group {piece.group} of {self._paths[piece.file]} can't be read: {error}",
            hint="If the file was changed, start the job again; if it is damaged, fetch it again.",
        )

    def _columns_of(self, table: pa.Table) -> Columns:
        pa = _pyarrow()
        out = new_columns(self.schema, table.num_rows)
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


def _open(path: DataFile) -> Any:
    """Open a file for the first time: it may be none."""
    _pyarrow()
    if wrong := other_format(path, "parquet"):
        raise DataError(wrong, hint="Files are read as data.format says, also by evaluate: write it as Parquet.")
    return _reopen(path, ())


def _reopen(path: DataFile, ranges: Sequence[tuple[int, int]]) -> Any:
    """Open a file. ``ranges``: see ``_input``."""
    pa = _pyarrow()
    try:
        if isinstance(path, Path):
            check_regular(path)
        return pa.parquet.ParquetFile(_input(path, ranges), pre_buffer=isinstance(path, RemoteFile))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} can't be read as Parquet: {error}", hint="Check that it is the right file.") from None


def _input(path: DataFile, ranges: Sequence[tuple[int, int]]) -> Path | RangeStream:
    """Return what pyarrow is to read: of a file under a URL these ranges, and its end, by way of the cache, and what else it wants from
    there."""
    if not isinstance(path, RemoteFile):
        return path
    known = sorted({*(FileRange(path, start, stop, alone=True) for start, stop in ranges), _end_of(path)}, key=_start)

    def fetch(start: int, stop: int) -> bytes | memoryview:
        at = bisect_right(known, start, key=_start) - 1
        if at >= 0 and stop <= known[at].stop:
            return process_cache().read(path, start, stop, known[at]).data
        data = path.read(start, stop)
        path.check()
        return data

    return RangeStream(path.version().size, fetch)


def _start(one: FileRange) -> int:
    return one.start


def _end_of(path: RemoteFile) -> FileRange:
    """Return where a file's footer is, unless it is a very long one."""
    size = path.version().size
    return FileRange(path, max(0, size - _FOOTER_BYTES), size, alone=True)


def _check_types(path: DataFile, found: pa.Schema, data: ParquetData) -> None:
    check_columns(data, found.names, str(path))
    for finding in parquet_types(path, data, found):
        raise DataError(finding.message)


def _numbers(pa: Any, column: pa.ChunkedArray, *, empty: float) -> NDArray[np.float32]:
    """Return the values as float32, nulls as ``empty``; what float32 can't hold becomes infinite."""
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
        from dlrover_lite.data.kernels.fields import integer_ids

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
        from dlrover_lite.data.kernels.fields import hash_strings

        places = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
        hash_strings(np.frombuffer(data, np.uint8), places, ids)
    else:
        ids[:] = 0
    return ids
