"""``validate``, ``recipe schema`` and ``recipe init``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlrover_lite.cli.groups import CommandGroup
from dlrover_lite.cli.options import overrides, recipe_options
from dlrover_lite.cli.output import emit_json, fields
from dlrover_lite.core.errors import RecipeError, UsageError
from dlrover_lite.core.words import count, plural

if TYPE_CHECKING:
    from dlrover_lite.client.dry_run import FirstPlan
    from dlrover_lite.models.trial import Found
    from dlrover_lite.protocol.plans import Plan, RolePlan
    from dlrover_lite.recipe.schema import Data, Optimizer, Recipe, ResourceLimits, RoleResources

__all__ = ["recipe", "validate"]


@click.command(short_help="Check a recipe and say what it will do.")
@recipe_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def validate(recipe: str, settings: tuple[str, ...], data: tuple[str, ...], as_json: bool) -> None:
    """Check the file RECIPE without training, and say what it will do.

    Reads the first 1,000 lines of each data file, and tries the model on two samples in a process of its own: a model
    of yours is imported and computes one step. Prints every problem with its file, line and key, and exits with code 2
    if there is any.

    With --json: {"ok": true, "recipe": {...}, "plan": {...}, "warnings": [...], "tried": {...}} with every default
    filled in and what "auto" would become on this machine, or {"ok": false, "errors":
    [{"file", "line", "key", "message"}], "hint"}; "file" and "line" are null for what --set or --data gave.
    """
    from dlrover_lite.client.validation import validate as check

    try:
        checked = check(recipe, **overrides(settings, data))
    except RecipeError as error:
        if not as_json:
            raise

        emit_json({"ok": False, "errors": [_error(problem) for problem in error.problems], "hint": error.hint})
        raise click.exceptions.Exit(error.exit_code) from None
    loaded, found, said = checked.recipe, checked.tried, checked.warnings
    if as_json:
        tried = fields(found, "lines", "bad_lines", "bad_examples", "dense_parameters", "embedding_values")
        emit_json({"ok": True, "recipe": loaded, "plan": checked.plan, "warnings": said, "tried": tried})
        return
    for name, text in [*_summary(loaded, checked.first, found), *_tried(found)]:
        click.echo(f"{name:<10} {text}")
    for warning in said:
        click.echo(f"Warning: {warning}", err=True)


def _tried(found: Found) -> list[tuple[str, str]]:
    """Return what the trial has found, as (subject, text)."""
    told = []
    if found.lines:
        bad = "all can be used" if not found.bad_lines else f"{count(found.bad_lines)} can't be used"
        told.append(("lines", f"{count(found.lines)} read, {bad}{' (all there are)' if found.whole else ''}"))
        told += [("", example) for example in found.bad_examples]
    if found.dense_parameters is not None:
        values = plural(found.embedding_values, "embedding value")
        told.append(
            ("tried", f"two samples through the model: {count(found.dense_parameters)} dense parameters, {values} each")
        )
    return told


def _error(problem: Any) -> dict[str, Any]:
    place = problem.place
    written = place.source if place.override is None else None
    return {"file": written, "line": place.line or None, "key": problem.key, "message": problem.message}


def _summary(recipe: Recipe, first: FirstPlan, found: Found) -> list[tuple[str, str]]:
    """Return what a run of this recipe does, as (subject, text)."""
    training = recipe.training
    order = "shuffled" if training.shuffle else "in order"
    epochs = "1 epoch" if training.epochs == 1 else f"{training.epochs} epochs"
    steps = f"{epochs} in batches of {training.batch_size:,}, {order}"
    if training.evaluate_every:
        steps += f", evaluated every {training.evaluate_every:,} samples"
    optimizer = _optimizer(training.optimizer)
    if training.embedding_optimizer is not None:
        optimizer += f"; embeddings: {_optimizer(training.embedding_optimizer)}"
    if training.schedule.use != "constant" or training.schedule.warmup_samples:
        optimizer += f"; {training.schedule.use} schedule"
    options = ", ".join(f"{name}={value}" for name, value in recipe.model.options.items())
    return [
        ("job", recipe.name),
        ("model", f"{recipe.model.use} ({options})" if options else recipe.model.use),
        ("data", _data(recipe.data)),
        ("training", steps),
        ("optimizer", optimizer),
        ("resources", _resources(recipe.resources, first.plan)),
        *[("", text) for text in _chosen(first, found)],
        ("export", recipe.export.format + (", with optimizer state" if recipe.export.optimizer_state else "")),
    ]


def _data(data: Data) -> str:
    from dlrover_lite.recipe.schema import CensusData, SyntheticData

    if isinstance(data, CensusData):
        return f"census: {data.samples:,} samples, each to be counted"
    if isinstance(data, SyntheticData):
        return f"synthetic: {data.samples:,} samples, {data.eval_samples:,} more to evaluate on"
    kind = type(data).__name__.removesuffix("Data").lower()
    held_out = f"evaluated on {', '.join(data.eval)}" if data.eval else f"{data.eval_share:.3g} of it held out"
    return f"{kind}: {', '.join(data.train)}; {held_out}"


def _optimizer(optimizer: Optimizer) -> str:
    return f"{optimizer.use}, learning rate {optimizer.learning_rate:g}"


def _resources(limits: ResourceLimits, plan: Plan) -> str:
    from dlrover_lite.core.units import format_bytes

    parts = [_role(plan.ps, "PS", limits.ps), _role(plan.worker, "workers", limits.worker)]
    if limits.total is not None:
        parts.append(f"together at most {limits.total.cores:g} cores, {format_bytes(limits.total.memory)}")
    return "; ".join(parts)


def _chosen(first: FirstPlan, found: Found) -> list[str]:
    """Say who chooses what the recipe leaves open, and by what."""
    if first.by_brain:
        samples = f"about {found.samples:,} samples, by the files' sizes" if found.estimated else ""
        by = f", for {samples}" if samples else ""
        return [f"auto: as the brain would begin now{by} (dlrover-lite plan); it takes back memory that isn't used"]
    return [f"auto: by a rule of thumb, since {first.why}"] if first.why else []


def _role(role: RolePlan, name: str, fixed: RoleResources | None) -> str:
    from dlrover_lite.core.units import format_bytes

    name = "worker" if role.count == 1 and name == "workers" else name
    auto = "" if fixed else " (auto)"
    return f"{role.count} {name} with {role.each.cores:g} cores, {format_bytes(role.each.memory)}{auto}"


@click.group(cls=CommandGroup, short_help="Start a recipe, or print its schema.")
def recipe() -> None:
    """Start a recipe, or print its schema. docs/recipe.md explains every key."""


@recipe.command(short_help="Print the JSON Schema of recipes.")
def schema() -> None:
    """Print the JSON Schema of recipes, for editors that complete and check YAML."""
    import json

    from dlrover_lite.recipe.json_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


def _write(path: Path, text: str, *, replace: bool) -> None:
    """Write a file whole or not at all; a pipe or device is written to and never replaced. Raises OSError."""
    from dlrover_lite.data.files import atomic_file

    if replace and path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
    elif replace:
        with atomic_file(path.resolve()) as file:
            file.write(text.encode())
    else:
        with path.open("x", encoding="utf-8") as new:
            try:
                new.write(text)
                new.flush()
            except OSError:
                path.unlink()
                raise


@recipe.command(short_help="Write a commented recipe to start from.")
@click.argument("path", required=False, type=click.Path())
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def init(path: str | None, force: bool) -> None:
    """Write a commented recipe, which runs as it stands, to PATH; without PATH, print it."""
    from dlrover_lite.recipe.starter import starter, starter_name

    if path is None:
        click.echo(starter(), nl=False)
        return
    file = Path(path)
    text = starter(starter_name(file.stem), path)
    try:
        _write(file, text, replace=force)
    except FileExistsError:
        raise UsageError(f"{path} exists already", hint="--force replaces it.") from None
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from None
    click.echo(f"Wrote {path}. Train with it: dlrover-lite run {shlex.quote(path)}", file=sys.stderr)
