"""A file of training data, on this machine or under a URL, as the few things that its readers need of it."""

from __future__ import annotations

import io
import os
from pathlib import Path

from dlrover_lite.core.files.regular import open_regular
from dlrover_lite.core.files.remote import RangeStream, RemoteFile, Version
from dlrover_lite.core.files.retries import PATIENT, Retries
from dlrover_lite.core.files.urls import local_part

__all__ = ["DataFile", "located", "open_stream", "spelled", "version_of"]

DataFile = Path | RemoteFile
"""Both have ``name``, ``suffix``, and ``str()`` for messages."""

_BUFFER_BYTES = 256 << 10


def located(written: str, directory: Path, retries: Retries | None = None) -> DataFile:
    """Return what a recipe's path, glob or URL stands for. Relative paths start at ``directory``."""
    path = local_part(written)
    return RemoteFile(written, retries or PATIENT) if path is None else directory / Path(path).expanduser()


def spelled(written: str) -> str:
    """Return a file named on a command line as it may stand in a recipe: a path from the root, or the URL itself."""
    path = local_part(written)
    return written if path is None else str(Path(path).expanduser().absolute())


def version_of(file: DataFile) -> Version:
    """Return the version of a file. Raises OSError; DataError for one under a URL."""
    if isinstance(file, RemoteFile):
        return file.version()
    status = os.stat(file)  # noqa: PTH116
    return Version(status.st_size, status.st_mtime_ns)


def open_stream(file: DataFile) -> io.BufferedReader:
    """Open a file as a stream of bytes. Raises OSError; DataError for one under a URL."""
    if not isinstance(file, RemoteFile):
        return open_regular(file)
    return io.BufferedReader(RangeStream(file.version().size, file.read), _BUFFER_BYTES)
