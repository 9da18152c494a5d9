"""Data and model files that a recipe names are looked at before anything runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dlrover_lite.core.errors import RecipeError
from dlrover_lite.recipe.load import parse_recipe

CRITEO_LINE = "1" + "\t7" * 13 + "\t1a" * 26 + "\n"
MODEL = """
import torch

class Small(torch.nn.Module):
    pass
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "day_0.tsv").write_text(CRITEO_LINE)
    (tmp_path / "empty.tsv").touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def problem(directory: Path, *, train: str = "day_0.tsv", model: str = "dcn", more: str = "") -> str:
    text = f"version: 1\nname: j\nmodel: {model}\ndata:\n  format: criteo\n  train:\n  - {train}\n{more}"
    try:
        parse_recipe(text, source="r.yaml", directory=directory)
    except RecipeError as error:
        return str(error)
    return ""


def test_existing_files_and_globs_are_accepted(directory: Path) -> None:
    assert problem(directory) == ""
    assert problem(directory, train='"*_0.tsv"') == ""
    assert problem(directory, train=str(directory / "day_0.tsv")) == ""


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("day_1.tsv", "{}/day_1.tsv: no such file; did you mean day_0.tsv?"),
        ("nowhere/day_0.tsv", "{0}/nowhere/day_0.tsv: no such file, and no directory {0}/nowhere"),
        ("logs", "{}/logs is a directory; name its files, as in logs/*.tsv"),
        ("empty.tsv", "{}/empty.tsv is empty"),
        ('"*.gz"', "no file matches {}/*.gz"),
        ('"log*"', "no file matches {}/log*"),
    ],
)
def test_missing_training_files_are_named(directory: Path, train: str, expected: str) -> None:
    message = f"r.yaml:7: data.train: {expected.format(directory)}\n--data FILE takes the place of data.train."
    assert problem(directory, train=train) == message


def test_evaluation_files_are_checked_too(directory: Path) -> None:
    missing = problem(directory, more="  eval: day_9.tsv\n")
    assert missing == f"r.yaml:8: data.eval: {directory}/day_9.tsv: no such file; did you mean day_0.tsv?"


def test_an_existing_user_model_is_accepted(directory: Path) -> None:
    assert problem(directory, model="model.py:Small") == ""
    assert problem(directory, model=f"{directory}/model.py:Small") == ""


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("model.py:Smal", "{}/model.py defines no class Smal; did you mean Small?"),
        ("model.py:Q", "{}/model.py defines no class Q; classes there: Small"),
        ("model.py", "names no class; write model.py:Small; classes there: Small"),
        ("modell.py:Small", "{}/modell.py: no such file; did you mean model.py?"),
        ("logs.py:Small", "{}/logs.py: no such file"),
    ],
)
def test_a_missing_user_model_is_named_with_those_there(directory: Path, model: str, expected: str) -> None:
    assert problem(directory, model=model) == f"r.yaml:3: model.use: {expected.format(directory)}"


def test_a_syntax_error_in_the_model_file_is_reported(directory: Path) -> None:
    (directory / "model.py").write_text("import torch\n\nclass Small(torch.nn.Module:\n    pass\n")
    message = problem(directory, model="model.py:Small")
    assert message.startswith(f"r.yaml:3: model.use: {directory}/model.py:3: ")
    assert message.endswith(": class Small(torch.nn.Module:")


@pytest.mark.parametrize(
    "body",
    [
        "from elsewhere import Small",
        "from elsewhere import *",
        "Small = make()",
        "try:\n    import fast\nexcept ImportError:\n    class Small: pass",
        "def Small(schema): pass",
    ],
)
def test_model_names_that_may_be_a_class_are_accepted(directory: Path, body: str) -> None:
    (directory / "model.py").write_text(body)
    assert problem(directory, model="model.py:Small") == ""


def test_the_model_file_is_not_executed(directory: Path) -> None:
    (directory / "model.py").write_text("open('ran', 'w')\nclass Small: pass\n")
    assert problem(directory, model="model.py:Small") == ""
    assert not (directory / "ran").exists() and not Path("ran").exists()


def test_files_are_not_looked_at_without_check_files(directory: Path) -> None:
    text = "version: 1\nname: j\nmodel: gone.py:Model\ndata: {format: criteo, train: gone.tsv}\n"
    assert parse_recipe(text, directory=directory, check_files=False).model.use == "gone.py:Model"


def test_parquet_names_the_extra_that_is_missing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = problem(directory, more="export: {format: parquet}\n")
    assert message == "r.yaml:8: export.format: writing Parquet needs pyarrow: pip install 'dlrover-lite[parquet]'"
