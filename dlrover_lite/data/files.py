"""Data files as a recipe names them (paths and globs), and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.durable import sync_directory
from dlrover_lite.recipe.data_files import file_problem, files_of

__all__ = ["Progress", "atomic_file", "is_disk_full", "resolve", "unnamed_file"]

Progress = Callable[[str, int, int], None]
"""Callback, called as ``progress(what, done, total)`` now and then during long work; done and total are bytes or samples."""


def resolve(patterns: Sequence[str], directory: Path) -> list[Path]:
    """Return the files that ``patterns`` name, absolute: in the order of the patterns, sorted within a glob.

    Relative patterns start at ``directory``. Raises DataError for a glob that matches no file, and for a path that is missing, empty, a
    directory or otherwise not a readable file.
    """
    files: list[Path] = []
    for pattern in patterns:
        # Not Path.resolve: a link keeps its name, in messages and in the cache.
        path = Path(os.path.abspath(os.path.join(directory, os.path.expanduser(pattern))))  # noqa: PTH100, PTH111, PTH118
        for file in files_of(path) or [path]:
            if problem := file_problem(file):
                raise DataError(problem, hint=f"Check the path; relative ones are taken from {directory}.")
            files.append(file)
    return files


def is_disk_full(error: OSError) -> bool:
    """Return whether ``error`` means that no more can be written here (no space, or a quota reached)."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def unnamed_file(directory: Path) -> BinaryIO:
    """Open a new file without a name: gone when it is closed, also by SIGKILL."""
    return tempfile.TemporaryFile(dir=directory)


@contextlib.contextmanager
def atomic_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write that replaces ``path`` when the block ends without an exception, and vanishes otherwise. It is durable then;
    with ``private`` it is its owner's alone, else as the umask says.

    On Linux it has no name until it is whole, so that even SIGKILL leaves nothing behind. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        nameless = _open_nameless(path.parent)
        with nameless or temporary.open("w+b") as file:
            if private:
                os.fchmod(file.fileno(), 0o600)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if nameless:
                temporary.unlink(missing_ok=True)
                _give_name(file, temporary)
        temporary.replace(path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _open_nameless(directory: Path) -> BinaryIO | None:
    """Open a file without a name; None where the platform or the file system has no O_TMPFILE."""
    if not hasattr(os, "O_TMPFILE") or not os.path.exists("/proc/self/fd"):  # noqa: PTH110
        return None
    try:
        return os.fdopen(os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o666), "w+b")
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return None
        raise


def _give_name(file: BinaryIO, path: Path) -> None:
    # With a directory descriptor os.link uses linkat(AT_SYMLINK_FOLLOW), which is what /proc/self/fd needs.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=directory)
    finally:
        os.close(directory)
