from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlrover_lite.core.errors import DataError
from dlrover_lite.data.kernels.fields import category_id
from dlrover_lite.data.parquet import ParquetDataset
from dlrover_lite.recipe.schema import ParquetData

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 500
RECIPE = ParquetData(train=["x"], label="y", dense=["f", "i"], categorical=["s", "n", "k"])


def columns(count: int = ROWS) -> dict[str, Any]:
    return {
        "k": pa.array([f"k{i % 7}" for i in range(count)]).dictionary_encode(),
        "unused": pa.array(range(count)),
        "y": pa.array([i % 2 for i in range(count)], pa.int8()),
        "f": pa.array([None if i % 5 == 0 else i / 2 for i in range(count)]),
        "i": pa.array([-i for i in range(count)], pa.int32()),
        "s": pa.array([None if i % 3 == 0 else ["", "a", "bc"][i % 4 % 3] for i in range(count)]),
        "n": pa.array([None if i % 4 == 0 else i - 3 for i in range(count)]),
    }


def write(path: Path, values: dict[str, Any], group: int = 64) -> Path:
    pq.write_table(pa.table(values), path, row_group_size=group)
    return path


def test_rows_of_several_files_are_read_in_any_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a", columns()), write(tmp_path / "b", columns(100))]
    data = ParquetDataset(paths, RECIPE)
    assert data.samples == 600
    numbers = np.random.default_rng(0).permutation(600)[:300]
    batch = data.read(numbers)
    rows = [int(number) % ROWS for number in numbers]
    assert batch.bad == []
    assert batch.labels.tolist() == [row % 2 for row in rows]
    assert batch.dense.tolist() == [[0 if row % 5 == 0 else row / 2, -row] for row in rows]
    strings = [b"" if row % 3 == 0 else [b"", b"a", b"bc"][row % 4 % 3] for row in rows]
    assert batch.ids[0].tolist() == [category_id(text) for text in strings]
    assert batch.ids[1].tolist() == [0 if row % 4 == 0 else (row - 2) % 2**64 or 1 << 63 for row in rows]
    assert batch.ids[2].tolist() == [category_id(f"k{row % 7}") for row in rows]
    data.close()


def test_bad_rows_are_left_out_with_their_numbers(tmp_path: Path) -> None:
    values = columns(200)
    values["y"] = pa.array([{70: 2.0, 71: None}.get(i, 1.0) for i in range(200)])
    values["f"] = pa.array([{72: float("inf"), 73: 1e300, 74: float("nan")}.get(i, 1.0) for i in range(200)])
    path = write(tmp_path / "a", values)
    batch = ParquetDataset([path], RECIPE).read(np.array([74, 73, 72, 71, 70, 69]))
    number = "column 'f' is out of range: a float32 holds up to 3.4e38"
    assert [(bad.line, bad.why) for bad in batch.bad] == [
        (74, number),
        (73, number),
        (72, "label column 'y' is nan, expected 0 or 1"),
        (71, "label column 'y' is 2, expected 0 or 1"),
    ]
    assert batch.dense[:, 0].tolist() == [0, 1]
    assert batch.ids.shape == (3, 2)


def test_integers_and_strings_of_any_width_are_read(tmp_path: Path) -> None:
    values = columns(10)
    values["n"] = pa.array([2**64 - 1, 2**63, *range(8)], pa.uint64())
    values["s"] = pa.array([f"{i}" for i in range(10)], pa.large_string())
    values["k"] = pa.array([bool(i % 2) for i in range(10)])
    ids = ParquetDataset([write(tmp_path / "a", values)], RECIPE).read(np.arange(10)).ids
    assert ids[1].tolist() == [2**63, 2**63 + 1, 1, 2, 3, 4, 5, 6, 7, 8]
    assert ids[0, 3] == category_id("3")
    assert ids[2].tolist() == [1, 2] * 5


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("s", pa.array([1.5]), "column 's' of .* is of type double"),
        ("f", pa.array(["1"]), "column 'f' of .* is of type string"),
        ("y", pa.array(["1"]), "column 'y' of .* is of type string"),
    ],
)
def test_columns_of_unusable_types_are_refused(tmp_path: Path, column: str, values: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ParquetDataset([write(tmp_path / "a", {**columns(1), column: values})], RECIPE)


def test_columns_of_only_nulls_are_read_as_missing(tmp_path: Path) -> None:
    nulls = pa.nulls(5)
    batch = ParquetDataset([write(tmp_path / "a", {**columns(5), "f": nulls, "s": nulls})], RECIPE).read(np.arange(5))
    assert batch.dense[:, 0].tolist() == [0] * 5
    assert batch.ids[0].tolist() == [0] * 5


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    values = columns(3)
    del values["n"]
    with pytest.raises(DataError, match="has no column 'n'"):
        ParquetDataset([write(tmp_path / "a", values)], RECIPE)


def test_files_that_are_no_parquet_or_empty_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"label,f\n1,2\n")
    with pytest.raises(DataError, match=r"a is no Parquet file\nFiles are read as data.format says"):
        ParquetDataset([tmp_path / "a"], RECIPE)
    with pytest.raises(DataError, match="holds no rows"):
        ParquetDataset([write(tmp_path / "b", columns(0))], RECIPE)


def test_a_file_replaced_after_opening_is_refused(tmp_path: Path) -> None:
    data = ParquetDataset([write(tmp_path / "a", columns(200))], RECIPE)
    write(tmp_path / "a", columns(30))
    with pytest.raises(DataError, match=r"a (was changed|can't be read)"):
        data.read(np.array([150]))


def test_missing_pyarrow_is_reported_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a", columns(3))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError) as caught:
        ParquetDataset([path], RECIPE)
    assert 'pip install "dlrover-lite[parquet]"' in str(caught.value)
