"""A dense value means the same in each format: a number, a missing one, or one that is out of range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlrover_lite.data.base import Batch
from dlrover_lite.data.criteo import CriteoParser
from dlrover_lite.data.csv import CsvParser
from dlrover_lite.data.parquet import ParquetDataset
from dlrover_lite.data.text import TextDataset
from dlrover_lite.recipe.numbers import OUT_OF_RANGE, dense_problem
from dlrover_lite.recipe.schema import CsvData, ParquetData

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
COLUMNS: dict[str, Any] = {"label": "y", "dense": ["a"]}
LARGEST = float(np.finfo(np.float32).max)


def from_csv(path: Path, fields: list[str]) -> Batch:
    path.write_text("y,a\n0,0\n" + "".join(f"1,{field}\n" for field in fields))
    data = TextDataset([path], CsvParser(CsvData(train=[str(path)], **COLUMNS), [path]))
    return data.read(np.arange(1, data.samples))


def from_parquet(path: Path, values: list[float | None]) -> Batch:
    table = pa.table({"y": pa.array([1.0] * len(values)), "a": pa.array(values, pa.float64())})
    pq.write_table(table, path)
    return ParquetDataset([path], ParquetData(train=[str(path)], **COLUMNS)).read(np.arange(len(values)))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.none() | st.floats(), min_size=1, max_size=8))
@example([None, float("nan"), float("inf"), float("-inf"), 1e39, -1e39, 1e308, LARGEST, -LARGEST])
@example([np.nextafter(3.4028235677973366e38, 0), 3.4028235677973366e38, 3.4028235e38])
def test_csv_and_parquet_agree_on_missing_and_bad_values(
    tmp_path_factory: pytest.TempPathFactory, values: list[float | None]
) -> None:
    directory = tmp_path_factory.mktemp("dense")
    text = from_csv(directory / "a.csv", ["" if value is None else repr(float(value)) for value in values])
    table = from_parquet(directory / "a.parquet", values)
    np.testing.assert_allclose(text.dense, table.dense, rtol=1e-6, atol=1e-45)
    # The lines of CSV begin with a header and a good one.
    assert [bad.line - 2 for bad in text.bad] == [bad.line for bad in table.bad]
    assert all(OUT_OF_RANGE in bad.why for bad in text.bad + table.bad)


@pytest.mark.parametrize("word", ["", "nan", "NaN", "NAN", "-nan", "+NaN", " nan "])
def test_a_missing_value_reads_as_0(tmp_path: Path, word: str) -> None:
    batch = from_csv(tmp_path / "a.csv", [word])
    assert (batch.dense.tolist(), batch.bad) == ([[0.0]], [])
    assert dense_problem(word) == ""


@pytest.mark.parametrize("word", ["na", "nann", "-", "1_000", "٣", "null", "None", "0x10"])
def test_a_value_that_is_no_number_is_reported_before_a_job_and_in_it(tmp_path: Path, word: str) -> None:
    assert dense_problem(word) == "expected a number"
    (bad,) = from_csv(tmp_path / "a.csv", [word]).bad
    assert bad.why == f"column 'a' is {word!r}, expected a number"


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("", None),
        ("nan", None),
        ("NaN", None),
        ("nan1", "I2 is 'nan1', expected an integer"),
        ("1.5", "I2 is '1.5', expected an integer"),
        ("9" * 19, "I2 is '9999999999999999999', out of range: an integer has at most 18 digits"),
    ],
)
def test_criteo_fields_are_integers_or_missing(tmp_path: Path, field: str, why: str | None) -> None:
    good = "1" + "\t7" * 13 + "\t1a" * 26
    (tmp_path / "a.tsv").write_text(good + "\n" + good.replace("1\t7\t7", f"1\t7\t{field}", 1) + "\n")
    batch = TextDataset([tmp_path / "a.tsv"], CriteoParser()).read(np.array([0, 1]))
    assert [bad.why for bad in batch.bad] == ([] if why is None else [why])
    if why is None:
        assert batch.dense[1, :3].tolist() == [batch.dense[0, 0], 0.0, batch.dense[0, 0]]
        assert batch.ids[:, 1].tolist() == batch.ids[:, 0].tolist()
