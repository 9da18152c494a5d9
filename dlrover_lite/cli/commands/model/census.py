"""``dlrover-lite census``: whether each sample has been applied exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dlrover_lite.cli.groups import CommandGroup
from dlrover_lite.cli.options import job_argument
from dlrover_lite.cli.output import TerminalDisplay, emit_json, progress, table
from dlrover_lite.core.errors import JobError, ModelError, UsageError
from dlrover_lite.core.words import count, plural

if TYPE_CHECKING:
    from dlrover_lite.models.census_check import CensusReport, WrongKey

__all__ = ["census"]

EXIT_WRONG = 1


@click.group(cls=CommandGroup, short_help="Prove that samples are applied exactly once.")
def census() -> None:
    """Prove that every sample is applied exactly once, whatever happens to the nodes meanwhile.

    Run recipes/census.yaml, scale, kill and move what you like while it trains, then check the job.
    """


@census.command(short_help="Check the census that a job has taken.")
@job_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(job: str, as_json: bool) -> None:
    """Check that a census JOB has applied each sample of every epoch exactly once. JOB is an id, the start of one, or
    "last" (default).

    Every value, its optimizer state and the count of its updates are compared, bit for bit, with what the optimizer makes
    of the right number of updates; keys that are missing, or shouldn't be there, are errors too.

    Exit codes: 0 exact; 1 not; 2 the job can't be checked.
    """
    import msgspec

    from dlrover_lite.client import census as counting
    from dlrover_lite.client.handle import JobHandle

    try:
        found = JobHandle.find(job).job
        with TerminalDisplay().steps() as steps:
            directory = counting.exported(found, steps)
        with progress("checking") as show:
            report = counting.check(found, lambda keys: show(note=f"{keys:,} keys"))
    except (JobError, ModelError) as error:  # 1 means that it was checked
        raise UsageError(error.message, hint=error.hint) from error
    if as_json:
        counted = {"exact": report.exact, "errors": report.errors, **msgspec.to_builtins(report)}
        emit_json({"job": found.id, "model": str(directory), **counted})
    else:
        _print(found.id, report)
    if not report.exact:
        click.get_current_context().exit(EXIT_WRONG)


def _print(job: str, report: CensusReport) -> None:
    samples, epochs = plural(report.samples, "sample"), plural(report.epochs, "epoch")
    click.echo(f"{job}: {samples}, {epochs} of {count(report.minibatches)} minibatches\n")
    rows = [
        (one.table, *map(count, (one.keys, one.updates, one.missing, one.extra, one.wrong))) for one in report.tables
    ]
    table(("table", "keys", "updates", "missing", "extra", "wrong"), rows)
    if report.exact:
        click.echo("\nExact: every sample of every epoch has been applied once.")
        return
    keys = "1 key isn't as it" if report.errors == 1 else f"{count(report.errors)} keys aren't as they"
    click.echo(f"\nWrong: {keys} must be. The first of each table:\n")
    table(("table", "key", "difference"), [(one.table, one.key, difference(one)) for one in report.examples], key=2)


def difference(one: WrongKey) -> str:
    """Say in words how a key differs from what was expected."""
    if one.problem == "missing":
        return f"missing; {_updates(one.expected_updates)} expected"
    if one.problem == "extra":
        return "not expected" + (f"; {_updates(one.found_updates)} found" if one.found_updates is not None else "")
    parts = []
    if one.found_updates != one.expected_updates:
        parts.append(f"{_updates(one.found_updates)} instead of {one.expected_updates:,}")
    if one.where:
        parts.append(f"{one.where} is {one.found:.9g} instead of {one.expected:.9g}")
    return "; ".join(parts)


def _updates(number: int | None) -> str:
    return plural(number or 0, "update")
