"""Arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

__all__ = [
    "MOST_NUMBER",
    "MOST_SECONDS",
    "POLICIES",
    "Number",
    "from_option",
    "job_argument",
    "overrides",
    "policy_option",
    "recipe_changes",
    "recipe_options",
]

F = TypeVar("F", bound=Callable[..., Any])

POLICIES = "lite", "paper"
"""``protocol.acts.PolicyName``, which takes msgspec to import."""
MOST_NUMBER = 10**9
"""Limit for the number of a decision or a checkpoint, or of lines to show: more than there will ever be."""
MOST_SECONDS = 1e9


class Number(click.FloatRange):
    """A number within two bounds, which NaN isn't."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if number != number:  # noqa: PLR0124 - NaN
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def recipe_options(command: F) -> F:
    """Add RECIPE, ``--set`` and ``--data``: parameters ``recipe`` (str), ``settings`` and ``data`` (tuples of str)."""
    return click.argument("recipe", type=click.Path())(recipe_changes(command))


def recipe_changes(command: F) -> F:
    """Add ``--set`` and ``--data`` alone."""
    data = click.option(
        "--data", multiple=True, metavar="FILE", help="Train on this file instead of data.train; may be repeated."
    )
    settings = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change one key of the recipe, as in training.epochs=2; may be repeated.",
    )
    return settings(data(command))


def policy_option(command: F) -> F:
    """Add ``--policy``: parameter ``policy``, None for the one that decides."""
    return click.option(
        "--policy",
        type=click.Choice(POLICIES),
        help="What this policy decides from the same inputs: ours, or the paper's (`brain settings policy=paper`).",
    )(command)


def from_option(command: F) -> F:
    """Add ``--from``: parameter ``origin``, for ``jobs.checkpoint_location``."""
    return click.option(
        "--from",
        "origin",
        metavar="CHECKPOINT",
        help='The newest of a job\'s checkpoints (an id, a path or URL), or with ":12" at its end that one.',
    )(command)


def job_argument(command: F) -> F:
    """Add JOB, the newest by default: parameter ``job`` (str), for ``JobHandle.find``."""
    return click.argument("job", metavar="[JOB]", default="last")(command)


def overrides(settings: Sequence[str] = (), data: Sequence[str] = ()) -> dict[str, Any]:
    """Return what ``load_recipe`` takes as overrides. Paths in ``--data`` start at the current directory.

    Raises click.UsageError for a setting that isn't KEY=VALUE.
    """
    from dlrover_lite.core.files.data_file import spelled

    result: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"--set {setting}: write it as KEY=VALUE, as in --set training.epochs=2")
        result[key.strip()] = value
    if data:
        result["data.train"] = [spelled(path) for path in data]
    return result
