"""docs/cli.md, made from the commands' own help: ``python -m dlrover_lite.cli.reference > docs/cli.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec

import click

from dlrover_lite.cli.main import cli

__all__ = ["reference", "walk"]

WIDTH = 80
_HEAD = """\
# The command line

<!-- Made by `python -m dlrover_lite.cli.reference > docs/cli.md`; a test compares the two. Edit the commands' help instead. -->

Data goes to stdout, progress and errors to stderr: of what takes long how much is done, how fast, and how long the rest takes, on a
terminal as a bar, in a pipe as a line every ten seconds. Tables fit the terminal, and are complete in a pipe; `NO_COLOR` is
honoured. Exit codes: 0 done; 1 failed; 2 a recipe, command line or system that can't work; 70 a bug of dlrover-lite; 130
interrupted. `DLROVER_LITE_HOME` moves everything that dlrover-lite keeps (jobs, caches, history) to another directory;
`DLROVER_LITE_BRAIN` says where the brain is that jobs report to: `daemon` (the default), `embedded`, or `off`.
"""


def walk() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command with its full name, groups before what is in them; commands of absent modules are left out."""
    root = click.Context(cli, info_name="dlrover-lite", terminal_width=WIDTH, **cli.context_settings)
    yield from _walk(cli, root, "dlrover-lite")


def _walk(
    command: click.Command, context: click.Context, name: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    yield name, command, context
    if not isinstance(command, click.Group):
        return
    lazy = getattr(command, "lazy", {})
    for short in command.list_commands(context):
        if short in lazy and find_spec(lazy[short].target.partition(":")[0]) is None:
            continue
        child = command.get_command(context, short)
        if child is not None and not child.hidden:
            below = click.Context(child, info_name=short, parent=context, **child.context_settings)
            yield from _walk(child, below, f"{name} {short}")


def reference() -> str:
    """Return the text of docs/cli.md."""
    parts = [_HEAD]
    for name, command, context in walk():
        parts.append(f"## {name}\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(reference())
