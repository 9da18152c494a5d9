"""What the ids of a categorical column are: integers, or text. The same ids of the other kind have other keys: none of them would be known.

Pure, and without numpy: ``validate`` uses it too. ``id_heads`` looks into files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from dlrover_lite.core.bounds import Text
from dlrover_lite.core.errors import DataError

__all__ = [
    "CRITEO_COLUMNS",
    "Agreement",
    "FileIds",
    "IdKind",
    "IdKinds",
    "SeenColumn",
    "TextValues",
    "compare",
    "kinds_of_format",
    "reconcile",
    "text_values",
]

CRITEO_COLUMNS = tuple(f"C{i}" for i in range(1, 27))

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_INTEGRAL_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.0+")
_SHOWN = 6


class IdKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """Kind of a categorical column's ids, and what it was told apart by."""

    kind: Literal["integer", "text"]
    """Kind of the ids. ``integer``: the key is the number plus 1; ``text``: the key is a hash of the bytes."""
    source: Text = ""
    """Type or format of the column, and the file it was seen in: ``int64 in day-1.parquet``."""
    reads_as: Literal["", "integers", "floats"] = ""
    """Form of all text values looked at: ``1267`` or ``1267.0``; "": another one, or several."""


IdKinds = Mapping[str, IdKind]
"""Kinds of ids by column. A column that nothing is known of, such as one without any value, is left out."""


class TextValues(NamedTuple):
    """Values of a text column that were looked at, by what they read as."""

    looked_at: int
    """Number of values that aren't empty."""
    integers: int
    floats: int
    """Number of integral floats, such as ``1267.0``."""
    a_float: str
    """The most frequent float; "" without any."""

    @property
    def reads_as(self) -> Literal["", "integers", "floats"]:
        if self.looked_at and self.integers == self.looked_at:
            return "integers"
        return "floats" if self.looked_at and self.floats == self.looked_at else ""


class SeenColumn(NamedTuple):
    """A categorical column as one file has it."""

    kind: Literal["integer", "text"]
    source: str
    """Type of the column in a Parquet file; else the format."""
    values: TextValues | None = None
    """Values that were looked at; None where they weren't."""


class FileIds(NamedTuple):
    """The categorical columns of one file whose kind is known."""

    file: str
    """Path of the file; "" for generated samples."""
    columns: dict[str, SeenColumn]


class Agreement(NamedTuple):
    """What several files say together."""

    kinds: dict[str, IdKind]
    problems: list[tuple[str, str]]
    """Columns, and how each differs in which file: one for each column."""
    warnings: list[str]
    hint: str = ""
    """What to do about the problems."""

    def require(self) -> None:
        """Raise DataError if there are problems."""
        if not self.problems:
            return
        shown = [message for _, message in self.problems[:_SHOWN]]
        shown += [f"and {len(self.problems) - _SHOWN} more columns"] if len(self.problems) > _SHOWN else []
        if len(shown) == 1:
            raise DataError(shown[0], hint=self.hint)
        raise DataError(
            "ids are of another kind than expected:\n" + "\n".join(f"  {line}" for line in shown), hint=self.hint
        )


def text_values(values: Iterable[str]) -> TextValues:
    """Count what the values of a text column read as; empty ones are left out."""
    counts = Counter(values)
    counts.pop("", None)
    integers = sum(times for value, times in counts.items() if _INTEGER.fullmatch(value))
    floats = Counter({value: times for value, times in counts.items() if _INTEGRAL_FLOAT.fullmatch(value)})
    example = floats.most_common(1)[0][0] if floats else ""
    return TextValues(sum(counts.values()), integers, sum(floats.values()), example)


def kinds_of_format(data_format: str, columns: Sequence[str]) -> dict[str, IdKind]:
    """Return the kinds that follow from the format alone, for what was trained before kinds were kept; none for Parquet, which has both.
    ``columns``: those that the recipe names."""
    if data_format == "csv":
        return {column: IdKind("text", "csv") for column in columns}
    if data_format in ("criteo", "synthetic"):
        return {column: IdKind("integer", data_format) for column in CRITEO_COLUMNS}
    return {}


def reconcile(files: Iterable[FileIds], expected: IdKinds | None = None, *, whose: str = "the job") -> Agreement:
    """Compare the columns of files with what is ``expected`` of them, and with each other; the first one that has a column says what is
    expected of the others. ``whose`` kinds they are is named in messages: "the model in export"."""
    kinds = dict(expected or {})
    problems: dict[str, str] = {}
    warnings: dict[str, str] = {}
    for one in files:
        for column, seen in one.columns.items():
            known = kinds.get(column)
            if known is None:
                known = kinds[column] = _kind(seen, Path(one.file).name)
            elif known.kind != seen.kind:
                problems.setdefault(column, _problem(column, _kind(seen, one.file), known, whose))
                continue
            if seen.values is not None and (text := _warning(column, one.file, seen.values, known, whose)):
                warnings.setdefault(column, text)
    first = kinds[next(iter(problems))].kind if problems else ""
    return Agreement(kinds, list(problems.items()), list(warnings.values()), _HINTS[first] if first else "")


def compare(expected: IdKinds, found: IdKinds, *, whose: str) -> Agreement:
    """Compare what was looked at before, as ``reconcile`` does."""
    both = [column for column in found if column in expected and expected[column].kind != found[column].kind]
    problems = [(column, _problem(column, found[column], expected[column], whose)) for column in both]
    return Agreement({**found, **expected}, problems, [], _HINTS[expected[both[0]].kind] if both else "")


_WORDS = {"integer": "integers", "text": "text"}
_HINTS = {
    "integer": "Write the column as integers (pandas: .astype('Int64')) to Parquet; in CSV every id is text.",
    "text": "Write the column as text (pandas: .astype('string')); in CSV every id is text.",
}
_PANDAS = "pandas writes integers so where one is missing; .astype('Int64') before writing keeps them"


def _kind(seen: SeenColumn, file: str) -> IdKind:
    source = f"{seen.source} in {file}" if file else seen.source
    return IdKind(seen.kind, source, "" if seen.values is None else seen.values.reads_as)


def _described(kind: IdKind) -> str:
    return f"{_WORDS[kind.kind]} ({kind.source})" if kind.source else _WORDS[kind.kind]


def _problem(column: str, found: IdKind, known: IdKind, whose: str) -> str:
    return f"column {column!r} has {_described(found)}, {whose} has {_described(known)}: none of its ids would be known"


def _warning(column: str, file: str, values: TextValues, known: IdKind, whose: str) -> str:
    """Say why a column's values are hardly what they are meant to be; "" where nothing is odd."""
    if known.reads_as == "integers" and values.floats:
        return (
            f"{values.floats:,} of {values.looked_at:,} ids looked at in column {column!r} of {file} read as {values.a_float!r}, "
            f"{whose} has integers without a point ({known.source}): these are other ids. {_PANDAS}."
        )
    if known.reads_as == "floats" and values.integers:
        return (
            f"{values.integers:,} of {values.looked_at:,} ids looked at in column {column!r} of {file} read as integers, "
            f"{whose} has floats such as '1267.0' ({known.source}): these are other ids. {_PANDAS}."
        )
    if values.floats and values.integers:
        return (
            f"{values.floats:,} of {values.looked_at:,} ids looked at in column {column!r} of {file} read as {values.a_float!r}, "
            f"{values.integers:,} as integers without a point: '7' and '7.0' are different ids. {_PANDAS}."
        )
    return ""
