"""``dlrover-lite logs``: what a job's processes wrote, each line with the process's name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dlrover_lite.cli.options import MOST_NUMBER, job_argument
from dlrover_lite.core.errors import UsageError

if TYPE_CHECKING:
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.jobs.backend import Log

__all__ = ["logs"]

POLL_SECONDS = 0.25
_ROLES = {"keeper": ("keeper", "template"), "master": ("master",), "ps": ("ps-",), "worker": ("worker-",)}
"""Beginnings of the names of logs, by role."""
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")


@click.command(short_help="Print what a job's processes wrote.")
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on printing until the job ends.")
@click.option("--role", type=click.Choice(["ps", "worker", "master", "keeper"]), help="Only processes of this role.")
@click.option("--node", metavar="ID", help="Only this process, such as worker-0.")
@click.option(
    "-n", "--lines", type=click.IntRange(0, MOST_NUMBER), help="At most this many lines of each process, the last ones."
)
def logs(job: str, follow: bool, role: str | None, node: str | None, lines: int | None) -> None:
    """Print what the processes of JOB wrote. JOB is an id, the start of one, or "last", which is the default.

    Processes are printed one after the other; with -f, new lines are printed as they come.
    """
    from dlrover_lite.client.handle import JobHandle

    handle = JobHandle.find(job)
    if node is not None and not follow:
        _check_node(handle, node)
    printer = _Printer()
    known: dict[str, Log] = {}
    ended = not follow
    while True:
        # The order matters: what was written before the end must still be read after it.
        for name in sorted(_wanted(handle, role, node), key=_order):
            if name not in known:
                known[name] = handle.log(name, last_lines=lines)
            for line in known[name].new_lines(at_end=ended):
                printer.print(name, line)
        lines = None  # of logs that appear later nothing is old
        sys.stdout.flush()
        if ended:
            if node is not None and not known:
                _check_node(handle, node)
            return
        try:
            handle.wait(POLL_SECONDS, progress=False)
            ended = True
        except TimeoutError:
            continue


def _wanted(handle: JobHandle, role: str | None, node: str | None) -> list[str]:
    names = [name for name in handle.log_names() if node in (None, name)]
    return [name for name in names if role is None or name.startswith(_ROLES[role])]


def _check_node(handle: JobHandle, node: str) -> None:
    from difflib import get_close_matches

    known = sorted(handle.log_names(), key=_order)
    if node not in known:
        close = get_close_matches(node, known, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(known)}."
        raise UsageError(f"{handle.id} has no log of {node!r}.", hint=hint if known else "")


def _order(name: str) -> tuple[int, str, int]:
    """Return a sort key: keeper, template, master, then nodes by role and number."""
    first = ("keeper", "template", "master")
    stem, _, number = name.rpartition("-")
    if name in first:
        return first.index(name), "", 0
    return len(first), stem, int(number) if number.isdecimal() else 0


class _Printer:
    def __init__(self) -> None:
        import os

        self._terminal = sys.stdout.isatty()
        self._coloured = self._terminal and not os.environ.get("NO_COLOR")
        self._colours: dict[str, str] = {}
        self._width = len("worker-00")

    def print(self, name: str, line: str) -> None:
        line = line.rstrip("\r")
        if self._terminal:  # what a log holds must not move the cursor
            line = "".join(char if char.isprintable() or char == "\t" else " " for char in line)
        prefix = f"{name:<{self._width}} |"
        if self._coloured:
            colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
            prefix = click.style(prefix, fg=colour)
        sys.stdout.write(f"{prefix} {line}\n")
