"""Too few processes (``ulimit -u``) for a user who isn't root (the kernel heeds it for no other): said in words, nothing left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.repository.sources import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]
USER = 1_000_000 + os.getpid()
"""Nobody else's number."""
RECIPE = """
version: 1
name: j
model: dcn
data: {format: synthetic, samples: 2000}
export: {format: none}
resources:
  ps: {count: 1, cores: 0.5, memory: 256MiB}
  worker: {count: 1, cores: 0.5, memory: 512MiB}
"""
BECOME = """
if [ -n "$CLOSED" ]; then  # as root's home is: the interpreter in it is shown to all, in this namespace
    mount --rbind "$PYTHON" "$HOME/python"
    mount -t tmpfs -o mode=755 none "$CLOSED"
    mkdir -p "$PYTHON"
    mount --rbind "$HOME/python" "$PYTHON"
fi
limit=$1; shift
exec setpriv --reuid="$USER" --regid="$USER" --clear-groups prlimit --nproc="$limit:$limit" -- "$@"
"""
UNCHECKED = """
import sys
from dlrover_lite.cli.main import main
from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs

LocalJobs.dry_run = lambda self, recipe: None
sys.exit(main(sys.argv[1:]))
"""
"""As where other programs have taken what was free when it was looked at."""


def _closed() -> Path | None:
    """The uppermost directory around this Python that others may not enter."""
    around = reversed(Path(sys.base_prefix).parents)
    return next((directory for directory in around if not directory.stat().st_mode & 0o001), None)


@pytest.fixture
def other_user() -> Iterator[Run]:
    """Runs Python as another user, who may have so many processes and threads; skips the test where that isn't possible."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "prlimit"))):
        pytest.skip("only root can become another user")
    home = Path(tempfile.mkdtemp(prefix="dlu-", dir="/tmp"))
    for name in ("python", "runtime", "temp"):
        (home / name).mkdir(mode=0o700)
    (home / "job.yaml").write_text(RECIPE)
    for path in (home, *home.iterdir()):
        os.chown(path, USER, USER)
    closed = _closed()
    environment = {
        **{"PATH": os.environ["PATH"], "HOME": str(home), "USER": str(USER), "PYTHONPATH": str(ROOT)},
        **{"CLOSED": str(closed or ""), "PYTHON": sys.base_prefix, "PYTHONDONTWRITEBYTECODE": "1"},
        **{"DLROVER_LITE_HOME": str(home / "home"), "XDG_RUNTIME_DIR": str(home / "runtime")},
        **{"TMPDIR": str(home / "temp"), "DLROVER_LITE_BRAIN": "off", "OPENBLAS_NUM_THREADS": "1"},
    }

    def run(limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        become = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            BECOME,
            "sh",
            str(limit),
            sys.executable,
        ]
        return subprocess.run(
            [*become, *arguments], cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=200
        )

    try:
        if (probe := run(4096, "-c", "import dlrover_lite.cli.main, zmq")).returncode:
            pytest.skip(f"another user can't run this Python: {probe.stderr[-300:]}")
        yield run
        left = [process for process in psutil.process_iter(["uids"]) if process.info["uids"].real == USER]
        _, left = psutil.wait_procs(left, timeout=30)
        for process in left:
            process.kill()
        assert not left
        assert [*(home / "runtime").rglob("*.sock"), *(home / "temp").iterdir()] == []
        assert all(path.with_name("result.json").exists() for path in (home / "home").rglob("job.json"))
    finally:
        shutil.rmtree(home)


def _assert_said(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 1, done
    assert "(ulimit -u)" in done.stderr and "Raise it: ulimit -u 4096" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "bug" not in done.stderr, done.stderr


def test_a_job_of_a_user_who_may_have_too_few_processes_is_refused(other_user: Run) -> None:
    done = other_user(100, "-m", "dlrover_lite", "run", "job.yaml")
    _assert_said(done)
    assert "this user may have 100 processes and threads here" in done.stderr
    assert "a job with 2 nodes needs 112 more" in done.stderr


@pytest.mark.parametrize("limit", [1, 2])
def test_a_job_that_can_start_no_more_processes_says_so(other_user: Run, limit: int) -> None:
    """In the command itself, and in the keeper."""
    _assert_said(other_user(limit, "-c", UNCHECKED, "run", "job.yaml"))
