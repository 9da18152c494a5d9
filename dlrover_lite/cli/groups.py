"""Command groups that import a command's module only when that command is used, and name the nearest known command."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import click

__all__ = ["CommandGroup", "LazyCommand", "LazyGroup"]


class LazyCommand(NamedTuple):
    """Module and attribute of a command (``module:attribute``), and its short help, which must equal the command's own."""

    target: str
    help: str


class CommandGroup(click.Group):
    """A group that prints its help (exit code 0) when no command is given."""

    def __init__(self, *args: object, **settings: object) -> None:
        settings["no_args_is_help"] = False  # click would exit with 2
        super().__init__(*args, **settings)  # type: ignore[arg-type]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-") or name in self.list_commands(ctx) or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        close = get_close_matches(name.lower(), self.list_commands(ctx), n=1, cutoff=0.5)
        known = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(self.list_commands(ctx))}."
        raise click.UsageError(f"No such command {name!r}; {known}", ctx)


class LazyGroup(CommandGroup):
    """``lazy`` names the commands in the order in which ``--help`` shows them."""

    def __init__(self, *args: object, lazy: dict[str, LazyCommand], **settings: object) -> None:
        super().__init__(*args, **settings)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name].target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}:{attribute} is no command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.lazy.items()])
