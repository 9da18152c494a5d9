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
from dlrover_lite.data.base import Schema
from dlrover_lite.data.files import for_each
from dlrover_lite.data.index import open_head
from dlrover_lite.data.lines import Spans
from dlrover_lite.data.text import Columns
from dlrover_lite.recipe.file_preview import BOM, missing_columns
from dlrover_lite.recipe.line_problems import csv_columns, csv_problem
from dlrover_lite.recipe.schema import CsvData, ParquetData

__all__ = ["CsvParser", "check_columns"]

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
        self._roles: dict[int, NDArray[np.int32]] = {}
        """Role of each column, of the files whose lines were parsed."""
        headers = [data.columns] * len(files)
        if not data.columns:
            headers = for_each(files, lambda path: _read_header(path, data.delimiter))
        for path, columns in zip(files, headers, strict=True):
            check_columns(data, columns, "columns" if data.columns else str(path))
            self._columns.append(columns)

    def parse(self, file: int, spans: Spans, rows: NDArray[np.int64], out: Columns) -> int:
        from dlrover_lite.data.kernels.csv import parse_lines, roles_of

        if file not in self._roles:
            self._roles[file] = roles_of(self._columns[file], self._data.label, self.schema)
        return parse_lines(spans, rows, self._roles[file], ord(self._delimiter), out)

    def problem(self, file: int, line: bytes) -> str:
        return csv_problem(line.removesuffix(b"\r"), self._data, self._columns[file])

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
