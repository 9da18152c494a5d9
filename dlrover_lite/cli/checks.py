"""How checks are printed: a line for each, coloured on a terminal, with what to do below."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from dlrover_lite.cli.output import emit_json, hanging, terminal_width

if TYPE_CHECKING:
    from dlrover_lite.backends.checks import Check

__all__ = ["EXIT_PROBLEM", "show_checks"]

EXIT_PROBLEM = 1
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
_WIDTHS = len("warning"), len("leftovers")


def show_checks(checks: Iterable[Check], *, as_json: bool) -> int:
    """Print checks as they come, or all of them as one JSON object; return the exit code. What several in a row say is to be done is said
    once, after them."""
    shown: list[Check] = []
    width = None if as_json else terminal_width()
    for check in checks:
        if not as_json:
            if shown and shown[-1].hint != check.hint:
                _show_hint(shown[-1], width)
            for line in _lines(check, width):
                click.echo(line)
        shown.append(check)
    if shown and not as_json:
        _show_hint(shown[-1], width)
    ok = not any(check.level == "problem" for check in shown)
    if as_json:
        emit_json({"ok": ok, "checks": shown})
    return 0 if ok else EXIT_PROBLEM


def _lines(check: Check, width: int | None) -> Iterator[str]:
    first, *rest = hanging(_head(check), check.text, width)
    yield _coloured(check.level, first)
    yield from rest


def _show_hint(check: Check, width: int | None) -> None:
    if check.hint:
        for line in hanging(" " * len(_head(check)), check.hint, width):
            click.echo(line)


def _head(check: Check) -> str:
    return f"{check.level:<{_WIDTHS[0]}}  {check.name:<{_WIDTHS[1]}}  "


def _coloured(level: str, line: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return line
    return click.style(line[: len(level)], fg=_COLOURS[level]) + line[len(level) :]
