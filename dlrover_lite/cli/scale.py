"""``dlrover-lite scale``: more or fewer nodes for a job that runs."""

from __future__ import annotations

import click

from dlrover_lite.cli.options import job_argument
from dlrover_lite.errors import UsageError

__all__ = ["scale"]


@click.command(short_help="Give a running job more or fewer nodes.")
@job_argument
@click.option("--workers", metavar="N", help="Have N workers.")
@click.option("--ps", metavar="N", help="Have N parameter servers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def scale(job: str, workers: str | None, ps: str | None, as_json: bool) -> None:
    """Give JOB another number of workers or parameter servers while it trains. JOB is an id, the start of one, or
    "last" (default).

    A worker too many finishes its minibatch, gives back the rest of its share, and leaves. Asking for what is there
    already changes nothing.

    Exit codes: 0 done; 1 the job has ended, or refuses; 2 numbers that can't be.
    """
    from dlrover_lite.cli.output import cleaned, emit_json
    from dlrover_lite.jobs import scaling
    from dlrover_lite.jobs.handle import JobHandle

    counts = _count("--workers", workers), _count("--ps", ps)
    scaling.check(*counts)
    handle = JobHandle.find(job)
    actions = handle.scale(workers=counts[0], ps=counts[1])
    if as_json:
        emit_json({"job": handle.id, "workers": counts[0], "ps": counts[1], "actions": actions})
        return
    for line in actions or [f"{handle.id} has that many already."]:
        click.echo(cleaned(line))


def _count(option: str, text: str | None) -> int | None:
    """Read here, not by click: its message is four lines long."""
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
        raise UsageError(f"{option} {text}: write a whole number of nodes to have, as in {option} 3")
    return int(text)
