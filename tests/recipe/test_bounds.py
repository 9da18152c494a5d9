"""Every number of a recipe has bounds, and what lies outside them is refused by naming them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect as mi

from dlrover_lite.core.errors import RecipeError
from dlrover_lite.core.units import Resources
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Recipe

EXTREMES = (-1, 0, 1e-300, 1e300, 2**63, 10**30, -(10**30), math.nan, math.inf, -math.inf, "9" * 5000, "1e999")


def _numbers(kind: mi.Type, key: str) -> Iterator[tuple[str, mi.IntType | mi.FloatType]]:
    match kind:
        case mi.UnionType(types=members):
            for member in members:
                yield from _numbers(member, key)
        case mi.Metadata(type=inner):
            yield from _numbers(inner, key)
        case mi.StructType(cls=cls, fields=fields):
            if cls is not Resources:  # whose bounds are with those of what has them
                tag = f"/{kind.tag}" if kind.tag else ""
                for field in fields:
                    yield from _numbers(field.type, f"{key}{tag}.{field.name}".lstrip("."))
        case mi.IntType() | mi.FloatType():
            yield key, kind


NUMBERS = dict(_numbers(mi.type_info(Recipe), ""))
WHOLE_AS_LARGE_AS_THEY_ARE = {
    "data/synthetic.seed",
    "training.seed",
    "training.evaluate_every",
    "training.max_skipped_minibatches",
    "training.schedule.decay_samples",
    "training.schedule.warmup_samples",
}
"""Nothing gets larger, slower or less exact with them; ``walk`` refuses what 63 bits can't hold."""


@pytest.mark.parametrize("key", sorted(NUMBERS))
def test_every_number_of_a_recipe_has_bounds(key: str) -> None:
    kind = NUMBERS[key]
    assert kind.ge is not None or kind.gt is not None
    if key not in WHOLE_AS_LARGE_AS_THEY_ARE:
        assert kind.le is not None or kind.lt is not None


def _recipe(key: str, value: Any) -> dict[str, Any]:
    data = {"format": "synthetic", "samples": 10}
    if key.startswith("data/census"):
        data = {"format": "census", "samples": 128}
    elif key.startswith("data/criteo"):
        data = {"format": "criteo", "train": ["x"]}
    elif key.startswith(("data/csv", "data/parquet")):
        data = {"format": key[5:].partition(".")[0], "train": ["x"], "label": "y", "dense": ["x"]}
    recipe: dict[str, Any] = {"version": 1, "name": "j", "model": "dcn", "data": data}
    role = {"count": 1, "cores": 1, "memory": "1GiB"}
    section = recipe
    *above, last = (part.partition("/")[0] for part in key.split("."))
    for name in above:
        section = section.setdefault(name, dict(role) if name in ("ps", "worker") else {})
    section[last] = value
    return recipe


@pytest.mark.parametrize("key", sorted(NUMBERS))
@pytest.mark.parametrize("value", EXTREMES, ids=lambda value: str(value)[:8])
def test_numbers_beyond_all_bounds_are_refused_by_name(key: str, value: Any) -> None:
    kind = NUMBERS[key]
    try:
        made = parse_recipe(_recipe(key, value), check_files=False)
    except RecipeError as error:
        said = ("expected", "amount of memory", "belongs to")
        assert all(any(word in problem.message for word in said) for problem in error.problems)
        return
    assert (kind.ge if kind.ge is not None else 0) <= value <= (kind.le if kind.le is not None else 1)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Recipe) == made


@pytest.mark.parametrize(
    ("total", "said"),
    [
        ({"cores": 1e-300, "memory": "1GiB"}, "cores: expected a number from 0.01 to 100,000"),
        ({"cores": 1e300, "memory": "1GiB"}, "cores: expected a number from 0.01 to 100,000"),
        ({"cores": 1, "memory": 512}, "memory: expected an amount of memory, as in 512MiB, from 16 MiB to 1024 TiB; found 512, in bytes"),
        ({"cores": 1, "memory": "5000TiB"}, "from 16 MiB to 1024 TiB; found 5000 TiB"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("role", ["total", "ps", "worker"])
def test_sizes_that_no_machine_has_are_refused(role: str, total: dict[str, Any], said: str) -> None:
    count = {} if role == "total" else {"count": 1}
    with pytest.raises(RecipeError) as refused:
        parse_recipe({**_recipe("priority", 1), "resources": {role: {**count, **total}}})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "options", [{"embedding_dim": 10**9}, {"hidden": [10**9]}, {"init_scale": 1e300}, {"hidden": [1, 0]}]
)
def test_sizes_of_built_in_models_have_bounds(options: dict[str, Any]) -> None:
    recipe = {**_recipe("priority", 1), "model": {"use": "dcn", "options": options}}
    with pytest.raises(RecipeError, match=r"from [01] to 1,000,000"):
        parse_recipe(recipe)
