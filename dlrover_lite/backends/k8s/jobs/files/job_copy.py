"""A job's directory as it can be read from elsewhere: a copy that is made when somebody first looks into it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

from dlrover_lite.checkpoint.file_service.client import FileClient
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.files.durable import open_private, write_whole
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.file_messages import FileEntry
from dlrover_lite.recipe.schema import Recipe

__all__ = ["JobCopy", "copy_files"]


class JobCopy(Job):
    """``Job`` whose files are elsewhere. ``fetch`` brings them to ``place``, once; it raises JobError where they can't be reached."""

    def __init__(
        self, job: str, place: Path, fetch: Callable[[Path], None], recipe: Callable[[], Recipe] | None = None
    ) -> None:
        """``recipe`` reads the job's recipe without the other files; None: it is one of them."""
        self.id = job
        self._recipe = recipe
        self.place = place
        """Where the copy is, or will be."""
        self._fetch = fetch
        self._fetched = False

    @cached_property
    def recipe(self) -> Recipe:
        return super().recipe if self._recipe is None else self._recipe()

    @property
    def directory(self) -> Path:  # type: ignore[override]
        if not self._fetched:
            self._fetch(self.place)
            self._fetched = True
        return self.place

    @property
    def logs(self) -> Path:  # type: ignore[override]
        return self.directory / "logs"

    @property
    def export(self) -> Path:  # type: ignore[override]
        return self.directory / "export"


def copy_files(files: FileClient, entries: Iterator[FileEntry], directory: Path) -> None:
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


def _copy(files: FileClient, entry: FileEntry, target: Path) -> None:
    """Copy a file. Its time is set at the end: one that is there in part is copied again."""
    found = files.part(entry.path, 0)
    if found.size <= len(found.data):
        write_whole(target, bytes(found.data), sync=False)
    else:
        with os.fdopen(open_private(target, os.O_WRONLY | os.O_TRUNC), "wb") as out:
            while found.data:
                out.write(found.data)
                found = files.part(entry.path, out.tell())
    os.utime(target, (entry.changed_at, entry.changed_at))
