"""Data files as a recipe names them: paths and globs."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from dlrover_lite.core.files.regular import check_regular
from dlrover_lite.core.problems import nearest

__all__ = ["file_problem", "files_of"]


def files_of(path: Path) -> list[Path]:
    """Return the files that a path or glob names, sorted; a path that is there is no glob. Whether they can be read is for others to
    say."""
    found = [path] if path.exists() else map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207
    return [file for file in found if not file.is_dir()]


def file_problem(path: Path) -> str:
    """Say why this path or glob can't be read as data; "" when it can."""
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
