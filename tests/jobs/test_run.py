"""What ``run`` makes of its arguments before it launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dlrover_lite
from dlrover_lite.client import handle
from dlrover_lite.core.errors import RecipeError
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Recipe

PLAIN = {
    "version": 1,
    "name": "plain",
    "model": {"use": "wide_deep"},
    "data": {"format": "synthetic", "samples": 1000},
    "training": {"batch_size": 64, "epochs": 2},
}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    recipes: list[Recipe] = []

    def launch(recipe: Recipe, **_: Any) -> str:
        recipes.append(recipe)
        return "a handle"

    monkeypatch.setattr(handle, "launch", launch)
    return recipes


def test_run_takes_a_mapping_a_file_or_a_recipe_alike(launched: list[Recipe], tmp_path: Path) -> None:
    file = tmp_path / "plain.yaml"
    file.write_text(
        "version: 1\nname: plain\nmodel: {use: wide_deep}\ndata: {format: synthetic, samples: 1000}\n"
        f"training: {{batch_size: 64, epochs: 2}}\ndirectory: {Path.cwd()}\n"
    )
    for recipe in (PLAIN, file, str(file), parse_recipe(PLAIN)):
        assert dlrover_lite.run(recipe) == "a handle"
    assert all(recipe == launched[0] for recipe in launched)


def test_overrides_are_dotted_or_nested(launched: list[Recipe]) -> None:
    dlrover_lite.run(PLAIN, training={"epochs": 5}, **{"data.samples": 10})
    dlrover_lite.run(parse_recipe(PLAIN), name="other", training={"optimizer": {"use": "sgd"}})
    one, two = launched
    assert (one.training.epochs, one.training.batch_size, one.data.samples) == (5, 64, 10)  # type: ignore[union-attr]
    assert (two.name, two.training.optimizer.use, two.training.epochs) == ("other", "sgd", 2)


def test_a_bad_override_starts_no_job(launched: list[Recipe]) -> None:
    with pytest.raises(RecipeError, match="epochs"):
        dlrover_lite.run(PLAIN, training={"epochs": 0})
    assert launched == []
