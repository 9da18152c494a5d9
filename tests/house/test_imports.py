"""What importing costs, and that everything can be imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.house.sources import ROOT, files, module_name

HEAVY = ("torch", "numpy", "numba", "zmq", "pyarrow", "scipy", "pandas")

IMPORT_EACH_ALONE = """
import importlib, json, os, sys, traceback

# What takes long is imported once; each of our modules then in a process of its own, so that none leans on another.
import numba, numpy, pyarrow, safetensors, torch, zmq

failed = []
for name in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            importlib.import_module(name)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print(json.dumps(failed))
"""


@pytest.mark.parametrize("code", ["import dlrover_lite", "from dlrover_lite.cli.main import main; main(['--help'])"])
def test_what_everyone_waits_for_is_cheap(code: str) -> None:
    code += f"\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_module_can_be_imported_by_itself() -> None:
    names = [module_name(path) for path in files("dlrover_lite")]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH_ALONE],
        cwd=ROOT,
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [], done.stderr
