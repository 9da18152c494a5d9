"""Data files that aren't what the recipe says are found before anything runs."""

from __future__ import annotations

import gzip
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from dlrover_lite.core.errors import DataError, RecipeError
from dlrover_lite.data.open import describe
from dlrover_lite.recipe.file_preview import examine
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Recipe

CRITEO_LINE = "1" + "\t7" * 13 + "\t1a" * 26 + "\n"
CLICKS = "clicked,age,user,item\n1,33,u1,i1\n0,,u2,i2\n"
CSV = "data:\n  format: csv\n  train: {train}\n  label: clicked\n  dense:\n  - age\n  categorical: [user, item]\n"
CRITEO = "data:\n  format: criteo\n  train: {train}\n"
HINT = "\nCheck that it is the right file, and what the data section says of it."


def parsed(directory: Path, data: str, *, check_files: bool = True) -> Recipe:
    text = f"version: 1\nname: j\nmodel: dcn\n{data}"
    return parse_recipe(text, source="r.yaml", directory=directory, check_files=check_files)


def error(directory: Path, data: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parsed(directory, data)
    return str(caught.value).replace(f"{directory}/", "")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("clickd,age,user,item", "r.yaml:7: data.label: a.csv has no column 'clicked'; did you mean clickd?"),
        ("clicked,Age,user,item", "r.yaml:9: data.dense: a.csv has no column 'age'; did you mean Age?"),
        (
            "clicked,age,user,x",
            "r.yaml:10: data.categorical: a.csv has no column 'item'; its columns are: clicked, age, user, x",
        ),
        ("clicked,age,user,item,user", "r.yaml:10: data.categorical: a.csv has several columns named 'user'"),
    ],
)
def test_columns_that_a_csv_file_lacks_are_named(tmp_path: Path, header: str, expected: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,2,3,4\n")
    assert error(tmp_path, CSV.format(train="a.csv")) == expected


def test_missing_columns_of_a_globs_second_gzip_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "1.csv.gz").write_bytes(gzip.compress(CLICKS.encode()))
    (tmp_path / "2.csv.gz").write_bytes(gzip.compress(CLICKS.replace("item", "itm").encode()))
    found = error(tmp_path, CSV.format(train='"*.gz"'))
    assert found == "r.yaml:10: data.categorical: 2.csv.gz has no column 'item'; did you mean itm?"


@pytest.mark.parametrize(
    ("data", "content", "expected"),
    [
        (CRITEO, CLICKS, "line 1: the label is 'clicked,age,user,item', expected 0 or 1; none of its first 3 lines can be used"),
        (CRITEO, CRITEO_LINE.replace("\t7", "\tx"), "line 1: I1 is 'x', expected an integer"),
        (CRITEO, "1\t2\n", "line 1: 2 fields separated by tabs, expected 15 to 40"),
        (CSV, "clicked,age,user,item\nyes,33,u,i\n", "line 2: label column 'clicked' is 'yes', expected 0 or 1"),
        (CSV, "clicked,age,user,item\n1,old,u,i\n", "line 2: column 'age' is 'old', expected a number"),
        (CSV, "clicked,age,user,item\n1,33\n", "line 2: 2 fields separated by ',', expected 4"),
    ],
)  # fmt: skip
def test_content_of_another_format_is_refused(tmp_path: Path, data: str, content: str, expected: str) -> None:
    (tmp_path / "a").write_text(content)
    kind = "csv" if data == CSV else "criteo"
    assert error(tmp_path, data.format(train="a")) == (
        f"r.yaml:6: data.train: a isn't {kind} data as described: {expected}{HINT}"
    )


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_text(CLICKS)
    data = CSV.format(train="a.parquet").replace("csv", "parquet")
    assert error(tmp_path, data) == f"r.yaml:6: data.train: a.parquet is no Parquet file{HINT}"


PARQUET = CSV.replace("csv", "parquet").format(train="a.parquet")
NUMBER = "use an integer, float or bool column"
COLUMNS: dict[str, list[Any]] = {"clicked": [0, 1], "age": [1.5, None], "user": ["u", "v"], "item": [1, 2]}


def write_parquet(directory: Path, columns: dict[str, list[Any]]) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    arrays = {name: pa.array(values) for name, values in columns.items()}
    parquet.write_table(pa.table(arrays), directory / "a.parquet")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"age": None, "agee": [1, 2]}, "r.yaml:9: data.dense: a.parquet has no column 'age'; did you mean agee?"),
        ({"clicked": None}, "r.yaml:7: data.label: a.parquet has no column 'clicked'; its columns are: age, user, item"),
        ({"clicked": ["no", "yes"]}, f"r.yaml:7: data.label: column 'clicked' of a.parquet is of type string; {NUMBER}"),
        ({"clicked": [None, None]}, f"r.yaml:7: data.label: column 'clicked' of a.parquet is of type null; {NUMBER}"),
        ({"age": ["3", "4"]}, f"r.yaml:9: data.dense: column 'age' of a.parquet is of type string; {NUMBER}"),
        (
            {"item": [1.5, 2.5]},
            "r.yaml:10: data.categorical: column 'item' of a.parquet is of type double; use an integer or string column "
                "(pandas makes floats of integers where one is missing: .astype('Int64') brings them back)",
        ),
    ],
)  # fmt: skip
def test_missing_and_unusable_parquet_columns_are_named(
    tmp_path: Path, changes: dict[str, list[Any] | None], expected: str
) -> None:
    write_parquet(tmp_path, {name: values for name, values in {**COLUMNS, **changes}.items() if values is not None})
    assert error(tmp_path, PARQUET) == expected
    with pytest.raises(DataError):
        describe(parsed(tmp_path, PARQUET, check_files=False).data, tmp_path)


@pytest.mark.parametrize(
    "changes", [{}, {"age": [None, None]}, {"item": [None, None]}, {"user": [b"x", b"y"]}], ids=str
)
def test_readable_parquet_is_accepted(tmp_path: Path, changes: dict[str, list[Any]]) -> None:
    write_parquet(tmp_path, {**COLUMNS, **changes, "more": [1, 2]})
    assert describe(parsed(tmp_path, PARQUET).data, tmp_path).train_samples == 2


def test_a_cut_off_parquet_file_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path, COLUMNS)
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:-10])
    assert error(tmp_path, PARQUET).startswith("r.yaml:6: data.train: a.parquet can't be read as Parquet: ")


def test_parquet_heads_are_not_checked_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is said by another check, once."""
    write_parquet(tmp_path, {"clicked": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert not list(examine(tmp_path / "a.parquet", parsed(tmp_path, PARQUET, check_files=False).data))


CONTENTS = {
    "clicks": CLICKS,
    "bom, carriage returns": "\ufeff" + CLICKS.replace("\n", "\r\n"),
    "quotes": 'clicked,"age",user,item\n1," 1e3 ","a ""b"", c",\n',
    "one good line": "clicked,age,user,item\n" + "bad\n" * 400 + "1,2,3,4\n",
    "header only": "clicked,age,user,item\n",
    "no newline at the end": "clicked,age,user,item\n0,1,u,i",
    "decimals": "clicked,age,user,item\n1.0,-.5e-2,u,i\n",
    "words for labels": "clicked,age,user,item\nyes,1,u,i\n",
    "infinite": "clicked,age,user,item\n1,inf,u,i\n",
    "latin 1": "clicked,age,user,item\n1,1,Zoë,i\n",
    "too many": "clicked,age,user,item\n1,1,u,i,x\n",
    "criteo": CRITEO_LINE,
    "criteo, short": CRITEO_LINE[:40] + "\n",
    "criteo, empty fields": "0" + "\t" * 14 + "\n",
    "criteo, no categories": "0" + "\t1" * 13 + "\n",
    "criteo, negative": CRITEO_LINE.replace("7", "-7"),
    "nothing but newlines": "\n\n\n",
    "a long line": "1" * 300_000,
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("data", [CSV, CRITEO], ids=["csv", "criteo"])
def test_data_refused_by_the_recipe_is_refused_by_the_reader_too(tmp_path: Path, data: str, name: str) -> None:
    (tmp_path / "a").write_bytes(CONTENTS[name].encode("latin-1" if name == "latin 1" else "utf-8"))
    text = f"version: 1\nname: j\nmodel: dcn\n{data.format(train='a')}"
    try:
        parse_recipe(text, directory=tmp_path)
    except RecipeError:
        unchecked = parse_recipe(text, directory=tmp_path, check_files=False)
        with pytest.raises(DataError):
            describe(unchecked.data, tmp_path)
