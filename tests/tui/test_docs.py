"""docs/tui.md lists the keys and commands that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlrover_lite.tui.commands import COMMANDS
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
def test_commands_are_documented(command: object) -> None:
    assert f":{getattr(command, 'name', '')}" in TEXT
