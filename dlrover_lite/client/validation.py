"""Checking a recipe without training: what it says, the first lines of its data, and its model on two samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dlrover_lite.client import trial
from dlrover_lite.client.handle import Recipes, dotted, resolve, this_machine
from dlrover_lite.protocol.plans import Plan, more_than_there_is
from dlrover_lite.recipe.id_preview import look_at_recipe
from dlrover_lite.recipe.schema import Recipe

if TYPE_CHECKING:
    from dlrover_lite.client.dry_run import FirstPlan
    from dlrover_lite.models.trial import Found

__all__ = ["Validation", "validate", "warnings"]


class Validation(NamedTuple):
    """What a recipe that can be run will do."""

    recipe: Recipe
    """The recipe with every default filled in."""
    first: FirstPlan
    """The nodes that it would get on this machine, and whether the brain chose them."""
    tried: Found
    """What the trial of its data and its model has found."""
    warnings: list[str]
    """What may go wrong, a text each."""

    @property
    def plan(self) -> Plan:
        """The nodes that it would get on this machine."""
        return self.first.plan


def validate(recipe: Recipes, **overrides: Any) -> Validation:
    """Check a recipe without training; see ``run`` for the arguments. The first 1,000 lines of each data file are read, and the model is
    tried on two samples, in a process of its own.

    Raises RecipeError, with all its ``problems``, for a recipe that can't be run.
    """
    # deciding takes numpy and scipy, which who runs a job need not wait for
    from dlrover_lite.client.dry_run import first_plan

    changes = dict(dotted(overrides))
    resolved = resolve(recipe, overrides)
    found = trial.try_recipe(resolved, this_machine())
    path = recipe if isinstance(recipe, str | Path) else None
    if (wrong := trial.problems_of(found, resolved, path, changes)) is not None:
        raise wrong
    first = first_plan(resolved, found.samples)
    return Validation(resolved, first, found, [*warnings(resolved), *trial.warnings_of(found, resolved)])


def warnings(recipe: Recipe) -> list[str]:
    """Tell what a job of this recipe asks for and this machine doesn't have, and what is odd about the ids of its data."""
    odd = look_at_recipe(recipe.data, Path(recipe.directory)).warnings
    return [*more_than_there_is(recipe.resources, this_machine()), *odd]
