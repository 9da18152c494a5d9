"""Directories of their own for the tests that start jobs: ``from tests.directories import own_directories`` in a conftest. And no job
goes on after its test: ``from tests.directories import no_job_goes_on``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["no_job_goes_on", "own_directories"]


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


@pytest.fixture(autouse=True)
def no_job_goes_on(own_directories: Path) -> Iterator[None]:
    """A job that its test has left is ended, and named: it would take the cores from the tests that follow."""
    yield
    from dlrover_lite.client.handle import list_jobs

    left = [handle for handle in list_jobs() if handle.state() in ("starting", "running")]
    for handle in left:
        handle.stop(kill=True)
        handle.wait(60)
    assert not left, f"still running: {', '.join(handle.id for handle in left)}"
