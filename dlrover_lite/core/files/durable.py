"""Files of our own: for their owner alone, written whole or not at all, and never outside of the directory that they are named in.

What is kept of jobs, of the brain, of checkpoints and in caches goes through here. Exported models, recordings and recipes are a person's
own files, and follow the umask.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = [
    "UnsafeName",
    "checked_name",
    "close_to_others",
    "create_private",
    "is_disk_full",
    "make_private",
    "open_private",
    "sync_descriptor",
    "sync_directory",
    "sync_file",
    "without_syncing",
    "write_whole",
]

_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_OTHERS = 0o077
_PROBE_BYTES = 64 << 10
_LONGEST_PART_BYTES = 255
_LONGEST_NAME_BYTES = 4096
_syncs = True


class UnsafeName(ValueError):
    """A name that may lead out of the directory it is used in. Callers say where it was read, and what to do."""


def checked_name(name: str, *, folders: bool = False) -> str:
    """Return ``name``, which is that of a file directly in the directory it is used in; with ``folders``, or in one below it.

    For every name that was read from a manifest, an export or a message, before it is joined to a directory or a URL. Links aren't looked
    at: what is read is compared with a checksum that says what it must be, and what is written or removed doesn't follow them. Raises
    UnsafeName for anything else: absolute paths, ``..``, empty parts, control characters, and what no file system takes.
    """
    parts = name.split("/") if folders else [name]
    if any(part in ("", ".", "..") or "/" in part or "\\" in part for part in parts):
        raise UnsafeName(f"{name!r} isn't the name of a file in its directory")
    if not name.isprintable():
        raise UnsafeName(f"{name!r} has characters that names of files can't have")
    lengths = [len(os.fsencode(part)) for part in parts]
    if max(lengths) > _LONGEST_PART_BYTES or sum(lengths) + len(parts) > _LONGEST_NAME_BYTES:
        raise UnsafeName(f"a name of {len(name):,} characters is too long for a file")
    return name


def make_private(directory: Path) -> None:
    """Make ``directory``, and what is missing above it, so that only its owner may use it, whatever the umask. One that is there is
    closed to others if it is this user's. Raises OSError."""
    if not directory.is_dir():
        if directory.parent != directory and not directory.parent.is_dir():
            make_private(directory.parent)
        with suppress(FileExistsError):  # another process was faster, or something else is there: seen below
            directory.mkdir(mode=_DIRECTORY_MODE)
    close_to_others(directory, must_exist=True)
    if not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))


def close_to_others(path: Path, *, must_exist: bool = False) -> None:
    """Take from all other users what rights they have to a file or directory of this user's; what is another's stays as it is, and so does
    what is on a file system that has no rights, or can't be written.

    Raises OSError for one that can't be looked at, FileNotFoundError only if it ``must_exist``.
    """
    try:
        status = path.stat()
        wanted = _DIRECTORY_MODE if stat.S_ISDIR(status.st_mode) else _FILE_MODE
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid == os.geteuid() and _is_wrong(mode, wanted):
            with suppress(OSError):
                path.chmod((mode & ~_OTHERS) | wanted)
    except FileNotFoundError:
        if must_exist:
            raise


def _is_wrong(mode: int, wanted: int) -> bool:
    return bool(mode & _OTHERS) or mode & wanted != wanted


def open_private(path: Path, flags: int) -> int:
    """Open a file as ``os.open`` does, made if it isn't there (O_CREAT is added, O_CLOEXEC too), for its owner alone. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    try:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and _is_wrong(mode, _FILE_MODE):
            with suppress(OSError):  # a file system without rights
                os.fchmod(descriptor, (mode & ~_OTHERS) | _FILE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_private(path: Path) -> None:
    """Make an empty file for its owner alone, or close to others the one that is there. It isn't opened: closing it would let go of
    SQLite's locks in this process. Raises OSError."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE))
    close_to_others(path)


def write_whole(path: Path, data: bytes | Sequence[bytes], *, replace: bool = True, sync: bool = True) -> bool:
    """Write a whole file or none, for its owner alone; without ``replace``, False when there is one already.

    With ``sync`` it is durable when this returns: data before the name, and the name before the return. Raises OSError.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with suppress(OSError):  # a file system without rights; elsewhere the umask may have taken from it
                os.fchmod(descriptor, _FILE_MODE)
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            if sync:
                sync_descriptor(descriptor)
        if replace:
            os.replace(temporary, path)  # noqa: PTH105 - a name, not a path
        else:
            _place_first(temporary, path, sync=sync)
        if sync:
            sync_directory(path.parent)
        return True
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)  # noqa: PTH108


def _place_first(source: str, target: Path, *, sync: bool) -> None:
    """Give the file its name unless another has it: a link does both at once, where the file system has links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(Path(source).read_bytes())
            file.flush()
            if sync:
                sync_descriptor(descriptor)


def sync_file(path: Path) -> None:
    """Make durable what has been written to a file. Raises OSError."""
    with path.open("rb") as file:
        sync_descriptor(file.fileno())


def is_disk_full(directory: Path) -> bool:
    """Return whether a few more pages can't be written there now."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


@contextmanager
def without_syncing() -> Iterator[None]:
    """Have nothing of what this process writes synced meanwhile, where no machine can fail: what was written outlives the process."""
    global _syncs  # who writes files is many calls away
    before, _syncs = _syncs, False
    try:
        yield
    finally:
        _syncs = before


def sync_descriptor(descriptor: int) -> None:
    """Have what was written to a file arrive at the disk."""
    if _syncs:
        os.fsync(descriptor)


def sync_directory(path: Path | str) -> None:
    """Make durable which names there are in a directory. Raises OSError, not for a file system that syncs no directories."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_descriptor(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
