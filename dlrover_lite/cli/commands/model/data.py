"""``dlrover-lite data``: making training data."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from dlrover_lite.cli.groups import CommandGroup
from dlrover_lite.cli.options import Number
from dlrover_lite.cli.output import TerminalDisplay
from dlrover_lite.core.errors import UsageError

__all__ = ["data"]


@click.group(cls=CommandGroup)
def data() -> None:
    """Make training data."""


@data.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--samples", type=click.IntRange(1, 10**12), default=100_000, show_default=True, help="Lines to write.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Decides every value.")
@click.option(
    "--ids-per-field",
    type=click.IntRange(1, 10**12),
    default=10_000,
    show_default=True,
    help="Different ids in each categorical column.",
)
@click.option(
    "--zipf-exponent",
    type=Number(0, 100),
    default=1.2,
    show_default=True,
    help="How uneven the ids are: 0 is uniform.",
)
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for programs.")
def synth(
    out: Path, samples: int, seed: int, ids_per_field: int, zipf_exponent: float, overwrite: bool, as_json: bool
) -> None:
    """Write generated samples to OUT.tsv or OUT.tsv.gz, in Criteo's format.

    Prints the best AUC that a model can reach on them, and how to use the file in a recipe. The same options always
    write the same file. A file that exists is kept, unless --overwrite is given.
    """
    if out.is_file() and not overwrite:
        raise UsageError(f"{out} exists already", hint="Choose another name; --overwrite replaces it.")

    from dlrover_lite.data.synthetic import write_tsv
    from dlrover_lite.recipe.schema import SyntheticData

    spec = SyntheticData(
        samples=samples, eval_samples=0, ids_per_field=ids_per_field, zipf_exponent=zipf_exponent, seed=seed
    )
    with TerminalDisplay().steps() as progress:
        auc = write_tsv(out, spec, samples, out.suffix == ".gz", progress if sys.stderr.isatty() else None)
    path = str(out.absolute())
    if as_json:
        best = auc if auc == auc else None  # noqa: PLR0124  # NaN is no JSON
        click.echo(json.dumps({"path": path, "samples": samples, "bytes": out.stat().st_size, "best_auc": best}))
        return
    click.echo(f"Wrote {samples:,} samples to {path}.")
    if auc == auc:  # noqa: PLR0124
        click.echo(f"Best reachable AUC on them: {auc:.4f}")
    click.echo(f"To train on it, put this into a recipe:\n\ndata:\n  format: criteo\n  train: [{json.dumps(path)}]")
