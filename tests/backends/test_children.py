"""What the keeper kills at its end, and whom it spares."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, subprocess, sys
from dlrover_lite.backends.keeper import children

first, second = (subprocess.Popen(["sleep", "100"]) for _ in range(2))
ended = children.kill_all(spare=second.pid)
print([pid for pid, _ in ended] == [first.pid], second.poll())
second.kill()
second.wait()
print(children.kill_all(spare=second.pid))
"""


def test_all_children_but_the_spared_one_are_killed() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["True None", "[]"], done.stderr
