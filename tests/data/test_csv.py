from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.errors import DataError
from dlrover_lite.data.csv import CsvParser
from dlrover_lite.data.kernels.fields import category_id, parse_float
from dlrover_lite.data.text import TextDataset
from dlrover_lite.recipe.schema import CsvData


def dataset(path: Path, text: str | bytes | None = None, **changes: Any) -> TextDataset:
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    options: dict[str, Any] = {"label": "y", "dense": ["a", "b"], "categorical": ["c", "d"], **changes}
    return TextDataset([path], CsvParser(CsvData(train=[str(path)], **options), [path]))


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    data = dataset(tmp_path / "a.csv", "d,unused,b,y,c,a\nx,?,1.5,1,u,-2\n,,,0,v,1e3")
    assert (data.samples, data.schema.dense, data.schema.categorical) == (2, ("a", "b"), ("c", "d"))
    batch = data.read(np.array([1, 0]))
    assert batch.labels.tolist() == [0, 1]
    assert batch.dense.tolist() == [[1000, 0], [-2, 1.5]]
    assert batch.ids.tolist() == [[category_id("v"), category_id("u")], [0, category_id("x")]]


def test_each_file_has_a_header_of_its_own(tmp_path: Path) -> None:
    paths = [tmp_path / "1.csv", tmp_path / "2.csv"]
    paths[0].write_text("y,a,b,c,d\n1,2,3,x,y\n")
    paths[1].write_text("d,c,b,a,y\ny,x,3,2,1\n")
    recipe = CsvData(train=["*.csv"], label="y", dense=["a", "b"], categorical=["c", "d"])
    batch = TextDataset(paths, CsvParser(recipe, paths)).read(np.array([0, 1]))
    assert batch.dense.tolist() == [[2, 3], [2, 3]]
    assert np.array_equal(batch.ids[:, 0], batch.ids[:, 1])


def test_columns_and_delimiter_are_taken_from_the_recipe(tmp_path: Path) -> None:
    data = dataset(tmp_path / "a", "1\t2\t3\tx\ty\n0\t\t\t\t\n", columns=["y", "a", "b", "c", "d"], delimiter="\t")
    batch = data.read(np.array([0, 1]))
    assert batch.dense.tolist() == [[2, 3], [0, 0]]
    assert batch.ids[:, 1].tolist() == [0, 0]


def test_quotes_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    text = '\ufeff"y","a",b,c,d\r\n"1"," 2 ","","x ""1"", y",""\r\n0.0,3,4,"x",z\r\n'
    batch = dataset(tmp_path / "a.csv", text).read(np.array([0, 1]))
    assert batch.labels.tolist() == [1, 0]
    assert batch.dense.tolist() == [[2, 0], [3, 4]]
    assert batch.ids[:, 0].tolist() == [category_id('x "1", y'), 0]
    assert batch.ids[:, 1].tolist() == [category_id("x"), category_id("z")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "the line is empty"),
        ("2,1,1,x,y", "label column 'y' is '2', expected 0 or 1"),
        (",1,1,x,y", "label column 'y' is '', expected 0 or 1"),
        ("1,one,1,x,y", "column 'a' is 'one', expected a number"),
        ("1,1,nana,x,y", "column 'b' is 'nana', expected a number"),
        ("1,1,NA,x,y", "column 'b' is 'NA', expected a number"),
        ("nan,1,1,x,y", "label column 'y' is 'nan', expected 0 or 1"),
        ("1,1,1e39,x,y", "column 'b' is '1e39', out of range: a float32 holds up to 3.4e38"),
        ("1,1,-inf,x,y", "column 'b' is '-inf', out of range: a float32 holds up to 3.4e38"),
        ('1,1,"1 2",x,y', "column 'b' is '1 2', expected a number"),
        ("1,1,1,x", "4 fields separated by ',', expected 5"),
        ("1,1,1,x,y,z", "6 fields separated by ',', expected 5"),
        ('1,1,1,"x,y', "the quote that opens column 'c' isn't closed on this line"),
        ('1,1,1,"x"z,y', "text after the closing quote of column 'c'"),
    ],
)
def test_a_bad_line_is_left_out_with_its_number_and_reason(tmp_path: Path, line: str, why: str) -> None:
    batch = dataset(tmp_path / "a.csv", f"y,a,b,c,d\n1,5,6,x,y\n{line}\n0,7,8,x,y\n").read(np.array([2, 1, 0]))
    assert batch.bad == [(str(tmp_path / "a.csv"), 3, why)]
    assert batch.dense.tolist() == [[7, 8], [5, 6]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y,a,b,c,dd\n1,1,1,1,1\n", r"a\.csv has no column 'd'; did you mean dd\?"),
        ("y,a,b,c,d,d\n1,1,1,1,1,1\n", r"a\.csv has several columns named 'd'"),
        ("y,a,b,c,d\n", r"a\.csv holds no samples: it has a header line only"),
        (b"\xff\xfe\x00\x01\n1", r"first line of .*a\.csv is not a header"),
        (
            "y,a,b,c,d\nyes,1,1,1,1\n",
            r"none of the first 1 lines of .*a\.csv can be used; line 2: label column 'y' is 'yes'",
        ),
    ],
)
def test_a_file_that_does_not_fit_the_recipe_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset(tmp_path / "a.csv", text)


def test_a_column_can_be_used_once_only(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'y' is named twice"):
        dataset(tmp_path / "a.csv", "y,a,b,c,d\n1,1,1,1,1\n", dense=["y"])


@pytest.mark.parametrize("delimiter", ['"', "\n", "é"])
def test_impossible_delimiters_are_refused(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(DataError, match="can't delimit"):
        dataset(tmp_path / "a.csv", "y\n1\n", delimiter=delimiter)


plain_text = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=12)


@settings(deadline=None)
@given(values=st.lists(st.tuples(plain_text, plain_text), min_size=1, max_size=5))
def test_output_of_pythons_csv_module_is_read_back(tmp_path_factory: pytest.TempPathFactory, values: list[Any]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([["c", "y", "d"], *([c, 1, d] for c, d in values)])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    batch = dataset(path, text.getvalue(), dense=[]).read(np.arange(len(values)))
    assert batch.ids.T.tolist() == [[category_id(c), category_id(d)] for c, d in values]
    assert batch.dense.shape == (len(values), 0)


def parsed(text: str) -> tuple[float, bool]:
    data = np.frombuffer(text.encode(), np.uint8)
    value, good = parse_float(data, 0, len(data))
    return float(value), bool(good)


@settings(deadline=None)
@given(st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-(10**30), 10**30)))
def test_numbers_in_any_notation_are_parsed(number: float) -> None:
    for text in (repr(number), f"{number:e}", f"{number:.12f}", f"{number:+.9E}"):
        value, good = parsed(text)
        assert good
        assert math.isclose(value, float(text), rel_tol=1e-12, abs_tol=1e-300)


@pytest.mark.parametrize("text", ["-", ".", "e5", "1e", "1e+", "1.2.3", "0x10", "inf", "1,5", "--1", "1e400", "1 "])
def test_texts_that_are_no_numbers_are_refused(text: str) -> None:
    assert not parsed(text)[1]
