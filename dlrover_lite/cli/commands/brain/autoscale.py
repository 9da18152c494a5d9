"""``autoscale …``: what the brain may do with a job that runs."""

from __future__ import annotations

from typing import Literal

import click

from dlrover_lite.cli.groups import CommandGroup
from dlrover_lite.cli.options import job_argument
from dlrover_lite.cli.output import emit_json
from dlrover_lite.core.words import cleaned

__all__ = ["autoscale"]

_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(cls=CommandGroup, short_help="Hold the brain's changes of a job, or let them be.")
def autoscale() -> None:
    """Hold what the brain does with a job that runs, let it go on, and answer what it suggests.

    A job that was changed by hand (scale, move, drain, resize) is paused: the brain doesn't undo it. What was decided, and
    why: `explain`.
    """


@autoscale.command(short_help="Leave the plan as it is for now.")
@job_argument
@_as_json
def pause(job: str, as_json: bool) -> None:
    """Leave the plan of JOB (an id, the start of one, or "last") as it is until `autoscale resume`. A change under way
    finishes the step it is at."""
    _ask(job, "pause", as_json)


@autoscale.command(short_help="Go on changing it.")
@job_argument
@_as_json
def resume(job: str, as_json: bool) -> None:
    """Let the brain change the plan of JOB (an id, the start of one, or "last") again."""
    _ask(job, "resume", as_json)


@autoscale.command(short_help="Carry out what is suggested.")
@job_argument
@_as_json
def accept(job: str, as_json: bool) -> None:
    """Carry out what the brain suggests for JOB (an id, the start of one, or "last"), which runs with --autoscale suggest.

    Exit codes: 0 it begins; 1 nothing is suggested, or the job has ended.
    """
    _ask(job, "accept", as_json)


@autoscale.command(short_help="Drop what is suggested, or under way.")
@job_argument
@_as_json
def reject(job: str, as_json: bool) -> None:
    """Drop what the brain suggests for JOB (an id, the start of one, or "last"), or is carrying out: what was changed already
    stays.

    Exit codes: 0 it is dropped; 1 there is nothing to drop, or the job has ended.
    """
    _ask(job, "reject", as_json)


@autoscale.command(short_help="Show what may be done, and is.")
@job_argument
@_as_json
def status(job: str, as_json: bool) -> None:
    """Show whether the brain changes the plan of JOB (an id, the start of one, or "last"), and what it is at."""
    _ask(job, "status", as_json)


def _ask(job: str, what: Literal["status", "pause", "resume", "accept", "reject"], as_json: bool) -> None:
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.protocol.questions import to_builtins

    handle = JobHandle.find(job)
    now = handle.autoscale(what)
    if as_json:
        emit_json({"job": handle.id, **to_builtins(now)})
        return
    lines = [f"{handle.id}: autoscaling is {now.mode}" + (f", and paused ({now.paused})" if now.paused else "")]
    if now.decision is not None:
        how = "under way" if now.under_way else "suggested"
        lines.append(f"decision {now.decision} is {how}: {now.what}")
    click.echo("\n".join(map(cleaned, lines)))
