"""Whatever file a person or a manifest names, a pipe, a socket, a device or one without end neither holds us up nor fills memory."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.files.regular import FileTooLarge, NotRegularFile, check_regular, open_regular, read_file
from dlrover_lite.data.open import open_data
from dlrover_lite.jobs.store import Job
from dlrover_lite.models.serving import read_manifest
from dlrover_lite.models.sources import copy_sources
from dlrover_lite.models.tables import iterate_table, read_table
from dlrover_lite.models.user import load_user_class
from dlrover_lite.recipe.load import load_recipe, parse_recipe
from dlrover_lite.recipe.schema import CriteoData, CsvData, Data, ParquetData
from dlrover_lite.tui.recordings import recorded
from tests.repository.sources import PACKAGE, ROOT, calls, files

pytestmark = pytest.mark.timeout(30)  # they hang where they fail

READ_WHATEVER_IS_NAMED = ("checkpoint", "data", "models", "recipe")
"""Packages that open what others name."""
READS_ITS_OWN = {"data/files.py", "models/tables.py", "models/export.py", "models/matmul.py", "checkpoint/local.py"}
"""Modules that beside that read, or write, files of their own making, or the kernel's."""


def _data(data: Data, path: Path) -> object:
    return open_data(data, directory=path.parent, part="train")


def _recipe_with(path: Path, model: str, data: str) -> object:
    recipe = {"version": 1, "name": "j", "model": model, "data": {"format": "criteo", "train": [data]}}
    return parse_recipe(recipe, directory=path.parent)


def _cut(path: Path) -> Path:
    directory = path.parent / "cut-00000003"
    directory.mkdir(exist_ok=True)
    return path.rename(directory / "manifest.json").parents[1]


def _job(path: Path) -> Job:
    path.rename(path.with_name("result.json"))
    return Job(path.parent)


DOORS: dict[str, Callable[[Path], object]] = {
    "a recipe": load_recipe,
    "a recipe's data": lambda path: _recipe_with(path, "dcn", path.name),
    "a recipe's model": lambda path: _recipe_with(path, f"{path.rename(path.with_suffix('.py'))}:Model", "x"),
    "criteo": lambda path: _data(CriteoData(train=[path.name]), path),
    "csv": lambda path: _data(CsvData(train=[path.name], label="y", dense=["x"]), path),
    "parquet": lambda path: _data(ParquetData(train=[path.name], label="y", dense=["x"]), path),
    "a model": lambda path: load_user_class(f"{path.rename(path.with_suffix('.py'))}:Model", path.parent),
    "a model to export": lambda path: copy_sources(f"{path}:Model", path.parent, path.parent / "to"),
    "a checkpoint's manifest": lambda path: CheckpointStore(str(_cut(path))).manifest(3),
    "an export's manifest": lambda path: read_manifest(path.rename(path.with_name("model.json")).parent),
    "an export's table": lambda path: read_table(path, rows=1, dim=1),
    "an export's table, by chunks": lambda path: list(iterate_table(path, rows=1, dim=1)),
    "a job's result": lambda path: _job(path).result(),
    "a recording": recorded.read,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_pipe_is_refused_by_name(tmp_path: Path, door: str) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(DlroverLiteError, match=r"it is a pipe \(as <\(command\) makes one\), not a regular file"):
        DOORS[door](path)


@pytest.mark.parametrize("door", sorted(DOORS.keys() - {"a model"}))  # whose link is followed, to a name without .py
def test_a_device_is_refused_by_name(tmp_path: Path, door: str) -> None:
    path = tmp_path / "zeros"
    path.symlink_to("/dev/zero")
    with pytest.raises(DlroverLiteError, match="it is a device, not a regular file"):
        DOORS[door](path)


READ_WHOLE = (
    "a recipe",
    "a recipe's model",
    "a model",
    "a model to export",
    "a checkpoint's manifest",
    "an export's manifest",
    "a job's result",
)


@pytest.mark.parametrize("door", READ_WHOLE)
def test_files_read_whole_have_a_largest_size(tmp_path: Path, door: str) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 1 << 40)  # takes no room; read, it would take all memory
    with pytest.raises(DlroverLiteError, match=r"too large|more than the|no manifest has"):
        DOORS[door](path)


def test_process_substitution_is_refused() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(NotRegularFile, match="it is a pipe"):
            open_regular(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
        os.close(writing)


def test_sockets_and_directories_are_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(NotRegularFile, match="it is a socket"):
            check_regular(tmp_path / "s")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "gone")


def test_a_pipe_that_takes_a_files_place_is_refused_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what it is and the opening."""
    path = tmp_path / "f"
    path.write_text("x")
    regular = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(os, "stat", lambda *_: regular)
    with pytest.raises(NotRegularFile):
        open_regular(path)


def test_the_largest_size_is_allowed_and_one_byte_more_is_not(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345"
    check_regular(path, 5)
    with pytest.raises(FileTooLarge):
        read_file(path, 4)
    with pytest.raises(FileTooLarge):
        check_regular(path, 4)


def test_files_of_proc_are_not_read_beyond_the_largest_size() -> None:
    """As those of /proc do."""
    with pytest.raises(FileTooLarge):
        read_file("/proc/self/status", 10)


def test_refusals_leave_no_descriptor_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = set(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        with pytest.raises(OSError):
            open_regular(tmp_path / "pipe")
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_files_named_by_others_are_opened_only_by_open_regular() -> None:
    """A new reader that opens what it is given by other means would wait for pipes again."""
    opening = {"read_bytes", "read_text", "fromfile", "memmap"}
    found = []
    for path in files(*(f"dlrover_lite/{name}" for name in READ_WHATEVER_IS_NAMED)):
        if path.relative_to(PACKAGE).as_posix() in READS_ITS_OWN:
            continue
        for name, call in calls(path):
            module, _, last = name.rpartition(".")
            modes = [argument.value for argument in call.args if hasattr(argument, "value")]
            reads = last in {"open", "fdopen"} and any(mode in {"r", "rb"} for mode in modes)
            if (module and last in opening) or reads or name in {"open", "os.open"}:
                found.append(f"{path.relative_to(ROOT)}:{call.lineno} {name}")
    assert found == []
