"""Keys made of Python values are those that the readers make of the same values in files, and nothing else is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.errors import DataError
from dlrover_lite.data.criteo import CriteoParser
from dlrover_lite.data.csv import CsvParser
from dlrover_lite.data.keys import keys_of
from dlrover_lite.data.parquet import ParquetDataset
from dlrover_lite.data.text import TextDataset
from dlrover_lite.recipe.id_kinds import IdKind
from dlrover_lite.recipe.schema import CsvData, ParquetData

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
INTEGER, TEXT = IdKind("integer", "int64 in a.parquet"), IdKind("text", "csv in a.csv")
words = st.text(st.characters(codec="utf-8", exclude_characters='\r\n\0,"'), max_size=8)


def from_parquet(path: Path, values: Any) -> list[int]:
    pq.write_table(pa.table({"y": [1] * len(values), "c": values}), path)
    data = ParquetDataset([path], ParquetData(train=[str(path)], label="y", categorical=["c"]))
    return data.read(np.arange(data.samples)).ids[0].tolist()


@settings(deadline=None, max_examples=25)
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_keys_of_integers_equal_those_read_from_parquet(
    tmp_path_factory: pytest.TempPathFactory, values: list[int | None]
) -> None:
    path = tmp_path_factory.mktemp("keys") / "a.parquet"
    assert keys_of(values, "c", INTEGER, "parquet").tolist() == from_parquet(path, pa.array(values, pa.int64()))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.none() | words, min_size=1, max_size=8))
def test_keys_of_text_equal_those_read_from_parquet_and_csv(
    tmp_path_factory: pytest.TempPathFactory, values: list[str | None]
) -> None:
    directory = tmp_path_factory.mktemp("keys")
    keys = keys_of(values, "c", TEXT, "csv").tolist()
    assert keys == from_parquet(directory / "a.parquet", pa.array(values, pa.string()))
    path = directory / "a.csv"
    path.write_text("y,c\n" + "".join(f"1,{value or ''}\n" for value in values), encoding="utf-8", newline="")
    data = TextDataset([path], CsvParser(CsvData(train=[str(path)], label="y", categorical=["c"]), [path]))
    assert keys == data.read(np.arange(data.samples)).ids[0].tolist()


def test_keys_of_criteo_text_are_hexadecimal_numbers(tmp_path: Path) -> None:
    values = ["05db9164", "f", None, "no number"]
    path = tmp_path / "a.tsv"
    path.write_text("".join("1" + "\t" * 13 + f"\t{value or ''}\n" for value in values))
    ids = TextDataset([path], CriteoParser()).read(np.arange(4)).ids[0].tolist()
    assert keys_of(values, "C1", IdKind("integer", "criteo"), "criteo").tolist() == ids
    assert keys_of([0x05DB9164, 15], "C1", IdKind("integer", "criteo"), "criteo").tolist() == ids[:2]


def test_keys_of_numpy_integers_with_nan_for_missing() -> None:
    expected = keys_of([7, None, 9], "c", INTEGER, "parquet").tolist()
    assert keys_of(np.array([7, np.nan, 9]), "c", INTEGER, "parquet").tolist() == expected
    assert keys_of(np.array([7, 9], np.int32), "c", INTEGER, "parquet").tolist() == [8, 10]


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (["7"], INTEGER, r"column 'c' has the text '7', and the model was trained on integers \(int64 in a.parquet\)"),
        ([7], TEXT, r"column 'c' has the integer 7, and the model was trained on text \(csv in a.csv\)"),
        (np.array([7.0]), TEXT, "has the integer 7.0, and the model was trained on text"),
        ([7.5], INTEGER, "has 7.5, a float, which can't be an id"),
        ([2**64], INTEGER, "which can't be an id"),
        ([float("inf")], None, "which can't be an id"),
        ([[7]], None, r"has \[7\], a list, which can't be an id"),
    ],
)
def test_values_that_are_no_ids_are_refused(values: Any, kind: IdKind | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        keys_of(values, "c", kind, "parquet" if kind == INTEGER else "csv")


def test_keys_without_a_known_kind_follow_the_values() -> None:
    assert keys_of([7, "7"], "c", None, "parquet").tolist() == [8, keys_of(["7"], "c", TEXT, "csv")[0]]
