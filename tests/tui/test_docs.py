"""docs/tui.md lists the keys and commands that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlrover_lite.tui.commands import COMMANDS, Command
from dlrover_lite.tui.keys import SCREENS, Key

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "tui.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("key", [key for keys in SCREENS.values() for key in keys], ids=lambda key: key.label)
def test_keys_are_documented(key: Key) -> None:
    assert f"| `{key.label}` | {key.what} |" in TEXT


def test_no_other_keys_are_documented() -> None:
    section = TEXT.partition("## Keys")[2].partition("With the mouse")[0]
    listed = {
        line.split("|")[2].strip().strip("`") for line in section.splitlines() if line.count("|") == 4 and "`" in line
    }
    assert listed == {key.label for keys in SCREENS.values() for key in keys}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.name)
def test_commands_are_documented(command: Command) -> None:
    row = next(line for line in TEXT.splitlines() if re.match(rf"\| .*`:{command.name}[ `]", line))
    assert command.acts or all(f"`:{name}`" in row.split("|")[2] for name in command.aliases)


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.acts], ids=lambda one: one.name)
def test_short_names_of_commands_that_act_are_documented(command: Command) -> None:
    assert all(f"`:{name}`" in TEXT for name in command.aliases)
