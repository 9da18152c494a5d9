"""Samples that say no more than which one each is: training on them counts how often each has been applied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.data.base import Batch, Schema, checked_numbers
from dlrover_lite.recipe.id_kinds import FileIds, SeenColumn
from dlrover_lite.recipe.schema import CensusData

__all__ = ["CENSUS_SCHEMA", "EVERYONE", "SAMPLE", "CensusDataset"]

SAMPLE, EVERYONE = "sample", "everyone"
CENSUS_SCHEMA = Schema(dense=(), categorical=(SAMPLE, EVERYONE))


class CensusDataset:
    """Sample n has the id n in the column ``sample`` and 0 in ``everyone``, no dense features, and the label 0. See ``base.Dataset``."""

    schema = CENSUS_SCHEMA
    remote = False

    def __init__(self, data: CensusData) -> None:
        self.samples = data.samples

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        numbers = checked_numbers(numbers, self.samples)
        ids = np.zeros((2, len(numbers)), np.uint64)
        ids[0] = numbers
        return Batch(np.zeros(len(numbers), np.float32), np.empty((len(numbers), 0), np.float32), ids, [])

    def expect(self, ranges: Sequence[range]) -> None:
        pass

    def look_at_ids(self) -> list[FileIds]:
        return [FileIds("", {name: SeenColumn("integer", "census") for name in self.schema.categorical})]

    def close(self) -> None:
        pass
