"""Where checkpoints are kept, as the few things they need of it: whole files in directories one level deep.

A name is ``cut-00000012/manifest.json``. Every method raises JobError for a destination that is full, forbidden, gone or failing; nothing
is kept open between calls, so that one that comes back is used again.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Protocol

from dlrover_lite.core.errors import CheckpointDamaged, JobError
from dlrover_lite.core.files.durable import UnsafeName, checked_name

__all__ = ["Destination", "FileReader", "FileWriter", "Piece", "damaged", "open_destination", "placed", "troubled"]

Piece = bytes | memoryview
"""Bytes to be written; memoryviews are of bytes."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_GONE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENODEV,
    errno.ENOTCONN,
    errno.ESTALE,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ETIMEDOUT,
)
_TRY_AGAIN = "Nothing of this checkpoint is visible; the next one is tried as soon as it is due."


class FileWriter(Protocol):
    """A file under way: invisible, or at least named by no manifest, until ``finish`` has returned."""

    def write(self, pieces: Sequence[Piece]) -> None:
        """Append non-empty, contiguous pieces of bytes."""

    def finish(self) -> None:
        """Finish the file: it is there, whole and durable."""

    def abandon(self) -> None:
        """Leave nothing of the file, as far as the destination lets us."""


class FileReader(Protocol):
    """Reads one file by position, from any thread."""

    url: str
    size: int
    read_bytes: int
    """Largest useful size of a read in bytes: more isn't faster."""

    def read(self, offset: int, length: int) -> memoryview:
        """Read exactly these bytes. Raises CheckpointDamaged if the file ends before."""

    def read_once(self) -> None:
        """Tell that hardly anybody else will read the file soon: what is read needn't be kept in the page cache."""

    def close(self) -> None: ...


class Destination(Protocol):
    url: str

    def create(self) -> None:
        """Make the destination itself, if need be. Nothing else does: one that has vanished isn't replaced by an empty one."""

    def exists(self) -> bool: ...

    def directories(self) -> dict[str, dict[str, int]]:
        """Return the names and sizes in bytes of the files in each directory."""

    def make(self, directory: str) -> None:
        """Make a directory; there may be one already."""

    def writer(self, name: str) -> FileWriter: ...

    def put(self, name: str, data: bytes) -> None:
        """Write a small file: it is there, whole and durable, or not at all."""

    def open(self, name: str) -> FileReader:
        """Open a file for reading. Raises CheckpointDamaged if there is none."""

    def remove(self, directory: str, *, first: str = "") -> None:
        """Remove a directory with its files; the file ``first`` before all others. What isn't there needs no removing."""


def open_destination(url: str) -> Destination:
    """Open the destination of a path, an fsspec URL (``s3://bucket/jobs``), or what a job serves to its pods (``checkpoint.file_service``).
    Raises JobError for a kind of URL that can't be used here."""
    scheme, colon, rest = url.partition("://")
    if not colon or scheme == "file":
        from dlrover_lite.checkpoint.local import LocalDirectory

        return LocalDirectory(rest if colon else url)
    if scheme == "dlrover-lite":
        from dlrover_lite.checkpoint.file_service.client import served

        return served(url)
    from dlrover_lite.checkpoint.remote import RemoteDirectory

    return RemoteDirectory(url)


def placed(root: str, name: str) -> str:
    """Return ``name`` below ``root``. Raises JobError for a name that leads out of there; manifests with such names are refused before."""
    try:
        return f"{root}/{checked_name(name, folders=True)}"
    except UnsafeName as error:
        raise JobError(f"{root} can't hold such a file: {error}") from error


def troubled(doing: str, where: str, error: BaseException) -> JobError:
    """Return an error that says what has happened, and what to do about it. ``doing``: "write"."""
    code = error.errno if isinstance(error, OSError) else None
    why = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    if code in _FULL:
        what, hint = (
            "The checkpoint's destination is full",
            "Make room there, or keep fewer checkpoints (checkpoint.keep).",
        )
    elif code in _FORBIDDEN or isinstance(error, PermissionError):
        what, hint = (
            "The checkpoint's destination may not be used",
            "Make it readable and writable, or choose another: checkpoint.directory.",
        )
    elif code in _GONE or isinstance(error, FileNotFoundError):
        what, hint = "The checkpoint's destination is gone", "Is it mounted, and reachable?"
    else:
        what, hint = "The checkpoint's destination fails", "See whether it works otherwise."
    if doing not in ("list", "read"):
        hint = f"{hint} {_TRY_AGAIN}"
    return JobError(f"{what}: can't {doing} {where}: {why}", hint=hint)


def damaged(file: str, what: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"{file} is damaged: {what}", file=file, hint="An older checkpoint may be whole: dlrover-lite checkpoints"
    )
