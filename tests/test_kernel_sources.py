"""Compiled kernels: none are needed from a cache, and none are taken from one that has gone stale."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlrover_lite.core.kernels import sources as kernel_sources
from tests.repository.sources import ROOT

_COUNT_ROWS = """
import numpy as np
from dlrover_lite.tables.hashing import initial_rows
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
from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.ps.taken import {name}

@kernel
def ask():
    return {name}{call}

print(ask())
"""
TAKEN = {
    "a constant": ("ANSWER", "", "ANSWER = {value}\n"),
    "a constant at second hand": ("ANSWER", "", "from dlrover_lite.ps.further import ANSWER\n"),
    "a kernel": (
        "answer",
        "()",
        "from dlrover_lite.core.kernels.compile import kernel\n@kernel\ndef answer():\n    return {value}\n",
    ),
}
"""What a kernel takes from another module, how, and that module."""


@pytest.mark.parametrize("named", [False, True], ids=["our cache", "NUMBA_CACHE_DIR"])
@pytest.mark.parametrize("taken", TAKEN)
def test_a_kernel_is_compiled_anew_when_an_imported_file_changed(tmp_path: Path, taken: str, named: bool) -> None:
    """Also where that file is as large and as old as it was: package managers give files the time of a release."""
    shutil.copytree(ROOT / "dlrover_lite", tmp_path / "dlrover_lite", ignore=shutil.ignore_patterns("__pycache__"))
    name, call, module = TAKEN[taken]
    (tmp_path / "caller.py").write_text(_CALLER.format(name=name, call=call))
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    environment |= {"DLROVER_LITE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}  # Python, too, goes by size and time
    if named:
        environment["NUMBA_CACHE_DIR"] = str(tmp_path / "home" / "cache")

    def answer(value: int) -> str:
        ps = tmp_path / "dlrover_lite" / "ps"
        for file, text in (("taken.py", module), ("further.py", "ANSWER = {value}\n")):
            (ps / file).write_text(text.format(value=value))
            os.utime(ps / file, (1e9, 1e9))
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

    def kept() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "home").rglob("*.nb?")}

    assert answer(1) == "1"
    first = kept()
    assert first, "nothing was cached: the test tests nothing"
    assert answer(1) == "1" and kept() == first
    assert answer(2) == "2"
    assert kept().keys() == first.keys(), "what is compiled anew takes the place of what was there"


def _imports(path: Path) -> set[Path]:
    """Files of the package that a file imports, wherever in it, by its syntax tree."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively, which kernel_sources doesn't follow"
            modules |= {str(node.module), *(f"{node.module}.{name.name}" for name in node.names)}
    places = [ROOT.joinpath(*module.split(".")) for module in modules if module.split(".")[0] == "dlrover_lite"]
    return {file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()}


def test_imports_of_a_kernels_file_count_as_its_source() -> None:
    for path in (ROOT / "dlrover_lite").rglob("*.py"):
        found = kernel_sources._read(path).imported
        assert _imports(path) <= found, path


def test_kernels_of_other_sources_are_removed_after_an_unused_month(tmp_path: Path) -> None:
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
        subprocess.run([sys.executable, "-c", "import dlrover_lite.core.kernels.compile"], env=environment, check=True)
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
