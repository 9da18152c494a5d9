"""Local time is UTC, and nothing that runs these tests has an influence on colours."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True, scope="session")
def pictures_are_svg() -> None:
    """pytest-textual-snapshot names the suffix as older versions of syrupy had it."""
    from pytest_textual_snapshot import SVGImageExtension

    SVGImageExtension.file_extension = "svg"
