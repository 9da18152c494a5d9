"""``dlrover-lite doctor``: whether this machine can run jobs, and what to do where it can't."""

from __future__ import annotations

import click

from dlrover_lite.cli.checks import show_checks

__all__ = ["doctor"]


@click.command(short_help="Check whether this machine can run jobs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> int:
    """Check whether this machine can run jobs: a line for each check, and what to do where something is wrong.

    A warning is something that jobs have to do without. Exit codes: 0 a job can run; 1 there is a problem.
    """
    from dlrover_lite.backends.local.doctor import diagnose

    return show_checks(diagnose(), as_json=as_json)
