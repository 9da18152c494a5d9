"""``tui``: jobs, and the decisions that are made for them, on a screen that stays up to date."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from dlrover_lite.errors import JobError, UsageError

if TYPE_CHECKING:
    from dlrover_lite.tui.app import TuiApp
    from dlrover_lite.tui.source import Source

__all__ = ["tui"]

_WIDTH = 160
"""Characters of a line where there is no terminal to ask."""


@click.command(short_help="Watch jobs and decisions as they are made.")
@click.option("--job", metavar="JOB", help='Begin with this job: its id, the start of one, or "last".')
@click.option("--readonly", is_flag=True, help="Without the keys that change something.")
@click.option("--once", is_flag=True, help="Print one frame as plain text, and end; needs no terminal.")
def tui(job: str | None, readonly: bool, once: bool) -> None:
    """Watch all jobs of this machine, and one of them in detail: how fast it is, what its nodes use, which decisions were made and
    what they brought. ? lists the keys, q leaves.

    It needs textual: pip install 'dlrover-lite[tui]'. --once doesn't. With NO_COLOR set it has no colours.

    Exit codes: 0 done; 1 no such job; 2 no terminal, or no textual.
    """
    from dlrover_lite.tui.live import LiveSource

    source = LiveSource()
    if once:
        from dlrover_lite.cli.output import terminal_width
        from dlrover_lite.tui.once import frame

        name = _found(source, job) if job is not None else None
        click.echo(frame(source, job=name, width=terminal_width() or _WIDTH), nl=False)
        source.close()
        return
    _check_terminal()
    app_class = _app_class()
    from dlrover_lite.tui.actions import LocalActions

    first = _found(source, job) if job is not None else None
    app_class(source, job=first, actions=None if readonly else LocalActions(source.look_again)).run()


def _found(source: Source, reference: str) -> str:
    """Raises JobError naming the nearest ids."""
    from dlrover_lite.tui.commands import job_named

    try:
        return job_named(reference, tuple(source.jobs().jobs))
    except UsageError as error:
        raise JobError(error.message, hint="All: dlrover-lite tui --once") from error


def _check_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("There is no terminal to show anything on", hint="One frame as text: dlrover-lite tui --once")


def _app_class() -> type[TuiApp]:
    """Raises UsageError where textual isn't installed."""
    if find_spec("textual") is None:
        raise UsageError(
            "The TUI needs textual, which isn't installed.",
            hint="Run: pip install 'dlrover-lite[tui]'. One frame as text needs nothing: dlrover-lite tui --once",
        )
    from dlrover_lite.tui.app import TuiApp

    return TuiApp
