"""What every kind of training data looks like to the rest: numbered samples in the order of the files' lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.recipe.id_kinds import CRITEO_COLUMNS, FileIds

__all__ = ["CRITEO_SCHEMA", "BadLine", "Batch", "Dataset", "Schema", "checked_numbers"]


class Schema(msgspec.Struct, frozen=True):
    """Column names, in the order of the columns of ``Batch.dense`` and ``Batch.ids``."""

    dense: tuple[str, ...]
    categorical: tuple[str, ...]


CRITEO_SCHEMA = Schema(tuple(f"I{i}" for i in range(1, 14)), CRITEO_COLUMNS)
"""The columns of Criteo's format, which generated samples have, too."""


class BadLine(NamedTuple):
    """A line that can't be used, and why; ``line`` counts from 1."""

    file: str
    line: int
    why: str


class Batch(NamedTuple):
    """Samples in the order asked for, without the bad ones (``len(labels)`` may be below the number asked for)."""

    labels: NDArray[np.float32]
    """Labels [n], 0 or 1."""
    dense: NDArray[np.float32]
    """Dense features [n, dense columns]."""
    ids: NDArray[np.uint64]
    """Ids [categorical columns, n]: column-major, since ids are de-duplicated table by table. 0 stands for an empty field."""
    bad: list[BadLine]


class Dataset(Protocol):
    schema: Schema
    samples: int
    """Number of samples, bad lines included: a bad line is a hole, not a shift."""

    @property
    def remote(self) -> bool:
        """Return whether any of the samples come from far, so that ``expect`` is of use."""

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        """Return the samples with these numbers (0 <= number < ``samples``), in this order. Raises DataError."""

    def expect(self, ranges: Sequence[range]) -> None:
        """Be told which samples will be read soon, in which order: what comes from far is fetched meanwhile."""

    def look_at_ids(self) -> list[FileIds]:
        """Return what the first lines of each file show of its categorical columns: see ``recipe.id_kinds.reconcile``."""

    def close(self) -> None: ...


def checked_numbers(numbers: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """Return the numbers of samples as a contiguous array. Raises ValueError for one that isn't within [0, ``samples``)."""
    numbers = np.ascontiguousarray(numbers, np.int64)
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= samples):
        raise ValueError(f"sample numbers must be within [0, {samples})")
    return numbers
