from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlrover_lite.core.errors import DataError
from dlrover_lite.data.base import Dataset
from dlrover_lite.data.open import describe, open_data
from dlrover_lite.recipe.schema import CriteoData, CsvData, Data, ParquetData, SyntheticData
from tests.data.criteo_lines import generated_lines


def write(path: Path, count: int, seed: int = 0) -> Path:
    path.write_bytes(b"\n".join(generated_lines(count, seed)))
    return path


def opened(data: Data, directory: Path, part: Any = "train") -> Dataset:
    dataset = open_data(data, directory=directory, part=part)
    assert dataset is not None
    return dataset


def test_the_last_share_is_held_out(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", 1000)
    whole = opened(CriteoData(train=["a.tsv"], eval_share=0), tmp_path).read(np.arange(1000))
    data = CriteoData(train=["a.tsv"], eval_share=0.25)
    train, held_out = opened(data, tmp_path), opened(data, tmp_path, "eval")
    assert (train.samples, held_out.samples) == (750, 250)
    assert np.array_equal(train.read(np.arange(750)).ids, whole.ids[:, :750])
    assert np.array_equal(held_out.read(np.arange(250)).ids, whole.ids[:, 750:])
    with pytest.raises(ValueError, match="within"):
        train.read(np.array([750]))


def test_files_for_evaluation_leave_the_training_samples_whole(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", 100)
    write(tmp_path / "b.tsv", 30, seed=1)
    data = CriteoData(train=["a.tsv"], eval=["b.tsv"], eval_share=0.5)
    assert opened(data, tmp_path).samples == 100
    assert opened(data, tmp_path, "eval").samples == 30


@pytest.mark.parametrize("share", [0, 0.001])
def test_without_held_out_samples_there_is_no_evaluation_data(tmp_path: Path, share: float) -> None:
    write(tmp_path / "a.tsv", 100)
    data = CriteoData(train=["a.tsv"], eval_share=share)
    assert opened(data, tmp_path).samples == 100
    assert open_data(data, directory=tmp_path, part="eval") is None
    assert describe(data, tmp_path)[:2] == (100, 0)


def test_holding_out_all_samples_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", 100)
    with pytest.raises(DataError, match="none is left to train on"):
        open_data(CriteoData(train=["a.tsv"], eval_share=1), directory=tmp_path, part="train")


def test_globs_are_sorted_and_files_stay_in_the_order_named(tmp_path: Path) -> None:
    for number, name in enumerate(["z.tsv", "part-2", "part-1", "part-0"]):
        write(tmp_path / name, 1, seed=number)
    (tmp_path / "part-directory").mkdir()
    data = CriteoData(train=["z.tsv", "part-*"], eval_share=0)
    ids = opened(data, tmp_path).read(np.arange(4)).ids
    for row, name in enumerate(["z.tsv", "part-0", "part-1", "part-2"]):
        alone = opened(CriteoData(train=[name], eval_share=0), tmp_path).read(np.array([0]))
        assert np.array_equal(ids[:, row], alone.ids[:, 0])


@pytest.mark.parametrize("name", ["a[1].tsv", "~x.tsv", "a b.tsv"])
def test_file_names_with_odd_characters_are_no_patterns(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, 3)
    assert opened(CriteoData(train=[str(tmp_path / name)], eval_share=0), tmp_path).samples == 3


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("missing.tsv", r"missing\.tsv: no such file"),
        ("none-*.tsv", r"no file matches .*none-\*\.tsv"),
        ("directory", r"directory is a directory; name its files"),
        ("empty.tsv", r"empty\.tsv is empty"),
    ],
)
def test_files_that_cannot_be_data_are_named(tmp_path: Path, pattern: str, message: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "empty.tsv").touch()
    data = CriteoData(train=[pattern])
    for call in (lambda: describe(data, tmp_path), lambda: open_data(data, directory=tmp_path, part="train")):
        with pytest.raises(DataError, match=message) as caught:
            call()
        assert caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", 3).chmod(0)
    with pytest.raises(DataError, match=r"a\.tsv can't be read: Permission denied"):
        describe(CriteoData(train=["a.tsv"]), tmp_path)


def test_description_counts_samples_once_indexed(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", 100)
    data = CriteoData(train=["a.tsv"], eval_share=0.1)
    before = describe(data, tmp_path)
    assert before[:2] == (None, None)
    opened(data, tmp_path)
    after = describe(data, tmp_path)
    assert after[:2] == (90, 10)
    assert (after.schema, after.fingerprint) == (before.schema, before.fingerprint)


def test_description_checks_what_the_lines_hold(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,a\n3,1\n")
    with pytest.raises(DataError, match="label column 'y' is '3'"):
        describe(CsvData(train=["a.csv"], label="y", dense=["a"]), tmp_path)


def test_the_fingerprint_follows_the_data_alone(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", 10)
    first = describe(CriteoData(train=["a.tsv"]), tmp_path).fingerprint
    assert describe(CriteoData(train=[str(tmp_path / "*.tsv")], max_bad_share=0.5), tmp_path).fingerprint == first
    os.utime(tmp_path / "a.tsv", ns=(0, 0))
    assert describe(CriteoData(train=["a.tsv"]), tmp_path).fingerprint != first
    made = [describe(SyntheticData(samples=5, seed=seed), tmp_path).fingerprint for seed in (0, 1)]
    assert made[0] != made[1]


def test_synthetic_evaluation_samples_follow_the_training_samples(tmp_path: Path) -> None:
    data = SyntheticData(samples=50, eval_samples=20, ids_per_field=10)
    longer = SyntheticData(samples=70, ids_per_field=10)
    held_out = opened(data, tmp_path, "eval")
    assert held_out.samples == 20
    expected = opened(longer, tmp_path).read(np.arange(50, 70))
    assert np.array_equal(held_out.read(np.arange(20)).ids, expected.ids)
    assert describe(data, tmp_path)[:2] == (50, 20)
    assert open_data(SyntheticData(samples=50, eval_samples=0), directory=tmp_path, part="eval") is None


def test_parquet_samples_are_counted_from_footers(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"y": [0, 1] * 50, "c": ["x", "z"] * 50}), tmp_path / "a.parquet")
    data = ParquetData(train=["*.parquet"], label="y", categorical=["c"], eval_share=0.2)
    assert describe(data, tmp_path)[:2] == (80, 20)
    assert opened(data, tmp_path, "eval").read(np.arange(20)).labels.tolist() == [0, 1] * 10
