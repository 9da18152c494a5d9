"""A job's directory as it can be read from elsewhere: a copy that is made when somebody first looks into it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path, PurePosixPath

import msgspec

from dlrover_lite.backends.k8s.objects.node_pod import JOB_FILES
from dlrover_lite.checkpoint.destination import Destination, open_destination
from dlrover_lite.checkpoint.file_service.client import FileClient, ServedDirectory
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.files.durable import open_private, write_whole
from dlrover_lite.core.progress import Steps, no_steps
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.file_messages import FileEntry
from dlrover_lite.recipe.schema import Recipe

__all__ = ["CODE", "MODEL", "JobCopy", "copy_files"]

CODE = "code"
"""Directory of the copy with the model's code."""
MODEL = "export"
"""Directory of the job with its exported model."""


class JobCopy(Job):
    """``Job`` whose files are elsewhere. What is small is copied to ``place``, once; checkpoints are read where they are, and the exported
    model is fetched when somebody needs it. Raises JobError where the files can't be reached."""

    def __init__(
        self,
        job: str,
        place: Path,
        *,
        home: Path,
        fetch: Callable[[Path], None],
        files: FileClient,
        recipe: Callable[[], Recipe] | None = None,
    ) -> None:
        """``home``: the directory as the job's pods name it. ``fetch`` copies all but checkpoints and the model to ``place``; ``files``
        reads them all. ``recipe`` reads the job's recipe without them; None: it is one of them."""
        self.id = job
        self._recipe = recipe
        self.place = place
        """Where the copy is, or will be."""
        self._home, self._fetch, self._files = home, fetch, files
        self._fetched = False

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
        return self.directory / MODEL

    @property
    def home(self) -> Path:
        return self._home

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe as it is here: the model's code lies in the copy."""
        written = Job(self.directory).recipe if self._recipe is None else self._recipe()
        if written.directory != JOB_FILES:
            return written
        return msgspec.structs.replace(written, directory=str(self.place / CODE))

    def destination_at(self, url: str) -> Destination:
        path = PurePosixPath(url.removeprefix("file://"))
        if path.is_relative_to(self._home):
            return ServedDirectory(str(path), path.relative_to(self._home).as_posix(), lambda: self._files)
        if "://" not in url:
            raise JobError(
                f"{url} is a path in the pods of {self.id}, which isn't seen from here",
                hint="Checkpoints in an object store are (checkpoint.directory: s3://…), and those of the job's own directory.",
            )
        return open_destination(url)

    def model_directory(self, noted: str | None, steps: Steps = no_steps) -> Path:
        entries = self._files.tree(MODEL)
        copy_files(self._files, entries, self.place, steps)
        _remove_others(self.place / MODEL, {self.place / entry.path for entry in entries})
        return self.place / MODEL


def _remove_others(directory: Path, wanted: set[Path]) -> None:
    """Remove the files of an older copy that are none of those."""
    for path in list(directory.rglob("*")):
        if path.is_file() and path not in wanted:
            path.unlink()


def copy_files(files: FileClient, entries: Collection[FileEntry], directory: Path, steps: Steps = no_steps) -> None:
    """Copy files below a directory, each whole or not at all, a piece at a time. One that is there, as large and as new, isn't read again.
    Raises JobError."""
    total, before = sum(entry.size for entry in entries), 0
    for entry in entries:
        start, before = before, before + entry.size
        target = _target(directory, entry.path)
        try:
            known = target.stat()
            if known.st_size == entry.size and known.st_mtime == entry.changed_at:
                continue
        except FileNotFoundError:
            pass
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(files, entry, target, lambda done, start=start: steps("fetching", start + done, total, "bytes"))  # type: ignore[misc]
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


def _copy(files: FileClient, entry: FileEntry, target: Path, copied: Callable[[int], object]) -> None:
    """Copy a file. Its time is set at the end: one that is there in part is copied again."""
    found = files.part(entry.path, 0)
    if found.size <= len(found.data):
        write_whole(target, bytes(found.data), sync=False)
        copied(entry.size)
    else:
        with os.fdopen(open_private(target, os.O_WRONLY | os.O_TRUNC), "wb") as out:
            while found.data:
                out.write(found.data)
                copied(min(out.tell(), entry.size))
                found = files.part(entry.path, out.tell())
    os.utime(target, (entry.changed_at, entry.changed_at))
