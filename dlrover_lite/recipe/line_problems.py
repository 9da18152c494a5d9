"""Why a line of a data file can't be used. The readers find such lines with kernels of their own; what is wrong with one is said here, to
them and to ``validate``, without numpy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dlrover_lite.recipe.numbers import dense_problem, number
from dlrover_lite.recipe.schema import CsvData

__all__ = ["criteo_problem", "csv_columns", "csv_problem", "split_line"]

_FEWEST_FIELDS, _MOST_FIELDS = 15, 40
_INTEGER = re.compile(rb"-?[0-9]{1,18}|[+-]?[nN][aA][nN]")
_QUOTED = re.compile(r'"((?:[^"]|"")*)("?)')
"""A field in quotes, with two quotes for one inside, and the quote that closes it."""
_SHOWN_CHARACTERS = 40


def criteo_problem(line: bytes) -> str:
    """Say why a line of Criteo's TSV can't be used; "" where it can."""
    if not line:
        return "the line is empty"
    fields = line.split(b"\t")
    if fields[0] not in (b"0", b"1"):
        return f"the label is {_shown(fields[0])}, expected 0 or 1"
    if not _FEWEST_FIELDS <= len(fields) <= _MOST_FIELDS:
        return f"{_count(fields)} separated by tabs, expected {_FEWEST_FIELDS} to {_MOST_FIELDS}"
    for column, field in enumerate(fields[1:14], 1):
        if field and not _INTEGER.fullmatch(field):
            is_long = field.removeprefix(b"-").isdigit()
            why = "out of range: an integer has at most 18 digits" if is_long else "expected an integer"
            return f"I{column} is {_shown(field)}, {why}"
    return ""


def csv_problem(line: bytes, data: CsvData, columns: Sequence[str]) -> str:
    """Say why a line of delimited text with these columns can't be used; "" where it can."""
    if not line:
        return "the line is empty"
    fields, problem = split_line(line.decode("utf-8", "surrogateescape"), data.delimiter)
    if problem and len(fields) < len(columns):
        return problem.format(repr(columns[len(fields)]))
    if problem or len(fields) != len(columns):
        return f"{_count(fields)} separated by {data.delimiter!r}, expected {len(columns)}"
    of = dict(zip(columns, fields, strict=True))
    if number(of[data.label]) not in (0.0, 1.0):
        return f"label column {data.label!r} is {_shown(of[data.label])}, expected 0 or 1"
    for name in data.dense:
        if why := dense_problem(of[name]):
            return f"column {name!r} is {_shown(of[name])}, {why}"
    return ""


def csv_columns(header: bytes, delimiter: str) -> list[str]:
    """Return the columns that a header line names. Raises ValueError for what is no such line."""
    columns, problem = split_line(header.decode(), delimiter)
    if problem:
        raise ValueError(problem.format(len(columns) + 1))
    return columns


def split_line(line: str, delimiter: str) -> tuple[list[str], str]:
    """Return the fields of a line without their quotes, up to one whose quotes are wrong, and what is wrong with them: a text with room for
    the name of its column; "" where nothing is."""
    if '"' not in line:
        return line.split(delimiter), ""
    fields: list[str] = []
    at = 0
    while at <= len(line):
        if (quoted := _QUOTED.match(line, at)) is None:
            end = line.find(delimiter, at)
            fields.append(line[at:] if end < 0 else line[at:end])
            at += len(fields[-1]) + 1
            continue
        if not quoted[2]:
            return fields, "the quote that opens column {} isn't closed on this line"
        if line[quoted.end() : quoted.end() + 1] not in ("", delimiter):
            return fields, "text after the closing quote of column {}"
        fields.append(quoted[1].replace('""', '"'))
        at = quoted.end() + 1
    return fields, ""


def _count(fields: Sequence[object]) -> str:
    return f"{len(fields)} field{'' if len(fields) == 1 else 's'}"


def _shown(field: str | bytes) -> str:
    """Return a field quoted for a message, cut to a readable length."""
    data = field.encode("utf-8", "surrogateescape") if isinstance(field, str) else field
    text = data[: _SHOWN_CHARACTERS + 1].decode("utf-8", "replace")
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
