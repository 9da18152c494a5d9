"""Directories of their own for the tests that start jobs: ``from tests.directories import own_directories`` in a conftest."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["own_directories"]


@pytest.fixture(scope="module", autouse=True)
def own_directories() -> Iterator[Path]:
    """State and runtime directories for one file of tests; short, as socket paths must be."""
    directory = Path(tempfile.mkdtemp(prefix="dlt-"))
    runtime = directory / "r"
    runtime.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLROVER_LITE_HOME", str(directory / "h"))
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        yield directory
    shutil.rmtree(directory)
