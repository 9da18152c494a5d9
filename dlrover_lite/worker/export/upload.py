"""Bringing an exported model to where the job keeps its files, from a process that doesn't see that file system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dlrover_lite.checkpoint.destination import open_destination
from dlrover_lite.core.errors import JobError
from dlrover_lite.models.digests import DIGESTS_FILE

__all__ = ["upload"]

_CHUNK_BYTES = 4 << 20


def upload(directory: Path, url: str, copied: Callable[[int], object]) -> None:
    """Copy a model's files to ``url``, the digests last: without them nobody takes it for whole. ``copied`` is told the bytes of each
    piece. Raises JobError."""
    destination = open_destination(url)
    destination.create()
    folders = sorted(path for path in directory.rglob("*") if path.is_dir())
    for folder in folders:
        destination.make(folder.relative_to(directory).as_posix())
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: path.name == DIGESTS_FILE):
        writer = destination.writer(path.relative_to(directory).as_posix())
        try:
            with path.open("rb") as file:
                while piece := file.read(_CHUNK_BYTES):
                    writer.write([piece])
                    copied(len(piece))
            writer.finish()
        except OSError as error:
            raise JobError(f"Can't read {path}: {error.strerror}", hint="The export is tried again.") from error
        finally:
            writer.abandon()
