"""From a recipe's data section to datasets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.data_file import DataFile, version_of
from dlrover_lite.data.base import CRITEO_SCHEMA, Batch, Dataset, Schema, checked_numbers
from dlrover_lite.data.files import Progress, resolve
from dlrover_lite.recipe.id_kinds import FileIds
from dlrover_lite.recipe.schema import CensusData, CriteoData, CsvData, Data, ParquetData, SyntheticData

if TYPE_CHECKING:
    from dlrover_lite.data.text import Head, LineParser

__all__ = ["Description", "View", "describe", "estimate_samples", "index_data", "open_data", "read_heads"]

_MOST_HEADS = 100
_UNPACKED_TIMES = 3.0
"""Factor by which gzip makes logs of clicks smaller, usually."""
FileData = CriteoData | CsvData | ParquetData


class Description(NamedTuple):
    """What is known of a recipe's data without reading it all."""

    train_samples: int | None
    """Number of samples to train on; None until the files have been indexed; bad lines are included."""
    eval_samples: int | None
    """Number of samples to evaluate on; None until the files have been indexed; 0 when there is nothing to evaluate on."""
    schema: Schema
    fingerprint: str
    """Text that changes when the settings that decide what a sample holds, or a file's name or version, do."""


class View:
    """A stretch of another dataset: samples ``first`` .. ``first + samples - 1`` of it. See ``base.Dataset``."""

    def __init__(self, dataset: Dataset, *, first: int, samples: int) -> None:
        self.schema = dataset.schema
        self.samples = samples
        self.remote = dataset.remote
        self._dataset = dataset
        self._first = first

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        numbers = checked_numbers(numbers, self.samples)
        return self._dataset.read(numbers + self._first)

    def expect(self, ranges: Sequence[range]) -> None:
        self._dataset.expect([range(one.start + self._first, one.stop + self._first) for one in ranges])

    def look_at_ids(self) -> list[FileIds]:
        return self._dataset.look_at_ids()

    def close(self) -> None:
        self._dataset.close()


def open_data(
    data: Data, *, directory: Path, part: Literal["train", "eval"], progress: Progress | None = None
) -> Dataset | None:
    """Return the samples to train or to evaluate on; None only for ``eval`` when there are none.

    Relative paths start at ``directory``. Text files are indexed unless their index is cached; meanwhile
    ``progress(what, done, total)`` is called. The dataset may be used in processes forked later. Raises DataError.
    """
    if isinstance(data, CensusData):
        from dlrover_lite.data.census import CensusDataset

        return CensusDataset(data) if part == "train" else None
    if isinstance(data, SyntheticData):
        return _open_synthetic(data, part)
    if part == "eval" and data.eval:
        return _open_files(data, data.eval, directory, progress)
    if part == "train" and data.eval:
        return _open_files(data, data.train, directory, progress)
    whole = _open_files(data, data.train, directory, progress)
    train, held_out = _split(data, whole.samples)
    if part == "train":
        return View(whole, first=0, samples=train)
    if held_out:
        return View(whole, first=train, samples=held_out)
    whole.close()
    return None


def index_data(data: Data, directory: Path, progress: Progress | None = None) -> int:
    """Index the files of a job, if they aren't yet; return the number of samples to train on. See ``open_data``."""
    if isinstance(data, SyntheticData | CensusData):
        return data.samples
    samples = 0
    parts: tuple[Literal["train", "eval"], ...] = ("train", "eval")
    for part in parts:
        dataset = open_data(data, directory=directory, part=part, progress=progress)
        if dataset is not None:
            samples = dataset.samples if part == "train" else samples
            dataset.close()
    return samples


def describe(data: Data, directory: Path) -> Description:
    """Check the files (existence, columns, their first lines) and count samples as far as that is cheap. Raises DataError."""
    if isinstance(data, CensusData):
        from dlrover_lite.data.census import CENSUS_SCHEMA

        return Description(data.samples, 0, CENSUS_SCHEMA, _fingerprint(msgspec.structs.replace(data, samples=1)))
    if isinstance(data, SyntheticData):
        settings = msgspec.structs.replace(data, samples=1, eval_samples=0)
        return Description(data.samples, data.eval_samples, CRITEO_SCHEMA, _fingerprint(settings))
    train = resolve(data.train, directory)
    held_out = resolve(data.eval, directory)
    schema, train_samples = _examine(data, train)
    eval_samples: int | None = 0
    if held_out:
        eval_samples = _examine(data, held_out)[1]
    elif train_samples is not None:
        train_samples, eval_samples = _split(data, train_samples)
    elif data.eval_share:
        eval_samples = None
    decisive = msgspec.structs.replace(data, train=[], eval=[], max_bad_share=0.0)
    return Description(train_samples, eval_samples, schema, _fingerprint(decisive, train, held_out))


def read_heads(data: FileData, directory: Path) -> list[Head]:
    """Return the first lines (Parquet: rows) of each file to train or evaluate on, of the first hundred of them; without an index. Raises
    DataError."""
    files = resolve([*data.train, *data.eval], directory)[:_MOST_HEADS]
    if isinstance(data, ParquetData):
        from dlrover_lite.data.parquet import read_head

        return [read_head(path, data) for path in files]
    from dlrover_lite.data.text import read_head as read_lines

    parser = _parser(data, files)
    return [read_lines(path, number, parser) for number, path in enumerate(files)]


def estimate_samples(data: CriteoData | CsvData, directory: Path, heads: Sequence[Head]) -> int:
    """Estimate how many samples there are to train on in an epoch, by the files' sizes and the lines of their ``heads``. Raises
    DataError."""
    files = resolve(data.train, directory)
    line_bytes = sum(head.bytes for head in heads) / max(1, sum(head.lines for head in heads))
    size = sum(version_of(path).size * (_UNPACKED_TIMES if path.suffix == ".gz" else 1) for path in files)
    share = 1.0 if data.eval else 1.0 - data.eval_share
    return max(1, round(size / line_bytes * share))


def _open_synthetic(data: SyntheticData, part: str) -> Dataset | None:
    from dlrover_lite.data.synthetic import SyntheticDataset

    if part == "train":
        return SyntheticDataset(data, first=0, samples=data.samples)
    return SyntheticDataset(data, first=data.samples, samples=data.eval_samples) if data.eval_samples else None


def _open_files(data: FileData, patterns: Sequence[str], directory: Path, progress: Progress | None) -> Dataset:
    files = resolve(patterns, directory)
    if isinstance(data, ParquetData):
        from dlrover_lite.data.parquet import ParquetDataset

        return ParquetDataset(files, data)
    from dlrover_lite.data.text import TextDataset

    return TextDataset(files, _parser(data, files), progress)


def _parser(data: CriteoData | CsvData, files: Sequence[DataFile]) -> LineParser:
    if isinstance(data, CriteoData):
        from dlrover_lite.data.criteo import CriteoParser

        return CriteoParser()
    from dlrover_lite.data.csv import CsvParser

    return CsvParser(data, files)


def _examine(data: FileData, files: Sequence[DataFile]) -> tuple[Schema, int | None]:
    if isinstance(data, ParquetData):
        from dlrover_lite.data.parquet import parquet_samples

        return Schema(tuple(data.dense), tuple(data.categorical)), parquet_samples(files, data)
    from dlrover_lite.data.text import cached_samples, check_format

    parser = _parser(data, files)
    for number, path in enumerate(files):
        check_format(path, number, parser)
    return parser.schema, cached_samples(files, parser.header_lines)


def _split(data: FileData, samples: int) -> tuple[int, int]:
    held_out = int(samples * data.eval_share)
    if held_out == samples:
        raise DataError(
            f"eval_share {data.eval_share:g} holds out all {samples} samples: none is left to train on",
            hint="Lower data.eval_share, or name evaluation files under data.eval.",
        )
    return samples - held_out, held_out


def _fingerprint(settings: Data, *parts: Sequence[DataFile]) -> str:
    digest = hashlib.blake2b(msgspec.json.encode(settings, order="deterministic"), digest_size=16)
    for files in parts:
        digest.update(b"\1")
        for path in files:
            size, stamp = version_of(path)
            digest.update(f"\0{size}\0{stamp}\0".encode() + os.fsencode(path.name))
    return digest.hexdigest()
