"""What a recipe must be like for its samples to be counted exactly (the model ``census``)."""

from __future__ import annotations

from collections.abc import Iterator

from dlrover_lite.recipe.schema import CensusData, Recipe

__all__ = ["CENSUS", "census_problems"]

CENSUS = "census"
"""Name of the model, and of the data format."""
_LARGEST_BATCH = 1 << 24
"""The largest batch: up to here float32 holds every whole number."""


def census_problems(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """List (dotted key, what is wrong with it). Nothing for recipes of other models."""
    if recipe.model.use != CENSUS:
        return
    training, schedule, data = recipe.training, recipe.training.schedule, recipe.data
    batch = training.batch_size
    if batch & (batch - 1) or batch > _LARGEST_BATCH:
        example = 1 << max(0, min(batch, _LARGEST_BATCH).bit_length() - 1)
        yield (
            "training.batch_size",
            f"the census counts with gradients that no sum rounds: expected a power of two up to {_LARGEST_BATCH}, "
            f"such as {example}; found {batch}",
        )
    if schedule.use != "constant" or schedule.warmup_samples:
        key = "use" if schedule.use != "constant" else "warmup_samples"
        yield (
            f"training.schedule.{key}",
            "the census needs updates that are all alike: expected constant, without warm-up",
        )
    if not isinstance(data, CensusData):
        found = data.__struct_config__.tag
        yield "data.format", f"the model census counts the samples of the format census; found {found}"
    elif data.samples % batch:
        yield (
            "data.samples",
            f"the census needs minibatches that are all of one size: expected a multiple of training.batch_size, {batch}; "
            f"found {data.samples}",
        )
