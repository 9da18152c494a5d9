"""Every run of the tests has its own home, runtime and temp directory, and fails if it leaves anything behind."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from tests.leftovers import Session

ROOT = Path(__file__).resolve().parent.parent
_session = pytest.StashKey[Session]()


def pytest_configure(config: pytest.Config) -> None:
    """Before anything of ours is imported: kernels read the environment when they are, and torch its thread counts."""
    if _session in config.stash:
        return
    config.stash[_session] = Session()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("NUMBA_CACHE_DIR", str(_kernel_cache()))
    # torch's own optimizers, which some tests compare with, make this directory, by default a temporary one
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".home" / "test-torch"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Reports what was left as one more failed test, so that the closing line counts it."""
    left = session.config.stash[_session].leftovers()
    if not left:
        return
    report = pytest.TestReport(
        nodeid="tests/conftest.py::nothing_is_left_behind",
        location=("tests/conftest.py", None, "nothing_is_left_behind"),
        keywords={},
        outcome="failed",
        longrepr="The tests left behind:\n" + "\n".join(f"  {line}" for line in left),
        when="teardown",
    )
    session.config.hook.pytest_runtest_logreport(report=report)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    if _session in config.stash:
        config.stash[_session].close()


def _kernel_cache() -> Path:
    """Compiled kernels, kept between runs. numba doesn't notice when a kernel that another one calls has changed, so
    the directory is named by the contents of all files with kernels; that of another state is dropped."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "dlrover_lite").rglob("*.py")):
        content = path.read_bytes()
        if b"kernel" in content:
            digest.update(content)
    kept = ROOT / ".home" / "test-kernels"
    current = kept / digest.hexdigest()[:16]
    for old in kept.glob("*"):
        if old != current:
            shutil.rmtree(old, ignore_errors=True)
    return current


@pytest.fixture(scope="session")
def criteo_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Criteo TSV file as published: 999 real lines where they are at hand, else generated ones with the same traits."""
    real = ROOT.parent / "shared" / "data" / "criteo_sample.tsv"
    if real.exists():
        return real
    from dlrover_lite.data.synthetic import write_tsv
    from dlrover_lite.recipe.schema import SyntheticData

    path = tmp_path_factory.mktemp("criteo") / "criteo_sample.tsv"
    write_tsv(path, SyntheticData(samples=999), samples=999, gz=False)
    return path
