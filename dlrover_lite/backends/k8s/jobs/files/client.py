"""The files of a job as they can be read from elsewhere: single parts, logs that grow, and a copy of its directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar

import msgspec

from dlrover_lite.backends.k8s.jobs.files.protocol import (
    MOST_PART_BYTES,
    DirectoryListing,
    DirectoryReplies,
    FileEntry,
    ListDirectory,
    Part,
    ReadPart,
)
from dlrover_lite.core.errors import JobError, RemoteError, WireError
from dlrover_lite.core.files.durable import open_private, write_whole
from dlrover_lite.transport.connector import Connector

__all__ = ["FileClient", "Files", "RemoteLog", "copy_files"]

_DEADLINE_SECONDS = 20.0
_LONGEST_LINE_BYTES = 1 << 16
A = TypeVar("A")


class Files(Protocol):
    """The files of one job, wherever they are. Raises JobError where they can't be reached."""

    def listing(self, below: str = "") -> DirectoryListing:
        """List the files."""

    def part(self, path: str, offset: int, most_bytes: int = MOST_PART_BYTES) -> Part:
        """Read a part of a file."""


class FileClient:
    """``Files`` by a server at ``endpoint``. Not for several threads."""

    def __init__(self, endpoint: str, connector: Connector, *, has_ended: Callable[[], bool] = lambda: False) -> None:
        """``has_ended``: whether the server can't answer any more."""
        self._client = connector.client(endpoint, DirectoryReplies, peer="the pod with the job's files")
        self._has_ended = has_ended

    def listing(self, below: str = "") -> DirectoryListing:
        return self._ask(ListDirectory(below), DirectoryListing)

    def part(self, path: str, offset: int, most_bytes: int = MOST_PART_BYTES) -> Part:
        return self._ask(ReadPart(path, offset, most_bytes), Part)

    def close(self) -> None:
        self._client.close()

    def _ask(self, question: msgspec.Struct, answer: type[A]) -> A:
        try:
            body = self._client.call(question, deadline_seconds=_DEADLINE_SECONDS, has_ended=self._has_ended).body
        except (RemoteError, WireError) as error:
            raise JobError(f"The job's files can't be read: {error.message}", hint=error.hint) from error
        if not isinstance(body, answer):
            raise JobError(f"{type(question).__name__} was answered with {type(body).__name__}")
        return body


class RemoteLog:
    """``jobs.backend.Log`` of a file that is read by ``part`` (path, offset, most bytes)."""

    def __init__(self, path: str, part: Callable[[str, int, int], Part], *, last_lines: int | None = None) -> None:
        self.restarts = 0
        self._path, self._part = path, part
        self._position = 0
        self._rest = b""
        if last_lines is not None:
            self._position = self._start_of_last_lines(last_lines)

    @property
    def begun(self) -> str:
        return self._rest.decode(errors="replace")

    def new_lines(self, *, at_end: bool = False) -> Iterator[str]:
        while True:
            found = self._part(self._path, self._position, MOST_PART_BYTES)
            if found.size < self._position:
                self._position, self._rest = 0, b""
                self.restarts += 1
                continue
            self._position += len(found.data)
            *whole, self._rest = (self._rest + found.data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
            if len(self._rest) > _LONGEST_LINE_BYTES:
                yield self.begun
                self._rest = b""
            if not found.data or self._position >= found.size:
                break
        if at_end and self._rest:
            yield self.begun
            self._rest = b""

    def _start_of_last_lines(self, count: int) -> int:
        """Return where the last ``count`` lines start; read from the end."""
        end = position = self._part(self._path, 0, 0).size
        newlines = 0
        if count == 0:
            return end
        while position > 0:
            step = min(1 << 18, position)
            position -= step
            chunk = self._part(self._path, position, step).data
            at = len(chunk)
            while (at := chunk.rfind(b"\n", 0, at)) >= 0:
                newlines += position + at != end - 1  # the newline at the very end ends the last line
                if newlines == count:
                    return position + at + 1
        return 0


def copy_files(files: Files, entries: Iterator[FileEntry], directory: Path) -> None:
    """Copy files below a directory, each whole or not at all. One that is there, as large and as new, isn't read again. Raises JobError."""
    for entry in entries:
        target = _target(directory, entry.path)
        try:
            known = target.stat()
            if known.st_size == entry.size and known.st_mtime == entry.changed_at:
                continue
        except FileNotFoundError:
            pass
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(files, entry, target)
        except OSError as error:
            raise JobError(
                f"Can't write {target}: {error.strerror}", hint="Choose another directory, or make room there."
            ) from error


def _target(directory: Path, path: str) -> Path:
    """Return where a file is copied to. Raises JobError for a path that leads out of the directory."""
    written = PurePosixPath(path)
    if written.is_absolute() or ".." in written.parts or not written.parts:
        raise JobError(f"The job has a file called {path!r}, which isn't copied: it leads out of its directory")
    return directory / written


def _copy(files: Files, entry: FileEntry, target: Path) -> None:
    """Copy a file. Its time is set at the end: one that is there in part is copied again."""
    found = files.part(entry.path, 0)
    if found.size <= len(found.data):
        write_whole(target, found.data, sync=False)
    else:
        with os.fdopen(open_private(target, os.O_WRONLY | os.O_TRUNC), "wb") as out:
            while found.data:
                out.write(found.data)
                found = files.part(entry.path, out.tell())
    os.utime(target, (entry.changed_at, entry.changed_at))
