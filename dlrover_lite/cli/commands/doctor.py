"""``dlrover-lite doctor``: whether this machine can run jobs, and what to do where it can't."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from dlrover_lite.cli.output import emit_json, hanging, terminal_width

if TYPE_CHECKING:
    from dlrover_lite.backends.local.doctor import Check

__all__ = ["doctor"]

EXIT_PROBLEM = 1
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
_WIDTHS = len("warning"), len("leftovers")


@click.command(short_help="Check whether this machine can run jobs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> int:
    """Check whether this machine can run jobs: a line for each check, and what to do where something is wrong.

    A warning is something that jobs have to do without. Exit codes: 0 a job can run; 1 there is a problem.
    """
    from dlrover_lite.backends.local.doctor import diagnose

    checks = diagnose()
    ok = not any(check.level == "problem" for check in checks)
    if as_json:
        emit_json({"ok": ok, "checks": checks})
    else:
        for line in _lines(checks, terminal_width()):
            click.echo(line)
    return 0 if ok else EXIT_PROBLEM


def _lines(checks: list[Check], width: int | None) -> Iterator[str]:
    for check in checks:
        head = f"{check.level:<{_WIDTHS[0]}}  {check.name:<{_WIDTHS[1]}}  "
        first, *rest = hanging(head, check.text, width)
        yield _coloured(check.level, first)
        yield from rest
        if check.hint:
            yield from hanging(" " * len(head), check.hint, width)


def _coloured(level: str, line: str) -> str:
    import os

    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return line
    return click.style(line[: len(level)], fg=_COLOURS[level]) + line[len(level) :]
