"""What a run of these tests has done is summed up at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.points import POINTS
from tests.repository.sources import ROOT

INNER = """
import pytest

@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_counts_kills_and_stops(faults, count):
    faults["kill worker"] += count
    faults["stop ps"] += 1000

@pytest.mark.parametrize("name", ["ps.push.applied", "ps.push.begun", "ps.push.begun"])
def test_counts_a_kill_at_a_failpoint(faults, name):
    faults[f"kill at {name}"] += 1
    assert name != "ps.push.applied"  # what was done counts also where the test fails

def test_counts_no_faults():
    pass
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_faults_are_summed_over_all_tests_and_processes(tmp_path: Path, processes: int) -> None:
    options = ["-n", str(processes), "--dist", "load"] if processes > 1 else []
    if processes > 1:
        pytest.importorskip("xdist")
        options += ["-p", "xdist.plugin"]
    (tmp_path / "conftest.py").write_text("from tests.chaos.conftest import faults, pytest_configure\n")
    (tmp_path / "test_inner.py").write_text(INNER)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider", *options],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 7 passed" in done.stdout, done.stdout + done.stderr
    _, found, told = done.stdout.partition(" faults done ")
    assert found, done.stdout
    assert told.splitlines()[1:5] == [
        f"       3 x kill at a failpoint (2 of {len(POINTS)})",
        "      10 x kill worker",
        "   4,000 x stop ps",
        "   4,013 in all",
    ]
