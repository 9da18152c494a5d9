"""Samples that are to be counted: an id each, and one for all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dlrover_lite.data.base import Schema
from dlrover_lite.data.open import describe, open_data
from dlrover_lite.recipe.schema import CensusData


def test_census_samples_have_their_number_as_id() -> None:
    dataset = open_data(CensusData(samples=1000), directory=Path(), part="train")
    assert dataset is not None and dataset.samples == 1000
    assert dataset.schema == Schema(dense=(), categorical=("sample", "everyone"))
    numbers = np.array([999, 0, 17, 17])
    batch = dataset.read(numbers)
    assert batch.ids.dtype == np.uint64 and batch.ids.tolist() == [[999, 0, 17, 17], [0, 0, 0, 0]]
    assert batch.labels.tolist() == [0.0] * 4 and batch.labels.dtype == np.float32
    assert batch.dense.shape == (4, 0) and batch.dense.dtype == np.float32 and batch.bad == []
    assert dataset.read(np.empty(0, np.int64)).ids.shape == (2, 0)
    for wrong in (-1, 1000):
        with pytest.raises(ValueError, match="within"):
            dataset.read(np.array([wrong]))
    dataset.close()


def test_census_data_has_no_evaluation_samples(tmp_path: Path) -> None:
    data = CensusData(samples=8)
    assert open_data(data, directory=tmp_path, part="eval") is None
    described = describe(data, tmp_path)
    assert described[:3] == (8, 0, Schema(dense=(), categorical=("sample", "everyone")))
    # more samples don't change what a sample holds
    assert described.fingerprint == describe(CensusData(samples=9), tmp_path).fingerprint
