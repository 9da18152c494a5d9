"""The check at the end of a run of the tests finds what the tests left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from dlrover_lite.backends.host.mounts import hierarchies
from tests import leftovers
from tests.repository.sources import ROOT

RUN = uuid.uuid4().hex[:8]
"""Names the control groups of this run of the tests: others, on the same machine at the same time, neither find nor remove them."""

CONFTEST = f"""
from pathlib import Path

import tests.leftovers

tests.leftovers.SHARED_MEMORY = Path(__file__).parent / "shm"
tests.leftovers.CONTROL_GROUPS = "left-{RUN}-*"
tests.leftovers.PATIENCE_SECONDS = 1.0
pytest_plugins = ["tests.conftest"]
"""

CONTROL_GROUP = (
    "next(g for h in hierarchies() for g in h.up() if os.access(g, 2))"
    f".joinpath('left-{RUN}-999999999').mkdir()  # no process has this number"
)
CUT_LOOSE = "subprocess.run('setsid sleep 600 </dev/null >/dev/null 2>&1 &', shell=True, check=True)"
SHARED_MEMORY = "(Path(__file__).parent / 'shm' / 'psm_1').touch()"
TEMP_FILE = "tempfile.mkstemp()"
LEAVES = {
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])": r"process \d+: .*time\.sleep",
    CUT_LOOSE: r"process \d+: sleep 600",
    SHARED_MEMORY: "shared memory: .*psm_1",
    "socket.socket(socket.AF_UNIX).bind(os.environ['XDG_RUNTIME_DIR'] + '/ps.sock')": r"in the runtime directory: .*ps\.sock",
    CONTROL_GROUP: f"control group: .*left-{RUN}-999999999",
    TEMP_FILE: "temp file: ",
}
"""What a test does, and what is said of it."""


def _run(directory: Path, body: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Of a test that does this."""
    (directory / "shm").mkdir()
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_inner.py").write_text(
        "from dlrover_lite.backends.host.mounts import hierarchies\n"
        f"import os, socket, subprocess, sys, tempfile\nfrom pathlib import Path\n\ndef test_inner():\n    {body}\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider", *options],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def writable_group() -> Path:
    """A control group in which others can be made; skips the test where there is none."""
    found = next((g for h in hierarchies() for g in h.up() if os.access(g, os.W_OK)), None)
    if found is None:
        pytest.skip("no control groups can be made here")
    return found


def _two_processes() -> list[str]:
    pytest.importorskip("xdist")
    return ["-p", "xdist.plugin", "-n", "2"]


def _assert_failed(done: subprocess.CompletedProcess[str], said: list[str]) -> None:
    """For these reasons, each said in a line, and for no other."""
    assert done.returncode == 1, done.stdout
    lines = [line[2:] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert all(sum(bool(re.match(what, line)) for line in lines) == 1 for what in said), done.stdout
    assert len(lines) == len(said), done.stdout
    assert "1 passed, 1 error" in done.stdout.splitlines()[-1]


def test_leftovers_fail_the_test_run(tmp_path: Path) -> None:
    leaves = dict(LEAVES)
    if not any(os.access(group, os.W_OK) for h in hierarchies() for group in h.up()):
        del leaves[CONTROL_GROUP]
    _assert_failed(_run(tmp_path, "\n    ".join(leaves)), list(leaves.values()))


def test_control_groups_of_a_running_test_are_no_leftovers_of_others(writable_group: Path) -> None:
    """It would remove them, as those of keepers that have ended, and fail."""
    before = set(writable_group.iterdir())
    exec(CONTROL_GROUP, {"hierarchies": hierarchies, "os": os})
    made = set(writable_group.iterdir()) - before
    try:
        (ours,) = (path for path in made if path.name.endswith("999999999"))
        assert ours not in leftovers._control_groups()
    finally:
        for path in made:
            if path.name.endswith("999999999"):
                path.rmdir()


def test_a_single_leftover_fails_the_test_run(tmp_path: Path) -> None:
    _assert_failed(_run(tmp_path, TEMP_FILE), [LEAVES[TEMP_FILE]])


def test_a_test_run_without_leftovers_passes(tmp_path: Path) -> None:
    done = _run(tmp_path, "subprocess.run([sys.executable, '-c', ''], check=True)")
    assert done.returncode == 0, done.stdout


def test_leftovers_of_one_of_several_processes_fail_the_test_run(tmp_path: Path) -> None:
    left = (CUT_LOOSE, SHARED_MEMORY, TEMP_FILE)
    _assert_failed(_run(tmp_path, "\n    ".join(left), *_two_processes()), [LEAVES[what] for what in left])


def test_parallel_test_processes_have_own_directories_and_same_parameters(tmp_path: Path) -> None:
    """Those are directly under the temp directory: sockets' paths are short. Other parameters would be an error of xdist's."""
    (tmp_path / "seen").mkdir()
    body = "(Path(__file__).parent / 'seen' / str(os.getpid())).write_text(os.environ['TMPDIR'])"
    (tmp_path / "test_more.py").write_text(
        "import os, random\nfrom pathlib import Path\nimport pytest\n\n"
        f"@pytest.mark.parametrize('seed', [random.randrange(1 << 60)])\ndef test_more(seed):\n    {body}\n"
    )
    done = _run(tmp_path, body, *_two_processes())
    assert done.returncode == 0, done.stdout
    seen = {path.read_text() for path in (tmp_path / "seen").iterdir()}
    assert len(seen) == 2
    assert {Path(name).parent.parent for name in seen} == {Path("/tmp")}
