"""``top``: one job in a small terminal, kept up to date."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from dlrover_lite.cli.commands.tui import job_found
from dlrover_lite.cli.options import MOST_SECONDS, Number, job_argument
from dlrover_lite.cli.output import terminal_width
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.words import duration

if TYPE_CHECKING:
    from dlrover_lite.cli.screen import Screen
    from dlrover_lite.tui.model import JobDetail
    from dlrover_lite.tui.sources.poller import Feed
    from dlrover_lite.tui.text import Line

__all__ = ["top"]

_WIDTH, _HEIGHT = 100, 200
"""Width and height where there is no terminal."""
_STALE_SECONDS = 3.0


@click.command(short_help="Watch one job in a small terminal.")
@job_argument
@click.option(
    "--interval", type=Number(0.1, MOST_SECONDS), default=1.0, metavar="SECONDS", help="Between two looks (default: 1)."
)
def top(job: str, interval: float) -> int:
    """Show how JOB gets on, in a screenful that stays up to date: progress, samples/s, decisions, nodes. JOB is an id, the start of
    one, or "last" (default). q or ctrl-C leaves; it ends by itself when the job does.

    It needs neither textual nor much room: 60 x 12 are enough. NO_COLOR is honoured. Without a terminal it prints one frame, and ends.

    Exit codes: 0 the job succeeded, or goes on; 1 it failed, was stopped or lost, or there is no such job.
    """
    from dlrover_lite.cli.screen import is_screen
    from dlrover_lite.tui.sources.live import LiveSource

    source = LiveSource()
    name = job_found(source, job)
    if not is_screen(sys.stdout):
        detail = _there(source.whole_job(name), name)
        source.close()
        return _print_all(detail)
    from dlrover_lite.cli.screen import Screen
    from dlrover_lite.tui.sources.poller import Feed

    with Screen(sys.stdout, sys.stdin) as screen:
        feed = Feed(lambda: source.job(name), screen.wake, name="job", period_seconds=interval)
        feed.start()
        try:
            ended = _watch(screen, feed, name)
        finally:
            if feed.stop():
                source.close()
    return 0 if ended is None else _print_end(ended)


def _there(detail: JobDetail | None, name: str) -> JobDetail:
    if detail is None:
        raise JobError(f"{name} is gone: its files, and what the brain knew of it, were removed")
    return detail


def _watch(screen: Screen, feed: Feed[JobDetail | None], name: str) -> JobDetail | None:
    """Watch a job. Return how it ended; None: the person left."""
    from dlrover_lite.tui.pages.top_page import screenful
    from dlrover_lite.tui.text import line

    while True:
        detail = feed.take()
        if feed.age_seconds is not None and not feed.problem:
            detail = _there(detail, name)
        if detail is not None and detail.row.over:
            return detail
        width, height = screen.size
        if detail is None:
            screen.draw([line((name, "title"), ("  reading…", "dim")), _stale(feed, None)])
        else:
            last = line((f"{time.strftime('%H:%M:%S')}  q leaves", "dim"))
            screen.draw(screenful(detail, width, height, time.time(), stale=_stale(feed, detail), last=last))
        if screen.wait(1.0) in ("q", "Q"):
            return None


def _stale(feed: Feed[JobDetail | None], detail: JobDetail | None) -> Line:
    """Say what is old, and why; nothing while all is well."""
    from dlrover_lite.tui.text import line

    age = feed.age_seconds
    if feed.problem or (age is not None and age > max(_STALE_SECONDS, 2 * feed.period_seconds)):
        why = f": {feed.problem}" if feed.problem else ""
        return line((f"! as of {duration(age)} ago{why}" if age is not None else f"! {feed.problem}", "bad"))
    if detail is not None and (problem := detail.problem) is not None:
        ago = duration(time.time() - problem.since)
        return line((f"! what {problem.what} says is as of {ago} ago: {problem.why}", "bad"))
    return ()


def _print_all(detail: JobDetail) -> int:
    from dlrover_lite.tui.pages.top_page import screenful
    from dlrover_lite.tui.table import text_of

    click.echo(text_of(screenful(detail, _WIDTH, _HEIGHT, time.time())), nl=False)
    return _exit_code(detail)


def _print_end(detail: JobDetail) -> int:
    """Print what stays of the screen on the terminal: its headline."""
    from dlrover_lite.cli.screen import coloured
    from dlrover_lite.tui.pages.job_page import headline

    for one in headline(detail, terminal_width() or _WIDTH):
        print(coloured(one).rstrip())
    return _exit_code(detail)


def _exit_code(detail: JobDetail) -> int:
    return int(detail.row.over and detail.row.state != "succeeded")
