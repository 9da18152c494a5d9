"""Every process that runs tests has its own home, runtime and temp directory, and the run fails if they leave anything behind.

``make test`` has two such processes (pytest-xdist), and a third that gives them the tests. Without ``-n`` one process is all of them.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlrover_lite.core.kernels.sources import digest
from tests.compiled_once import compile_kernels, compiled_by_one, start_compiling
from tests.leftovers import Machine, Session

if TYPE_CHECKING:
    from tests.forked_keepers import Keepers

ROOT = Path(__file__).resolve().parent.parent
_session = pytest.StashKey[Session]()
"""Of a process that runs tests."""
_machine = pytest.StashKey[Machine]()
"""Of the process that ends last."""
_left = pytest.StashKey[list[str]]()
"""What the processes that ran tests have left."""
_compiling = pytest.StashKey[subprocess.Popen[bytes]]()
"""Of the process that gives others the tests."""

TRAINING = ("end_to_end", "convergence")
"""Directories of tests whose jobs use all cores: many of one at the same time would disturb each other."""
HALVES = {"end_to_end": "test_o", "convergence": "test_o", "k8s": "test_m"}
"""Directories whose tests are run by two processes at most, and the name from which on a file is in the second half, by the time that they
take. Processes that run tests of clusters each have an API server."""


def pytest_configure(config: pytest.Config) -> None:
    """Before anything of ours is imported: kernels read the environment when they are, and torch its thread counts."""
    if _left in config.stash:
        return
    config.stash[_left] = []
    _heed_signals()
    _keep_bytecode()
    if _is_worker(config) or config.getoption("dist", "no") == "no":
        config.stash[_session] = Session()
    if not _is_worker(config):
        config.stash[_machine] = Machine()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("NUMBA_CACHE_DIR", str(_kernel_cache()))
    # torch's own optimizers, which some tests compare with, make this directory, by default a temporary one
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".home" / "test-torch"))
    if not _is_worker(config) and config.getoption("dist", "no") != "no":
        directory = Path(os.environ["NUMBA_CACHE_DIR"])
        config.stash[_compiling] = start_compiling(directory, "simulations too")  # while they collect their tests
    if config.pluginmanager.hasplugin("hypothesispytest"):
        _no_deadlines()


def pytest_runtestloop(session: pytest.Session) -> None:
    if _is_worker(session.config):
        compile_kernels(Path(os.environ["NUMBA_CACHE_DIR"]))


def _heed_signals() -> None:
    """What a shell, or nohup, starts in the background ignores some, and so would all that tests start."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def _keep_bytecode() -> None:
    """Have each file of ours compiled once, whatever the environment says: a job has seven processes that import it, and each process
    that runs tests imports, and rewrites, all of them."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Parameters drawn at random, one after the other, are the same in all processes of a run; in another run they are others."""
    if _is_worker(session.config):
        random.seed(session.config.workerinput["testrunuid"])  # type: ignore[attr-defined]
    gc.disable()  # until all is imported
    with compiled_by_one(ROOT):
        return (yield)


def pytest_collection_finish() -> None:
    """What was imported stays, with the little of it that is garbage: no collection needs to look at it. And with Python's own 700 objects
    from one collection to the next, a fifth of the time of a test of the terminal application would go to them."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes, some begin with what takes longest."""
    if _is_worker(config):
        items.sort(key=lambda item: Path(item.nodeid.partition("::")[0]).parent.name not in TRAINING)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _share
    return scheduler


def _share(nodeid: str) -> str:
    """Tests of the same share are run by the same process, one after the other: those of a file, or of half of some directories. (All of
    ``end_to_end`` one after the other would be what ends last.)"""
    file = Path(nodeid.partition("::")[0])
    if (second := HALVES.get(file.parent.name)) is None:
        return str(file)
    return f"{file.parent.name} {'first' if file.name < second else 'second'} half"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """One of several processes that ran tests has ended. (If it has crashed, xdist reports that as a failure.)"""
    node.config.stash[_left].extend(getattr(node, "workeroutput", {}).get("left", []))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Reports what was left as one more failed test, so that the closing line counts it. Plugins tidy up before."""
    config = session.config
    left = config.stash[_left]
    if _session in config.stash:
        left.extend(config.stash[_session].leftovers())
    if _is_worker(config):
        config.workeroutput["left"] = left  # type: ignore[attr-defined]
        return
    left.extend(config.stash[_machine].leftovers())
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
    config.hook.pytest_runtest_logreport(report=report)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    if _compiling in config.stash:
        config.stash[_compiling].wait()
    if _session in config.stash:
        config.stash[_session].close()


def _no_deadlines() -> None:
    """For a single example, which hypothesis has unless it is told otherwise: on a busy machine any takes long now and then."""
    from hypothesis import HealthCheck, settings

    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")


def _is_worker(config: pytest.Config) -> bool:
    """Whether this is one of several processes that run tests."""
    return hasattr(config, "workerinput")


def _kernel_cache() -> Path:
    """Compiled kernels, kept between runs. They are known by their sources; a directory named by those of all of them lets that of
    another state be dropped."""
    sources = (ROOT / "dlrover_lite").rglob("*.py")
    current_name = digest(path for path in sources if b"\n@kernel" in path.read_bytes())[:16]
    kept = ROOT / ".home" / "test-kernels"
    current = kept / current_name
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


@pytest.fixture(scope="session")
def keepers() -> Iterator[Keepers]:
    """The process that keepers of the tests' own jobs are forked from, where their directory's conftest has it so."""
    from tests.forked_keepers import Keepers

    forks = Keepers()
    yield forks
    forks.close()
