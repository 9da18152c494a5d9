"""Files of a job with a JSON object on each line, to which one process appends, and which anyone reads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from dlrover_lite.core.errors import JobError
from dlrover_lite.core.failpoints import needs_room
from dlrover_lite.core.files.durable import open_private
from dlrover_lite.jobs.store import unwritable

__all__ = ["Read", "append", "read"]

T = TypeVar("T")


class Read(NamedTuple, Generic[T]):
    """What a file holds, the oldest first."""

    entries: list[T]
    damaged: list[int]
    """Numbers of the lines that can't be understood."""
    unended: int
    """Number of the last line where its writer could not end it; else of the one that would follow."""


def append(path: Path, lines: Iterable[bytes]) -> None:
    """Add lines at the end, all in one write, or none; what a writer before has left of a line is closed first.

    Raises JobError when it can't be written.
    """
    try:
        descriptor = open_private(path, os.O_RDWR | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = memoryview((b"\n" if torn else b"") + b"\n".join(lines) + b"\n")
            try:
                while data:  # more than once only where the disk is nearly full
                    needs_room("job.file")
                    data = data[os.write(descriptor, data) :]
            except OSError:
                os.ftruncate(descriptor, size)  # all of them are written again
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unwritable(path, error) from error


def read(path: Path, decoder: msgspec.json.Decoder[T]) -> Read[T]:
    """Read a file, which need not be there. Raises JobError when it can't be read."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return Read([], [], 1)
    except OSError as error:
        raise JobError(f"Can't read {path}: {error.strerror}") from error
    entries, damaged = [], []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            entries.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            damaged.append(number)
    return Read(entries, damaged, len(lines))
