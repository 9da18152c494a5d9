"""Compiled kernels: none are needed from a cache, and none are taken from one that has gone stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.house.sources import ROOT

_COUNT_ROWS = """
import numpy as np
from dlrover_lite.ps.hashing import initial_rows
print(len(initial_rows(np.arange(3, dtype=np.uint64), table="t", seed=0, dim=2, scale=0.1)))
"""


def test_kernels_work_without_a_writable_cache() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment["DLROVER_LITE_HOME"] = "/proc/nobody-can-write-here"
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_ROWS], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


_CALLER = """
from dlrover_lite.kernels import kernel
from dlrover_lite.ps.callee import answer

@kernel
def ask():
    return answer()

print(ask())
"""


def test_a_kernel_is_compiled_anew_when_one_it_calls_has_changed_in_another_file(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "dlrover_lite", tmp_path / "dlrover_lite", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "caller.py").write_text(_CALLER)
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"DLROVER_LITE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path)}

    def answer(value: int) -> str:
        callee = f"from dlrover_lite.kernels import kernel\n@kernel\ndef answer():\n    return {value}\n"
        (tmp_path / "dlrover_lite" / "ps" / "callee.py").write_text(callee)
        done = subprocess.run(
            [sys.executable, "-c", "import caller"],
            env=environment,
            cwd=tmp_path,  # or the package that is tested would come first
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert [answer(value) for value in (1, 1, 1234)] == ["1", "1", "1234"]
    assert list((tmp_path / "home").rglob("*.nbc")), "nothing was cached: the test tests nothing"


def test_kernels_of_other_sources_go_when_they_have_not_been_used_for_a_month(tmp_path: Path) -> None:
    kernels = tmp_path / "cache" / "kernels"
    days_ago = {"recent": 29, "forgotten": 31, "long forgotten": 400}
    for name, days in days_ago.items():
        (kernels / name / "dlrover_lite_1").mkdir(parents=True)
        (kernels / name / "dlrover_lite_1" / "a.nbi").touch()
        at = time.time() - days * 24 * 3600
        os.utime(kernels / name, (at, at))
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment["DLROVER_LITE_HOME"] = str(tmp_path)

    def import_kernels() -> set[str]:
        subprocess.run([sys.executable, "-c", "import dlrover_lite.kernels"], env=environment, check=True)
        return {path.name for path in kernels.iterdir()}

    (ours,) = import_kernels() - set(days_ago)
    assert import_kernels() == {"recent", ours}
    assert list((kernels / "recent").rglob("*.nbi"))
    # one that is there is noted as used, and nothing is looked at for its sake
    (kernels / "forgotten").mkdir()
    for name in ("forgotten", ours):
        os.utime(kernels / name, (0, 0))
    assert import_kernels() == {"recent", "forgotten", ours}
    assert (kernels / ours).stat().st_mtime > time.time() - 3600
