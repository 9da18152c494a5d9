"""Ids of one kind, integers or text, are unknown to a model that was trained on the other: files that differ are found by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core.errors import DataError, RecipeError
from dlrover_lite.data.open import open_data
from dlrover_lite.recipe.id_kinds import (
    FileIds,
    IdKind,
    SeenColumn,
    compare,
    kinds_of_format,
    reconcile,
    text_values,
)
from dlrover_lite.recipe.id_preview import look_at_recipe
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import CriteoData, CsvData, ParquetData

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
RECIPE = """version: 1
name: j
model: dcn
data:
  format: parquet
  train: [{train}]
  eval: [{eval}]
  label: y
  categorical: [user, item]
"""
INTEGERS, TEXT = [1267, 5], ["1267", "5"]


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table({"y": [0, 1], **columns}), path)
    return path


def csv_data(directory: Path, users: list[str], name: str = "a.csv", train: list[str] | None = None) -> CsvData:
    (directory / name).write_text("y,user\n" + "".join(f"1,{user}\n" for user in users))
    return CsvData(train=train or [name], label="y", categorical=["user"], eval_share=0.0)


def error(directory: Path, train: str, evaluation: str) -> str:
    text = RECIPE.format(train=train, eval=evaluation)
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, source="r.yaml", directory=directory)
    unchecked = parse_recipe(text, source="r.yaml", directory=directory, check_files=False)
    assert isinstance(unchecked.data, ParquetData)
    if not evaluation:
        with pytest.raises(DataError, match="none of its ids would be known"):  # the reader has the last word
            open_data(unchecked.data, directory=directory, part="train")
    return str(caught.value).replace(f"{directory}/", "")


HINT = "\nWrite the column as integers (pandas: .astype('Int64')) to Parquet; in CSV every id is text."


def test_evaluation_files_with_ids_of_another_kind_are_refused(tmp_path: Path) -> None:
    parquet(tmp_path / "train.parquet", user=INTEGERS, item=TEXT)
    parquet(tmp_path / "eval.parquet", user=TEXT, item=TEXT)
    assert error(tmp_path, "train.parquet", "eval.parquet") == (
        "r.yaml:9: data.categorical: column 'user' has text (string in eval.parquet), the recipe has integers "
        "(int64 in train.parquet): none of its ids would be known" + HINT
    )


def test_a_file_of_a_glob_with_ids_of_another_kind_is_refused(tmp_path: Path) -> None:
    for day, users in enumerate([INTEGERS, INTEGERS, TEXT, TEXT]):
        parquet(tmp_path / f"day-{day}.parquet", user=users, item=TEXT)
    assert (
        "column 'user' has text (string in day-2.parquet), the recipe has integers (int64 in day-0.parquet)"
        in error(tmp_path, '"day-*.parquet"', "")
    )


@pytest.mark.parametrize(
    "values",
    [
        pa.array(INTEGERS, pa.int32()),
        pa.array(INTEGERS, pa.uint64()),
        pa.array([True, False]),
        pa.nulls(2),
        pa.array(INTEGERS).dictionary_encode(),
    ],
    ids=str,
)
def test_column_types_of_one_id_kind_go_together(tmp_path: Path, values: Any) -> None:
    parquet(tmp_path / "train.parquet", user=INTEGERS, item=TEXT)
    parquet(tmp_path / "eval.parquet", user=values, item=pa.array(TEXT, pa.large_binary()))
    recipe = parse_recipe(RECIPE.format(train="train.parquet", eval="eval.parquet"), directory=tmp_path)
    agreed = look_at_recipe(recipe.data, tmp_path)
    assert {column: kind.kind for column, kind in agreed.kinds.items()} == {"user": "integer", "item": "text"}
    assert not agreed.warnings


def test_an_empty_column_takes_the_id_kind_of_the_next_file(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", user=pa.nulls(2), item=TEXT)
    parquet(tmp_path / "b.parquet", user=TEXT, item=TEXT)
    parquet(tmp_path / "c.parquet", user=INTEGERS, item=TEXT)
    assert "(int64 in c.parquet), the recipe has text (string in b.parquet)" in error(tmp_path, '"*.parquet"', "")


def test_text_of_csv_and_strings_of_parquet_are_one_kind(tmp_path: Path) -> None:
    trained = look_at_recipe(csv_data(tmp_path, ["1267", "5"]), tmp_path).kinds
    parquet(tmp_path / "a.parquet", user=TEXT, number=INTEGERS)
    data = ParquetData(train=["a.parquet"], label="y", categorical=["user"], eval_share=0.0)
    dataset = open_data(data, directory=tmp_path, part="train")
    assert dataset is not None
    assert not reconcile(dataset.look_at_ids(), trained).problems
    parquet(tmp_path / "a.parquet", user=INTEGERS)
    dataset = open_data(data, directory=tmp_path, part="train")
    assert dataset is not None
    (problem,) = reconcile(dataset.look_at_ids(), trained, whose="the model of j").problems
    assert problem == (
        "user",
        f"column 'user' has integers (int64 in {tmp_path}/a.parquet), the model of j has text (csv in a.csv): "
        "none of its ids would be known",
    )


def test_integers_written_as_floats_are_warned_of(tmp_path: Path) -> None:
    csv_data(tmp_path, ["1267", "5", "-3", "0", ""], "1.csv")
    data = csv_data(tmp_path, ["1267.0", "", "5.0", "1267.0", "x"], "2.csv", train=["1.csv", "2.csv"])
    (warning,) = look_at_recipe(data, tmp_path).warnings
    assert warning.replace(f"{tmp_path}/", "") == (
        "3 of 4 ids looked at in column 'user' of 2.csv read as '1267.0', the job has integers without a point (csv in 1.csv): "
        "these are other ids. pandas writes integers so where one is missing; .astype('Int64') before writing keeps them."
    )


def test_mixed_integers_and_floats_are_warned_of_in_one_or_two_files(tmp_path: Path) -> None:
    csv_data(tmp_path, ["1267.0", "5.00"], "1.csv")
    data = csv_data(tmp_path, ["1267"], "2.csv", train=["1.csv", "2.csv"])
    assert "1 of 1 ids looked at in column 'user'" in look_at_recipe(data, tmp_path).warnings[0]
    mixed = look_at_recipe(csv_data(tmp_path, ["7", "7.0", "a"]), tmp_path).warnings
    assert "'7' and '7.0' are different ids" in mixed[0]


def test_strings_of_parquet_are_checked_for_floats_too(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", user=TEXT)
    parquet(tmp_path / "b.parquet", user=["1267.0", None])
    data = ParquetData(train=["a.parquet", "b.parquet"], label="y", categorical=["user"])
    assert "1 of 1 ids looked at in column 'user'" in look_at_recipe(data, tmp_path).warnings[0]


@pytest.mark.parametrize(
    "users", [["07", "7"], ["1.5", "7"], ["u.0"], ["1e3", "5"], ["", ""], ["a", "1267.0"], ["v1.0", "5"]]
)
def test_text_that_is_no_number_causes_no_warning(tmp_path: Path, users: list[str]) -> None:
    assert look_at_recipe(csv_data(tmp_path, users), tmp_path).warnings == []


def test_criteo_ids_are_integers(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1" + "\t7" * 13 + "\t1a" * 26 + "\n")
    (tmp_path / "b.tsv").write_text("1" + "\t7" * 13 + "\t12.0" + "\t1a" * 25 + "\n")
    agreed = look_at_recipe(CriteoData(train=["a.tsv", "b.tsv"]), tmp_path)
    assert {kind.kind for kind in agreed.kinds.values()} == {"integer"} and len(agreed.kinds) == 26
    assert (
        agreed.kinds == {name: IdKind("integer", "criteo in a.tsv") for name in kinds_of_format("criteo", ())}
        and not agreed.problems
    )


def test_id_kinds_that_follow_from_the_format() -> None:
    assert kinds_of_format("csv", ["u"]) == {"u": IdKind("text", "csv")}
    assert kinds_of_format("parquet", ["u"]) == {}
    assert len(kinds_of_format("synthetic", ())) == 26


kinds = st.sampled_from(["integer", "text"])
files = st.lists(st.dictionaries(st.sampled_from("abc"), kinds, max_size=3), max_size=6)


@given(files, st.dictionaries(st.sampled_from("abc"), kinds, max_size=3))
def test_exactly_the_columns_with_two_id_kinds_are_refused(
    found: list[dict[str, Any]], expected: dict[str, Any]
) -> None:
    before = {column: IdKind(kind) for column, kind in expected.items()}
    seen = [FileIds(f"/{i}", {c: SeenColumn(k, "x") for c, k in columns.items()}) for i, columns in enumerate(found)]
    agreed = reconcile(seen, before)
    all_kinds = {column: {one[column] for one in [expected, *found] if column in one} for column in "abc"}
    assert {column for column, _ in agreed.problems} == {column for column in "abc" if len(all_kinds[column]) == 2}
    assert set(agreed.kinds) == {column for column in "abc" if all_kinds[column]}
    alone = reconcile(seen).kinds
    assert {column for column, _ in compare(before, alone, whose="x").problems} <= {c for c, _ in agreed.problems}
    if agreed.problems:
        with pytest.raises(DataError):
            agreed.require()
    else:
        agreed.require()


@given(st.lists(st.integers()), st.lists(st.integers()), st.lists(st.sampled_from(["x", "1.5", "", "07", "-", "1_0"])))
def test_text_values_are_counted_as_integers_floats_or_others(
    integers: list[int], floats: list[int], others: list[str]
) -> None:
    values = text_values([*map(str, integers), *(f"{one}.0" for one in floats), *others])
    assert (values.integers, values.floats) == (len(integers), len(floats))
    assert values.looked_at == len(integers) + len(floats) + sum(map(bool, others))
    pure = values.looked_at and {values.integers: "integers", values.floats: "floats"}.get(values.looked_at)
    assert values.reads_as == (pure or "")
