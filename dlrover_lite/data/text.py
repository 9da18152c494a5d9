"""Samples read from text files, one line each: what Criteo's format and CSV have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.data_file import DataFile
from dlrover_lite.core.files.remote import RemoteFile
from dlrover_lite.data.base import BadLine, Batch, Schema, checked_numbers
from dlrover_lite.data.block_cache import FileRange, process_cache
from dlrover_lite.data.files import Progress, for_each
from dlrover_lite.data.index import TextIndex, find_index, index_text, open_head
from dlrover_lite.data.lines import LineReader, Spans
from dlrover_lite.recipe.file_preview import BOM, wrong_format
from dlrover_lite.recipe.id_kinds import FileIds
from dlrover_lite.recipe.id_preview import look_at_files
from dlrover_lite.recipe.schema import CriteoData, CsvData

__all__ = [
    "Columns",
    "Head",
    "LineParser",
    "TextDataset",
    "cached_samples",
    "check_format",
    "keep_good",
    "new_columns",
    "read_head",
]

_HEAD_LINES = 1000
_HEAD_BYTES = 256 << 10
_LONGEST_HEAD_BYTES = 16 << 20
_SMALL_BYTES = 16 << 20
_UNEXPLAINED = "it is too long, or has too many digits, to say why"


class Columns(NamedTuple):
    """Arrays for parsed samples, laid out as in ``Batch``; ``codes`` int32 [n] is 0 for a good line."""

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    ids: NDArray[np.uint64]
    codes: NDArray[np.int32]


class LineParser(Protocol):
    schema: Schema
    header_lines: int
    """Number of lines at the start of each file that are no samples."""

    def parse(self, file: int, spans: Spans, rows: NDArray[np.int64], out: Columns) -> int:
        """Parse line i of the spans, of file number ``file``, into row ``rows[i]`` of ``out``; how many were bad."""

    def problem(self, file: int, line: bytes) -> str:
        """Return why a line is bad; "" where nothing seems to be."""

    def data(self) -> CriteoData | CsvData:
        """Return what the recipe says of the files."""


def new_columns(schema: Schema, count: int) -> Columns:
    return Columns(
        np.empty(count, np.float32),
        np.empty((count, len(schema.dense)), np.float32),
        np.empty((len(schema.categorical), count), np.uint64),
        np.empty(count, np.int32),
    )


def keep_good(columns: Columns, bad: list[BadLine]) -> Batch:
    """Return the batch of the rows whose code is 0."""
    if not bad:
        return Batch(columns.labels, columns.dense, columns.ids, bad)
    good = columns.codes == 0
    return Batch(columns.labels[good], columns.dense[good], columns.ids[:, good], bad)


def cached_samples(files: Sequence[DataFile], header_lines: int) -> int | None:
    """Return how many samples the files hold, if all of them have been indexed already."""
    total = 0
    for path in files:
        index = find_index(path)
        if index is None:
            return None
        total += index.lines - header_lines
    return total


class Head(NamedTuple):
    """The samples in the first lines of a file."""

    batch: Batch
    lines: int
    """Number of lines that were read, bad ones included."""
    whole: bool
    """The samples are all that the file has."""
    bytes: int = 0
    """Length of the lines in bytes, with their ends; 0 where lines have none."""


class _FirstLines(NamedTuple):
    buffer: NDArray[np.uint8]
    starts: NDArray[np.int64]
    """Positions [lines + 1] where each line starts; the last one is where the next would."""
    whole: bool
    """The file has no others."""

    def line(self, number: int) -> bytes:
        return bytes(self.buffer[self.starts[number] : self.starts[number + 1] - 1])


def _first_lines(path: DataFile, parser: LineParser) -> _FirstLines:
    """Read the first 1,000 samples' lines of a file, or fewer if they are long. Raises DataError for a file without, and for another
    format."""
    size = _HEAD_BYTES
    head = open_head(path, size)
    data_format = parser.data().__struct_config__.tag
    if wrong := wrong_format(path, head, data_format):
        raise DataError(wrong, hint=f"Files are read as data.format says, also by evaluate: write it as {data_format}.")
    while b"\n" not in head and len(head) == size and size < _LONGEST_HEAD_BYTES:
        size *= 8
        head = open_head(path, size)
    buffer = np.frombuffer(head.removeprefix(BOM), np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(buffer == 10) + 1))
    if len(head) < size and (not len(buffer) or buffer[-1] != 10):
        starts = np.append(starts, len(buffer) + 1)  # after the file's last line, without a newline
    most = _HEAD_LINES + parser.header_lines
    whole = len(head) < size and len(starts) <= most + 1
    if len(starts) - 1 <= parser.header_lines:
        why = "it has a header line only" if len(starts) > 1 else "its first line doesn't end"
        raise DataError(f"{path} holds no samples: {why}", hint="Check that it is the right file, and its format.")
    return _FirstLines(buffer, starts[parser.header_lines : most + 1], whole)


def _unusable(path: DataFile, lines: int, first: BadLine) -> DataError:
    return DataError(
        f"none of the first {lines} lines of {path} can be used; line {first.line}: {first.why}",
        hint="Check that it is the right file. Its format is the recipe's data.format; evaluate reads files as training did.",
    )


def _bad_line(path: DataFile, file: int, parser: LineParser, number: int, line: bytes) -> BadLine:
    """Return the bad line that has this number, from 0."""
    return BadLine(str(path), number + 1, parser.problem(file, line) or _UNEXPLAINED)


def check_format(path: DataFile, file: int, parser: LineParser) -> None:
    """Raise DataError when none of the first lines of a file can be used: it isn't what the recipe says. Without kernels, as a master
    looks at data before its job begins."""
    lines = _first_lines(path, parser)
    count = len(lines.starts) - 1
    if all(parser.problem(file, lines.line(number)) for number in range(count)):
        raise _unusable(path, count, _bad_line(path, file, parser, parser.header_lines, lines.line(0)))


def read_head(path: DataFile, file: int, parser: LineParser) -> Head:
    """Read the first 1,000 lines of a file, or fewer if they are long. Raises DataError when none of them can be used: it isn't what the
    recipe says."""
    lines = _first_lines(path, parser)
    count = len(lines.starts) - 1
    rows = np.arange(count)
    out = new_columns(parser.schema, count)
    bad: list[BadLine] = []
    if parser.parse(file, Spans(lines.buffer, rows, lines.starts[:-1], lines.starts[1:] - 1), rows, out):
        rows_of_bad = np.flatnonzero(out.codes).tolist()
        bad += [_bad_line(path, file, parser, parser.header_lines + row, lines.line(row)) for row in rows_of_bad]
    if len(bad) == count:
        raise _unusable(path, count, bad[0])
    return Head(keep_good(out, bad), count, lines.whole, int(lines.starts[-1] - lines.starts[0]))


def _indexes_of(files: Sequence[DataFile], progress: Progress | None) -> list[TextIndex]:
    """Index files: small ones under URLs several at a time, since a store takes longer to answer than they take to be read."""
    small = [path for path in files if isinstance(path, RemoteFile) and path.version().size <= _SMALL_BYTES]
    known: dict[DataFile, TextIndex] = {}
    if len(small) > 1:
        known = dict(zip(small, for_each(small, index_text), strict=True))
    return [known.get(path) or index_text(path, progress) for path in files]


class TextDataset:
    """The lines of several text files, one after the other. See ``base.Dataset``."""

    def __init__(self, files: Sequence[DataFile], parser: LineParser, progress: Progress | None = None) -> None:
        self.schema = parser.schema
        self._parser = parser
        numbers = {path: number for number, path in enumerate(files)}
        for_each(files, lambda path: check_format(path, numbers[path], parser))
        self._indexes = _indexes_of(files, progress)
        self._reader = LineReader(self._indexes)
        self._first = np.cumsum([0] + [index.lines - parser.header_lines for index in self._indexes])
        self.samples = int(self._first[-1])
        self.remote = any(index.remote is not None for index in self._indexes)

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        """See ``base.Dataset``. Raises DataError when a file can't be read any more, or was changed."""
        numbers = checked_numbers(numbers, self.samples)
        columns = new_columns(self.schema, len(numbers))
        if not len(numbers):
            return keep_good(columns, [])
        bad = 0
        owners = np.searchsorted(self._first, numbers, side="right") - 1
        for file in [0] if len(self._indexes) == 1 else np.unique(owners).tolist():
            rows = np.flatnonzero(owners == file)
            lines = numbers[rows] - self._first[file] + self._parser.header_lines
            for spans in self._reader.find(file, lines):
                bad += self._parser.parse(file, spans, rows[spans.rows], columns)
        return keep_good(columns, self._bad_lines(numbers, owners, columns) if bad else [])

    def expect(self, ranges: Sequence[range]) -> None:
        wanted = [found for samples in ranges for found in self._byte_ranges(samples)]
        if wanted:
            process_cache().expect(wanted)

    def _byte_ranges(self, samples: range) -> Iterator[FileRange]:
        """Give where these samples are in files under URLs."""
        for file in range(len(self._indexes)):
            first = max(samples.start, int(self._first[file])) - int(self._first[file])
            stop = min(samples.stop, int(self._first[file + 1])) - int(self._first[file])
            header = self._parser.header_lines
            if first < stop and (found := self._reader.byte_range(file, first + header, stop + header)):
                yield found

    def look_at_ids(self) -> list[FileIds]:
        return list(look_at_files([index.source for index in self._indexes], self._parser.data()))

    def close(self) -> None:
        self._reader.close()

    def _bad_lines(self, numbers: NDArray[np.int64], owners: NDArray[np.int64], columns: Columns) -> list[BadLine]:
        lines = []
        for row in np.flatnonzero(columns.codes).tolist():
            file = int(owners[row])
            line = int(numbers[row] - self._first[file]) + self._parser.header_lines
            text = self._reader.line(file, line)
            lines.append(_bad_line(self._indexes[file].source, file, self._parser, line, text))
        return lines
