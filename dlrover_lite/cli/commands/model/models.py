"""``evaluate`` and ``export``: what a job has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from dlrover_lite.cli.options import from_option
from dlrover_lite.cli.output import TerminalDisplay, emit_json, note
from dlrover_lite.core.words import count, metric

__all__ = ["evaluate", "export_"]


@click.command(short_help="Evaluate a trained model on data.")
@click.argument("model", metavar="[JOB|DIRECTORY]", required=False)
@from_option
@click.option("--data", multiple=True, metavar="FILE", help="Evaluate on all samples of this file; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def evaluate(model: str | None, origin: str | None, data: tuple[str, ...], as_json: bool) -> None:
    """Evaluate a trained model: loss, AUC, and the share of ids that it was never trained on, on the recipe's evaluation data, or on all
    samples of --data files.

    The model is that of a job (its id, the start of one, or "last", which is the default), or a DIRECTORY that was exported to;
    with --from, the one in a checkpoint, also while the job runs. Lines that can't be used are left out.
    """
    from dlrover_lite.client import trained_models

    _check_one(model, origin)
    result = trained_models.evaluate(model or "last", data=data, checkpoint=origin, display=TerminalDisplay())
    if as_json:
        emit_json(result)
        return
    from dlrover_lite.core.unknown_ids import unknown_text

    best = "" if result.best_auc is None else f"  (best reachable {metric(result.best_auc)})"
    click.echo(f"samples  {count(result.samples)}")
    if result.bad_lines:
        click.echo(f"left out {count(result.bad_lines)} bad lines")
    click.echo(f"loss     {metric(result.loss)}")
    click.echo(f"AUC      {metric(result.auc)}{best}")
    if result.unknown_ids:
        click.echo(f"unknown  {unknown_text(result.unknown_ids, 6)} (ids that were never trained)")
    for warning in result.warnings:
        note(f"Warning: {warning}")


@click.command("export", short_help="Write a job's model to files.")
@click.argument("job", metavar="[JOB]", required=False)
@from_option
@click.option(
    "--to", "target", metavar="DIR", required=True, type=click.Path(path_type=Path), help="Directory to write."
)
@click.option(
    "--format", "table_format", type=click.Choice(["npz", "parquet"]), help="Of the tables; default: as they are."
)
@click.option("--overwrite", is_flag=True, help="Replace an exported model that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def export_(
    job: str | None,
    origin: str | None,
    target: Path,
    table_format: Literal["npz", "parquet"] | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write the model of a finished JOB to a directory. JOB is an id, the start of one, or "last", which is the default. With
    --from, write the one in a checkpoint, also while the job runs.
    """
    from dlrover_lite.client import trained_models

    _check_one(job, origin)
    result = trained_models.export(
        job or "last",
        to=target,
        checkpoint=origin,
        table_format=table_format,
        overwrite=overwrite,
        display=TerminalDisplay(),
    )
    if as_json:
        emit_json(result)
        return
    from dlrover_lite.core.units import format_bytes

    click.echo(
        f"Wrote {result.directory}: {result.tables} tables with {count(result.rows)} rows ({result.format}), "
        f"{format_bytes(result.bytes)}."
    )
    click.echo(f"Load it in Python: dlrover_lite.load_model({result.directory!r})")


def _check_one(other: str | None, origin: str | None) -> None:
    """Check that one model is meant. Raises click.UsageError when a checkpoint is named, and something else too."""
    if origin is not None and other is not None:
        raise click.UsageError(f"Either {other} or --from {origin}: which model is meant?")
