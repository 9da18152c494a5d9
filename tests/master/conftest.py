"""Masters that run for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.master.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[Rig] = []

    def make(directory: Path = tmp_path, **options: Any) -> Rig:
        made.append(Rig(directory, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
