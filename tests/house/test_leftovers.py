"""The check at the end of a run of the tests finds what the tests left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlrover_lite.backends.local.limits.mounts import hierarchies
from tests.house.sources import ROOT

CONFTEST = """
from pathlib import Path

import tests.leftovers

tests.leftovers.SHARED_MEMORY = Path(__file__).parent / "shm"
tests.leftovers.PATIENCE_SECONDS = 1.0
pytest_plugins = ["tests.conftest"]
"""

LEAVES = {
    "a child": ("subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])", "process"),
    "one that cut loose": (
        "subprocess.run('setsid sleep 60 </dev/null >/dev/null 2>&1 &', shell=True, check=True)",
        "process",
    ),
    "shared memory": ("(Path(__file__).parent / 'shm' / 'psm_1').touch()", "shared memory"),
    "a socket": (
        "socket.socket(socket.AF_UNIX).bind(os.environ['XDG_RUNTIME_DIR'] + '/ps.sock')",
        "in the runtime directory",
    ),
    "a control group": (
        "next(g for h in hierarchies() for g in h.up() if os.access(g, os.W_OK)).joinpath('dlrover-lite-t-999999999').mkdir()",
        "control group",
    ),
    "a temp file": ("tempfile.mkstemp()", "temp file"),
}


def _run(directory: Path, body: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "shm").mkdir()
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_inner.py").write_text(
        "from dlrover_lite.backends.local.limits.mounts import hierarchies\n"
        f"import os, socket, subprocess, sys, tempfile\nfrom pathlib import Path\n\ndef test_inner():\n    {body}\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider", *options],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("body", "what"), LEAVES.values(), ids=list(LEAVES))
def test_what_is_left_fails_the_run(tmp_path: Path, body: str, what: str) -> None:
    if what == "control group" and not any(os.access(group, os.W_OK) for h in hierarchies() for group in h.up()):
        pytest.skip("no control group can be made here")
    done = _run(tmp_path, body)
    assert done.returncode == 1, done.stdout
    assert f"\n  {what}" in done.stdout
    assert "1 passed, 1 error" in done.stdout.splitlines()[-1]


def test_a_tidy_run_passes(tmp_path: Path) -> None:
    done = _run(tmp_path, "subprocess.run([sys.executable, '-c', ''], check=True)")
    assert done.returncode == 0, done.stdout


def test_what_one_of_several_processes_leaves_fails_the_run(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    bodies, said = zip(*(LEAVES[what] for what in ("one that cut loose", "shared memory", "a temp file")), strict=True)
    done = _run(tmp_path, "\n    ".join(bodies), "-n", "2")
    assert done.returncode == 1, done.stdout
    assert all(f"\n  {what}" in done.stdout for what in said), done.stdout
    assert "1 passed, 1 error" in done.stdout.splitlines()[-1]


def test_several_tidy_processes_have_directories_of_their_own(tmp_path: Path) -> None:
    """Directly under the temp directory: sockets' paths are short."""
    pytest.importorskip("xdist")
    (tmp_path / "seen").mkdir()
    body = "(Path(__file__).parent / 'seen' / str(os.getpid())).write_text(os.environ['TMPDIR'])"
    (tmp_path / "test_more.py").write_text(f"import os\nfrom pathlib import Path\n\ndef test_more():\n    {body}\n")
    done = _run(tmp_path, body, "-n", "2")
    assert done.returncode == 0, done.stdout
    seen = {path.read_text() for path in (tmp_path / "seen").iterdir()}
    assert len(seen) == 2
    assert {Path(name).parent.parent for name in seen} == {Path("/tmp")}


def test_several_processes_draw_the_same_parameters(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_drawn.py").write_text(
        "import random\nimport pytest\n\n"
        "@pytest.mark.parametrize('seed', [random.randrange(1 << 60)])\ndef test_drawn(seed):\n    pass\n"
    )
    done = _run(tmp_path, "pass", "-n", "2")
    assert done.returncode == 0, done.stdout
