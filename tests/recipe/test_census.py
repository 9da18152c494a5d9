"""A census that couldn't be checked is refused before it runs, with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlrover_lite.core.errors import RecipeError
from dlrover_lite.recipe.load import load_recipe, parse_recipe
from dlrover_lite.recipe.schema import CensusData

RECIPE = """\
version: 1
name: census
model: census
data: {format: census, samples: 1024}
training:
  batch_size: 256
  schedule: constant
"""
SHIPPED = Path(__file__).resolve().parents[2] / "recipes" / "census.yaml"


def problems(text: str) -> list[tuple[int, str, str]]:
    with pytest.raises(RecipeError) as raised:
        parse_recipe(text, source="r.yaml")
    return [(problem.place.line, problem.key, problem.message) for problem in raised.value.problems]


def test_a_census_recipe_is_read() -> None:
    recipe = parse_recipe(RECIPE)
    assert recipe.data == CensusData(samples=1024)
    assert not recipe.export.optimizer_state
    assert parse_recipe(RECIPE + "export: {optimizer_state: yes}\n").export.optimizer_state


@pytest.mark.parametrize(
    ("change", "line", "key", "says"),
    [
        (("format: census", "format: synthetic"), 4, "data.format", "found synthetic"),
        (("samples: 1024", "samples: 1000"), 4, "data.samples", "a multiple of training.batch_size, 256; found 1000"),
        (
            ("batch_size: 256", "batch_size: 192"),
            6,
            "training.batch_size",
            "a power of two up to 16777216, such as 128",
        ),
        (("batch_size: 256", "batch_size: 33554432"), 6, "training.batch_size", "such as 16777216; found 33554432"),
        (("schedule: constant", "schedule: cosine"), 7, "training.schedule.use", "expected constant"),
        (("constant", "{warmup_samples: 5}"), 7, "training.schedule.warmup_samples", "without warm-up"),
        (("schedule: constant", "evaluate_every: 9"), 7, "training.evaluate_every", "nothing to evaluate on"),
        (("samples: 1024", "samples: 1024, eval_samples: 3"), 4, "data.eval_samples", "census has no such key"),
    ],
)
def test_settings_impossible_for_a_census_are_refused(change: tuple[str, str], line: int, key: str, says: str) -> None:
    found = problems(RECIPE.replace(*change))
    assert (line, key) in [(at, name) for at, name, _ in found]
    assert any(says in message for _, name, message in found if name == key)


def test_samples_are_checked_against_the_batch_size_that_isnt_written() -> None:
    head, _, _ = RECIPE.partition("training:")
    ((line, key, message),) = problems(head.replace("1024", "1000"))
    assert (line, key) == (4, "data.samples") and "batch_size, 1024" in message


def test_other_models_may_use_census_data_of_any_size() -> None:
    text = RECIPE.replace("model: census", "model: dcn").replace("1024", "1000")
    assert parse_recipe(text).data == CensusData(samples=1000)


def test_shipped_census_recipe_can_be_checked() -> None:
    recipe = load_recipe(SHIPPED)
    ps, worker = recipe.resources.ps, recipe.resources.worker
    assert (recipe.model.use, recipe.export.optimizer_state) == ("census", True)
    assert ps is not None and worker is not None and (ps.count, worker.count) == (1, 2)
    for use in ("sgd", "adagrad", "adam", "ftrl"):
        assert load_recipe(SHIPPED, {"training.optimizer.use": use}).training.optimizer.use == use
