"""``dlrover-lite fetch``: the files of a cluster's job, on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from dlrover_lite.cli.options import job_argument
from dlrover_lite.cli.output import TerminalDisplay, note
from dlrover_lite.core.words import plural

__all__ = ["fetch"]


@click.command(short_help="Copy the files of a cluster's job to this machine.")
@job_argument
@click.option(
    "--to", "target", type=click.Path(), metavar="DIR", help="Directory for them (default: one called as the job)."
)
def fetch(job: str, target: str | None) -> None:
    """Copy all files of JOB to this machine, whether it runs or has ended: logs, checkpoints, evaluations, and the exported model. JOB is
    an id, the start of one, or "last" (default). What was copied before and hasn't changed isn't copied again.
    """
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.client.job_history import merge
    from dlrover_lite.jobs.backend import LOCAL

    handle = JobHandle.find(job)
    if handle.source == LOCAL:
        click.echo(f"{handle.id} is on this machine already: {handle.directory}")
        return
    from dlrover_lite.backends.k8s.jobs.kube_jobs import KubeJobs

    assert isinstance(handle.backend, KubeJobs)
    directory = Path(target or handle.id).expanduser().absolute()
    merge(handle, note)
    with TerminalDisplay().steps() as steps:
        count = handle.backend.fetch(handle.id, directory, steps)
    click.echo(f"{plural(count, 'file')} of {handle.id} in {directory}")
