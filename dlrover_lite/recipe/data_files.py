"""Data files as a recipe names them: paths, globs and URLs."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.data_file import DataFile
from dlrover_lite.core.files.regular import check_regular
from dlrover_lite.core.files.remote import RemoteFile
from dlrover_lite.core.problems import nearest

__all__ = ["file_problem", "files_of"]


def files_of(path: DataFile) -> list[DataFile]:
    """Return the files that a path, glob or URL names, sorted; a path that is there is no glob. Whether they can be read is for others to
    say."""
    if isinstance(path, RemoteFile):
        try:
            return [*path.matches()] if path.is_pattern else [path]
        except DataError:
            return []
    found = [path] if path.exists() else map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207
    return [file for file in found if not file.is_dir()]


def file_problem(path: DataFile) -> str:
    """Say why this path, glob or URL can't be read as data; "" when it can."""
    if isinstance(path, RemoteFile):
        return _remote_problem(path)
    if path.is_dir():
        return f"{path} is a directory; name its files, as in {path.name}/*.tsv"
    if not path.exists():
        return _absent(path)
    if not os.access(path, os.R_OK):
        return f"{path} may not be read by you"
    try:
        check_regular(path)
    except OSError as error:
        return f"{path} can't be used: {error.strerror}"
    return f"{path} is empty" if path.stat().st_size == 0 else ""


def _remote_problem(file: RemoteFile) -> str:
    """Ask the store about a file, or glob. Its answer is one message: there is nothing to look at otherwise."""
    try:
        if file.is_pattern:
            return "" if file.matches() else f"no object matches {file}"
        return f"{file} is empty" if file.version().size == 0 else ""
    except DataError as error:
        return f"{error.message}. {error.hint}" if error.hint else error.message


def _absent(path: Path) -> str:
    """Say why nothing can be read under a path that doesn't exist; "" when it is a glob that matches files."""
    if glob.has_magic(str(path)):
        return "" if files_of(path) else f"no file matches {path}"
    if not path.parent.is_dir():
        return f"{path}: no such file, and no directory {path.parent}"
    try:
        other = (".yaml", ".yml") if path.suffix not in (".yaml", ".yml") else ()
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file() and entry.suffix not in other]
    except OSError:
        names = []
    close = nearest(path.name, names)
    return f"{path}: no such file" + (f"; did you mean {close}?" if close else "")
