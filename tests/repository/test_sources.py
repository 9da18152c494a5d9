"""Rules of the house that can be read off the sources."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.repository.sources import PACKAGE, ROOT, calls, files, imported, tree

MOST_LINES = 600

OBJECT_LOADERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
"""Modules that run what they read, or write what only such a one can read."""

ONLY_UNDER = {"kubernetes": PACKAGE / "backends" / "k8s", "textual": PACKAGE / "tui"}
"""Heavy packages, and the one place that may import each. (import-linter has the rules for packages that exist.)"""


MAY_NAME_FILES = {
    "core/files/durable.py",
    "core/kernels/compile.py",
    "checkpoint/local.py",
    "data/files.py",
    "backends/keeper/runtime_directories.py",
    "jobs/store.py",
    "master/checkpoints/restored_ledger.py",
    "models/export.py",
    "ps/memory/node_memory_client.py",
}
"""What gives files their names: tests of each record that they were synced before (aside from sockets' directories and node memory,
which end with the machine, and compiled kernels, which are checked when they are read). All others use ``durable.write_whole``."""


def _at(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def _keyword(call: ast.Call, name: str) -> object:
    return next((ast.unparse(k.value) for k in call.keywords if k.arg == name), None)


def test_nothing_is_pickled_or_unpickled() -> None:
    found = [
        f"{_at(path, line)} imports {name}"
        for path in files("dlrover_lite", "bench")
        for line, name in imported(path)
        if name.partition(".")[0] in OBJECT_LOADERS
    ]
    found += [
        f"{_at(path, call.lineno)} loads with allow_pickle"
        for path in files("dlrover_lite", "bench")
        for _, call in calls(path)
        if _keyword(call, "allow_pickle") not in {None, "False"}
    ]
    assert not found


def test_torch_loads_tensors_only() -> None:
    found = [
        _at(path, call.lineno)
        for path in files("dlrover_lite", "bench")
        for name, call in calls(path)
        if name == "torch.load" and _keyword(call, "weights_only") != "True"
    ]
    assert not found


def test_heavy_packages_are_imported_only_where_they_belong() -> None:
    found = [
        f"{_at(path, line)} imports {name}"
        for path in files("dlrover_lite")
        for line, name in imported(path)
        if (place := ONLY_UNDER.get(name.partition(".")[0])) and not path.is_relative_to(place)
    ]
    assert not found


def test_files_are_short_enough_to_read() -> None:
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in files("dlrover_lite", "tests", "bench")
    }
    assert not {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > MOST_LINES}


def test_every_module_has_a_docstring() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in files("dlrover_lite")
        if tree(path).body and not path.stem.startswith("_") and not ast.get_docstring(tree(path))
    ]
    assert not silent


def test_files_are_renamed_only_in_tested_modules() -> None:
    found = [
        _at(path, call.lineno)
        for path in files("dlrover_lite")
        for name, call in calls(path)
        if name in {"os.replace", "os.rename", "os.link", "shutil.move"}
        or (
            name.rpartition(".")[2] in {"replace", "rename", "hardlink_to"}
            and len(call.args) == 1
            and not call.keywords
        )
        if str(path.relative_to(PACKAGE)) not in MAY_NAME_FILES
    ]
    assert not found


def test_no_lock_is_waited_for_without_limit() -> None:
    asked = [
        (_at(path, call.lineno), ast.unparse(call.args[1]))
        for path in files("dlrover_lite")
        for name, call in calls(path)
        if name.rpartition(".")[2] in {"flock", "lockf"}
    ]
    assert asked
    assert not [at for at, how in asked if "LOCK_NB" not in how]
