"""What docs/json.md says of each command's object."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_TEXT = (Path(__file__).resolve().parents[2] / "docs" / "json.md").read_text(encoding="utf-8")


def fields(heading: str) -> set[str]:
    """Those in the table under ``## run`` or ``### nodes``."""
    section = re.split(r"^#", _TEXT.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    found = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert found, heading
    return found


def check(heading: str, value: dict[str, Any]) -> None:
    assert set(value) == fields(heading)
