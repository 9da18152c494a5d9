"""Serves a job's directory, in its master's pod and in reader pods: files are read in parts, and nothing is written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

from dlrover_lite.backends.k8s.jobs.files.protocol import (
    MOST_PART_BYTES,
    DirectoryListing,
    DirectoryRequests,
    FileEntry,
    ListDirectory,
    Part,
    ReadPart,
)
from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.jobs.store import Job
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Request

__all__ = ["FileServer"]

_HIDDEN = ("key",)
"""Names of files that nobody is given: they are what proves who one is."""


class FileServer:
    """Answers for one job. Not for several threads: whoever made it serves."""

    def __init__(
        self, job: Job, endpoint: str, connector: Connector, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job = job
        self._server = connector.server(endpoint, DirectoryRequests)
        self._clock = clock
        self.endpoint = self._server.endpoint
        self.asked_at = clock()
        """When somebody last asked for something, by the clock."""

    def serve(self, timeout_seconds: float) -> None:
        """Answer what has come within this time."""
        for request in self._server.receive(timeout_seconds):
            self.asked_at = self._clock()
            self._answer(request)

    def close(self) -> None:
        self._server.close()

    def _answer(self, request: Request) -> None:
        try:
            answer = self._server.attempt(request, lambda one: self._do(one.body))
        except (DlroverLiteError, OSError) as error:
            self._server.fail(request, "refused", str(error), "")
            return
        if answer is not None:
            self._server.reply(request, answer)

    def _do(self, body: msgspec.Struct) -> msgspec.Struct:
        match body:
            case ListDirectory(below):
                return DirectoryListing(list(self._files(self._within(below))), self._has_master())
            case ReadPart(path, offset, most_bytes):
                return read_part(self._within(path), offset, min(most_bytes, MOST_PART_BYTES))
        raise AssertionError(f"no answer to {type(body).__name__}")

    def _has_master(self) -> bool:
        try:
            return self._job.result() is None and self._job.record().has_master
        except (JobError, OSError):
            return False

    def _within(self, path: str) -> Path:
        """Return where a path of the job's directory is. Raises JobError for one that leads out of it, or mustn't be read."""
        written = PurePosixPath(path)
        found = self._job.directory / written
        inside = found.resolve().is_relative_to(self._job.directory.resolve())
        if written.is_absolute() or ".." in written.parts or not inside or written.name in _HIDDEN:
            raise JobError(f"{path!r} is no file of {self._job.id} that can be read")
        return found

    def _files(self, directory: Path) -> Iterator[FileEntry]:
        for place, _, names in os.walk(directory):
            for name in names:
                file = Path(place, name)
                if name in _HIDDEN or name.startswith(".") or file.is_symlink():
                    continue
                try:
                    status = file.stat()
                except FileNotFoundError:  # gone meanwhile
                    continue
                path = file.relative_to(self._job.directory).as_posix()
                yield FileEntry(path, status.st_size, status.st_mtime)


def read_part(file: Path, offset: int, most_bytes: int) -> Part:
    """Read a part of a file. Raises OSError where it is there and can't be read."""
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            opened.seek(min(offset, size))
            return Part(opened.read(min(most_bytes, max(0, size - offset))), size)
    except FileNotFoundError:
        return Part(b"", 0, is_there=False)
