"""``suspend`` and ``resume``: a job gives back what it has for a while."""

from __future__ import annotations

import click

from dlrover_lite.cli.options import MOST_NUMBER, job_argument
from dlrover_lite.cli.output import note
from dlrover_lite.core.words import count, plural

__all__ = ["resume", "suspend"]


@click.command(short_help="Stop a job to go on with it later.")
@job_argument
def suspend(job: str) -> None:
    """Take a checkpoint of JOB, and once that is durable end all that runs of it: on a cluster none of its pods is left, only its
    storage. JOB is an id, the start of one, or "last" (default). "dlrover-lite resume JOB" goes on from there: no sample is lost, and
    none counts twice.

    Exit codes: 0 it is suspended, or has ended meanwhile; 1 it takes no checkpoint, or that can't be written: the job goes on.
    """
    from dlrover_lite.cli import waiting
    from dlrover_lite.client.handle import JobHandle

    handle = JobHandle.find(job)
    if handle.known().over:
        click.echo(f"{handle.id} has ended already ({handle.state()}).")
        return
    note(f"Suspending {handle.id}")
    result = waiting.ended(handle, handle.suspend)
    if result.state != "suspended":
        click.echo(f"{handle.id} has {result.state} meanwhile.")
        return
    status = handle.status()
    done = f" after {count(status.samples)} of {plural(status.total_samples, 'sample')}" if status.samples else ""
    click.echo(f"{handle.id} is suspended{done}.")
    note(result.hint)


@click.command(short_help="Go on with a job that was suspended or stopped.")
@job_argument
@click.option("--cut", type=click.IntRange(1, MOST_NUMBER), help="From this checkpoint instead of the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def resume(job: str, cut: int | None, as_json: bool) -> None:
    """Go on with JOB where it was suspended, stopped or has failed: from its newest checkpoint. JOB is an id, the start of one, or
    "last" (default). It runs by itself from then on; "dlrover-lite run --resume JOB" stays and shows how it gets on.
    """
    from dlrover_lite.cli.commands.job.run import say_detached
    from dlrover_lite.client.handle import resume as go_on

    say_detached(go_on(job, cut=cut, detach=True), as_json)
