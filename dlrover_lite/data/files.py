"""Data files as a recipe names them (paths, globs, URLs), and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.data_file import DataFile, located
from dlrover_lite.core.files.durable import sync_directory
from dlrover_lite.core.files.paths import make_cache
from dlrover_lite.core.files.remote import RemoteFile
from dlrover_lite.recipe.data_files import file_problem, files_of

__all__ = ["Progress", "atomic_file", "for_each", "is_disk_full", "resolve", "scratch_directory", "unnamed_file"]

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Callback, called as ``progress(what, done, total)`` now and then during long work; done and total are bytes or samples."""


_ASKED_AT_ONCE = 16
"""Number of files under URLs that the store is asked about at the same time."""


def resolve(patterns: Sequence[str], directory: Path) -> list[DataFile]:
    """Return the files that ``patterns`` name, absolute: in the order of the patterns, sorted within a glob. Those under URLs know their
    version from here on.

    Relative patterns start at ``directory``. Raises DataError for a glob that matches no file, and for a path that is missing, empty, a
    directory or otherwise not a readable file.
    """
    files: list[DataFile] = []
    for pattern in patterns:
        path = located(pattern, directory)
        if isinstance(path, Path):
            # Not Path.resolve: a link keeps its name, in messages and in the cache.
            path = Path(os.path.abspath(path))  # noqa: PTH100
        files += _checked(files_of(path) or [path], directory)
    return files


def _checked(files: Sequence[DataFile], directory: Path) -> Sequence[DataFile]:
    for file, problem in zip(files, for_each(files, file_problem), strict=True):
        if problem:
            path = f"Check the path; relative ones are taken from {directory}."
            raise DataError(problem, hint="Check the URL." if isinstance(file, RemoteFile) else path)
    return files


def for_each(files: Sequence[DataFile], call: Callable[[DataFile], T]) -> list[T]:
    """Return what ``call`` returns for each file, in their order; with files under URLs several calls are under way at the same time."""
    if len(files) < 2 or not any(isinstance(file, RemoteFile) for file in files):
        return list(map(call, files))
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        return list(threads.map(call, files))


def scratch_directory() -> Path:
    """Return where there is most likely room on a disk: the cache, else where temporary files go."""
    with contextlib.suppress(OSError):
        directory = make_cache()
        if os.access(directory, os.W_OK):
            return directory
    return Path(tempfile.gettempdir())


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
