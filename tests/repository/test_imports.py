"""What importing costs, and that everything can be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dlrover_lite.data.index import index_text
from tests.repository.sources import ROOT, files, imported_at_once, module_name

HEAVY = ("torch", "numpy", "numba", "zmq", "pyarrow", "scipy", "pandas")

IMPORT_ALL = """
import gc, importlib, json, os, sys, traceback

gc.disable()

# What takes long is imported once; torch, with which a fork takes long too, only for those that need it.
import click, msgspec, numba, numba.np.arraymath, numpy, pyarrow, safetensors, zmq

needed, after, others = json.load(sys.stdin)


def ours():
    return {name for name in sys.modules if name.partition(".")[0] == "dlrover_lite"}


def is_there(name):
    # Whether this module has been imported, or this is in one that has.
    package, _, last = name.rpartition(".")
    return name in sys.modules or hasattr(sys.modules.get(package), last)


def visit(name):
    # Nothing of ours has been imported but what it needs.
    before = ours()
    try:
        importlib.import_module(name)
        difference = sorted(ours() ^ {name, *needed[name]})
        os.write(1, f"{name} {json.dumps(difference)}\\n".encode())
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    go_on(name)
    for gone in ours() - before:
        module, (package, _, last) = sys.modules.pop(gone), gone.rpartition(".")
        vars(sys.modules.get(package, module)).pop(last, None)


def go_on(name):
    for following in after.get(name, ()):
        if all(map(is_there, others[following])):
            visit(following)
            continue
        # In a process of its own: what it imports that isn't ours is there for no other.
        child = os.fork()
        if child == 0:
            try:
                visit(following)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


go_on("")
import torch
go_on("torch")
"""


def _needed() -> dict[str, set[str]]:
    """Find, for each module of ours, those of ours that importing it imports."""
    paths = {module_name(path): path for path in files("dlrover_lite")}

    def with_packages(name: str) -> set[str]:
        parts = name.split(".")
        return {".".join(parts[:n]) for n in range(1, len(parts) + 1)} & paths.keys()

    direct = {
        name: set().union(*map(with_packages, [name, *imported_at_once(path)])) - {name} for name, path in paths.items()
    }
    needed: dict[str, set[str]] = {}
    for name in paths:
        found, left = set[str](), [name]
        while left:
            new = direct[left.pop()] - found
            found |= new
            left += new
        needed[name] = found - {name}
    return needed


def _needed_of_others(needed: dict[str, set[str]]) -> dict[str, list[str]]:
    """Find, for each module of ours, what isn't ours of all that importing it imports."""
    at_once = {
        name: {other for other in imported_at_once(path) if other.partition(".")[0] != "dlrover_lite"}
        for name, path in ((module_name(path), path) for path in files("dlrover_lite"))
    }
    return {name: sorted(set().union(*map(at_once.__getitem__, [name, *needs]))) for name, needs in needed.items()}


def _order(needed: dict[str, set[str]]) -> dict[str, list[str]]:
    """For each module those that are imported after it: the largest part of what they need is there then, and nothing else. Modules that
    need each other, and those that lean on what they don't import, get no more than by themselves. What comes first is under "", or
    under "torch"."""
    with_torch = {module_name(path) for path in files("dlrover_lite") if "torch" in imported_at_once(path)}
    root = {name: "torch" if with_torch & {name, *needs} else "" for name, needs in needed.items()}
    after: dict[str, list[str]] = {}
    for name, needs in needed.items():
        before = [
            other
            for other in needs
            if name not in needed[other] and needed[other] <= needs and root[other] == root[name]
        ]
        after.setdefault(max(before, key=lambda other: len(needed[other]), default=root[name]), []).append(name)
    return after


LOOK_AT_TEXT = """
import sys
from dlrover_lite.master.work.shard_plan import look_at_data
from dlrover_lite.recipe import schema

model = schema.Model(use="dlrm")
files = {"train": [sys.argv[1]], "eval_share": 0.0}
data = schema.CriteoData(**files) if sys.argv[1].endswith("tsv") else schema.CsvData(**files, label="y", dense=["a"], categorical=["b"])
assert look_at_data(schema.Recipe(version=1, name="some", model=model, data=data, directory=".")).plan.samples == 2
"""

LOOK_AT_GENERATED_DATA = """
from dlrover_lite.master.work.shard_plan import look_at_data
from dlrover_lite.recipe import schema

model, data = schema.Model(use="dlrm"), schema.SyntheticData(samples=100)
assert look_at_data(schema.Recipe(version=1, name="some", model=model, data=data, directory=".")).plan.samples == 100
"""


@pytest.mark.parametrize("code", ["import dlrover_lite.master_process.__main__", LOOK_AT_GENERATED_DATA])
def test_a_master_starts_without_importing_numba_or_torch(code: str) -> None:
    """It is started again when it was killed, and training waits for it."""
    assert not {"numba", "torch"} & set(imported_by(code))


@pytest.mark.parametrize(
    ("name", "text"), [("some.tsv", "1" + "\t7" * 13 + "\tff" * 26 + "\n"), ("some.csv", "y,a,b\n1,0.5,x\n0,0,x\n")]
)
def test_a_master_looks_at_text_that_is_indexed_without_numba(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text if name.endswith("csv") else 2 * text)
    index_text(file)
    assert not {"numba", "torch"} & set(imported_by(LOOK_AT_TEXT, str(file)))


FIRST_PLAN = """
from dlrover_lite.client.dry_run import first_plan
from dlrover_lite.recipe import schema

model, data = schema.Model(use="dlrm"), schema.SyntheticData(samples=100_000)
assert first_plan(schema.Recipe(version=1, name="some", model=model, data=data, directory="."), 100_000).by_brain
"""


@pytest.mark.parametrize(
    "code",
    [
        "from dlrover_lite.cli.main import main; main(['jobs'])",
        "import dlrover_lite.client.validation, dlrover_lite.client.handle",  # what `run` needs
        "import dlrover_lite.master_process.__main__",
        "import dlrover_lite.brain_server.daemon, dlrover_lite.brain_server.service",
        FIRST_PLAN,  # many jobs end before anything is fitted to them
        "import dlrover_lite.worker.trainer, dlrover_lite.ps.server.service",
        "from dlrover_lite.ps.tables.compile_kernels import compile_kernels; compile_kernels()",
        "import dlrover_lite.tui.app, dlrover_lite.tui.sources.live",
    ],
)
def test_only_who_fits_a_model_imports_scipy(code: str) -> None:
    """No part of scipy is imported that fits anything: numba imports the bare package, to look at its version."""
    parts = {name.split(".")[1] for name in imported_by(code) if name.startswith("scipy.")}
    assert not parts & {"optimize", "special", "stats", "linalg", "sparse"}


FIT = """
import numpy as np
from dlrover_lite.brain.models.fitting import _paces

_paces(np.ones((2, 1)), np.ones(2), 1)
"""


def test_who_fits_a_model_imports_scipy() -> None:
    assert "scipy.optimize" in imported_by(FIT)


IMPORT_AS_A_TEMPLATE = """
from importlib import import_module

from dlrover_lite.backends.keeper import agent

environment = {"AGENT_ROLE": "ps", "KEY_FILE": "key", "POD_IP": "127.0.0.1", "HOST": "host-a"}
environment = {f"DLROVER_LITE_{name}": value for name, value in environment.items()}
options, _, _ = agent.read_environment(environment)
for name in options.imported:
    import_module(name.partition(":")[0])
"""


def test_a_pod_of_parameter_servers_imports_nothing_for_workers() -> None:
    found = set(imported_by(IMPORT_AS_A_TEMPLATE))
    assert "dlrover_lite.ps.server.main" in found
    assert not {"torch", "dlrover_lite.worker", "dlrover_lite.models"} & found


def imported_by(code: str, *arguments: str) -> list[str]:
    """List the modules that are there once a new process has run ``code``."""
    code += "\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize("code", ["import dlrover_lite", "from dlrover_lite.cli.main import main; main(['--help'])"])
def test_importing_the_package_and_help_import_nothing_heavy(code: str) -> None:
    code += f"\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_module_can_be_imported_by_itself() -> None:
    needed = _needed()
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        cwd=ROOT,
        input=json.dumps(
            [{name: sorted(needs) for name, needs in needed.items()}, _order(needed), _needed_of_others(needed)]
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    differences = {
        name: json.loads(rest) for name, _, rest in (line.partition(" ") for line in done.stdout.splitlines())
    }
    assert differences.keys() == needed.keys(), done.stderr
    assert not {name: difference for name, difference in differences.items() if difference}, (
        "needs others than it seems"
    )
