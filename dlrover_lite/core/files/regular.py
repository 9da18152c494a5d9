"""Opening files that a person, a recipe or a manifest names: regular files only, and of those that are read whole, only short ones.

A pipe without a writer would hold whoever opens it for ever, and a device need not have an end.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

from dlrover_lite.core.units import MIB, format_bytes

__all__ = [
    "MOST_SOURCE_BYTES",
    "FileTooLarge",
    "NotRegularFile",
    "check_regular",
    "open_descriptor",
    "open_regular",
    "read_file",
]

MOST_SOURCE_BYTES = 4 * MIB
"""The most bytes of a Python file with a model: no file that a person writes is larger."""

_KINDS = {
    stat.S_IFIFO: "a pipe (as <(command) makes one)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularFile(OSError):
    """A pipe, device or socket where a file is expected; ``strerror`` says which."""

    def __init__(self, path: str | os.PathLike[str], mode: int) -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        super().__init__(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))


class FileTooLarge(OSError):
    """A file that is longer than one of its kind can be; ``strerror`` says how long that is."""

    def __init__(self, path: str | os.PathLike[str], most_bytes: int) -> None:
        super().__init__(
            errno.EFBIG, f"it has more than the {format_bytes(most_bytes)} of such a file", os.fspath(path)
        )


def open_descriptor(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Open a regular file to read, and never wait for a pipe's writer. ``flags``: what else ``os.open`` is to be told.

    Raises NotRegularFile, IsADirectoryError, and OSError as ``os.open`` does.
    """
    _check_mode(path, os.stat(path).st_mode)  # noqa: PTH116 - opening a device may already do something
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    try:
        _check_mode(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file as a stream of bytes. Raises as ``open_descriptor`` does."""
    return os.fdopen(open_descriptor(path), "rb")


def check_regular(path: str | os.PathLike[str], most_bytes: int | None = None) -> None:
    """Check a file that a library is to open by its name. Raises as ``open_descriptor`` does, and FileTooLarge."""
    descriptor = open_descriptor(path)
    try:
        if most_bytes is not None and os.fstat(descriptor).st_size > most_bytes:
            raise FileTooLarge(path, most_bytes)
    finally:
        os.close(descriptor)


def read_file(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Read the whole of a regular file. Raises as ``open_descriptor`` does, and FileTooLarge, before more than that is in memory."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most_bytes or len(data := file.read(most_bytes + 1)) > most_bytes:
            raise FileTooLarge(path, most_bytes)
    return data


def _check_mode(path: str | os.PathLike[str], mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise NotRegularFile(path, mode)
