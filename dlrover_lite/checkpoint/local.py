"""A directory of a file system as destination: temp file, fsync, rename, fsync of the directory."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.destination import Piece, damaged, placed, troubled
from dlrover_lite.checkpoint.layout import ALIGNMENT, LARGE_BYTES
from dlrover_lite.core.files.durable import make_private, sync_descriptor, sync_directory
from dlrover_lite.core.files.regular import NotRegularFile, open_descriptor

__all__ = ["LocalDirectory"]

TEMPORARY = ".tmp-"
"""Prefix of the names of files under way."""
WRITEBACK_BYTES = 8 << 20
_MOST_PIECES = 512
"""Number of pieces of one writev, at most (IOV_MAX is 1,024 on Linux and macOS)."""


class LocalDirectory:
    def __init__(self, path: str) -> None:
        self.url = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - links stay as they were named

    def create(self) -> None:
        with _troubles("create", self.url):
            make_private(Path(self.url))

    def exists(self) -> bool:
        with _troubles("list", self.url), suppress(FileNotFoundError, NotADirectoryError):
            return stat.S_ISDIR(os.stat(self.url).st_mode)  # noqa: PTH116 - isdir takes one that can't be looked at for none
        return False

    def directories(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        with _troubles("list", self.url), os.scandir(self.url) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found[entry.name] = self._files(entry.path)
        return found

    def _files(self, path: str) -> dict[str, int]:
        sizes: dict[str, int] = {}
        with suppress(FileNotFoundError), os.scandir(path) as entries:  # removed while we look
            for entry in entries:
                with suppress(FileNotFoundError):
                    sizes[entry.name] = entry.stat().st_size
        return sizes

    def make(self, directory: str) -> None:
        path = placed(self.url, directory)
        with _troubles("create", path):
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)  # noqa: PTH102
            sync_directory(self.url)

    def writer(self, name: str) -> _Writer:
        return _Writer(placed(self.url, name))

    def put(self, name: str, data: bytes) -> None:
        writer = self.writer(name)
        try:
            writer.write([data])
            writer.finish()
        finally:
            writer.abandon()

    def open(self, name: str) -> _Reader:
        return _Reader(placed(self.url, name))

    def remove(self, directory: str, *, first: str = "") -> None:
        path = placed(self.url, directory)
        with _troubles("remove", path), suppress(FileNotFoundError):
            if first:
                with suppress(FileNotFoundError):
                    os.unlink(f"{path}/{first}")  # noqa: PTH108
                sync_directory(path)
            for name in os.listdir(path):  # noqa: PTH208
                with suppress(FileNotFoundError):
                    os.unlink(f"{path}/{name}")  # noqa: PTH108
            os.rmdir(path)  # noqa: PTH106


class _Writer:
    """Large pieces that are aligned (``layout.ALIGNMENT``) go past the page cache, where the file system can do that: it takes an eighth of
    the CPU time, counts against no memory limit, and keeps the disk busy from the beginning. All others go through it."""

    def __init__(self, path: str) -> None:
        self._path = path
        directory, name = os.path.split(path)
        self._directory = directory
        self._temporary: str | None = f"{directory}/{TEMPORARY}{secrets.token_hex(4)}-{name}"
        self._written = self._cached = 0
        self._direct = False
        self._can_direct = hasattr(os, "O_DIRECT")
        with _troubles("write", self._path):
            self._descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, pieces: Sequence[Piece]) -> None:
        views = [memoryview(piece) for piece in pieces]
        with _troubles("write", self._path):
            self._pass_by_cache(self._written % ALIGNMENT == 0 and all(map(_aligned, views)))
            while views:
                written = self._put(views[:_MOST_PIECES])
                self._written += written
                views = _behind(views, written)
            if self._cached >= WRITEBACK_BYTES:
                self._send()

    def _put(self, views: list[memoryview]) -> int:
        try:
            written = os.writev(self._descriptor, views)
        except OSError as error:
            if not (self._direct and error.errno == errno.EINVAL):
                raise
            self._pass_by_cache(False)  # it can't after all, or not what a write that was cut short has left
            self._can_direct = False
            written = os.writev(self._descriptor, views)
        self._cached += 0 if self._direct else written
        return written

    def _pass_by_cache(self, wanted: bool) -> None:
        wanted = wanted and self._can_direct
        if wanted == self._direct:
            return
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if wanted else 0))
            self._direct = wanted
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._can_direct = False

    def _send(self) -> None:
        """Have the disk begin with what there is, so that the fsync at the end isn't all of it; and give back the cache of what has arrived
        there, which counts against this process's memory limit and nobody will read soon."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, self._written, os.POSIX_FADV_DONTNEED)
        self._cached = 0

    def finish(self) -> None:
        assert self._temporary is not None
        with _troubles("write", self._path):
            sync_descriptor(self._descriptor)
            os.replace(self._temporary, self._path)  # noqa: PTH105
            self._temporary = None
            sync_directory(self._directory)
        self.abandon()

    def abandon(self) -> None:
        """Abandon the file under way; without effect on one that is finished."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._temporary is not None:
            with suppress(OSError):  # the next checkpoint cleans up
                os.unlink(self._temporary)  # noqa: PTH108
            self._temporary = None


class _Reader:
    read_bytes = 2 << 20

    def __init__(self, path: str) -> None:
        self.url = path
        self._descriptor = self._direct = -1
        try:
            with _troubles("read", path):
                self._descriptor = open_descriptor(path)
                self.size = os.fstat(self._descriptor).st_size
        except BaseException:
            self.close()
            raise

    def read(self, offset: int, length: int) -> memoryview:
        direct = self._direct >= 0 and length >= LARGE_BYTES
        skipped = offset % ALIGNMENT if direct else 0
        wanted = skipped + length
        room = _aligned_room(wanted + -wanted % ALIGNMENT)
        with _troubles("read", self.url):
            done = self._read_direct(room, offset - skipped) if direct else 0
            while done < wanted:
                got = os.preadv(self._descriptor, [room[done:wanted]], offset - skipped + done)
                if not got:
                    raise damaged(self.url, f"it ends at byte {offset - skipped + done:,}")
                done += got
        return room[skipped:wanted]

    def _read_direct(self, room: memoryview, offset: int) -> int:
        """Read past the page cache. Return how much was read: less than there is, if need be."""
        try:
            return os.preadv(self._direct, [room], offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return 0  # it can't after all

    def read_once(self) -> None:
        """Read past the page cache, where the file system can do that: a fifth of the CPU time, and faster."""
        if self._direct < 0 and hasattr(os, "O_DIRECT"):
            with suppress(OSError):  # EINVAL: it can't
                self._direct = open_descriptor(self.url, os.O_DIRECT)

    def close(self) -> None:
        for descriptor in (self._descriptor, self._direct):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._direct = -1


def _aligned_room(size: int) -> memoryview:
    room = np.empty(size + ALIGNMENT, np.uint8)  # a bytearray would be zeroed first
    start = -_address(room) % ALIGNMENT
    return room[start : start + size].data


def _aligned(view: memoryview) -> bool:
    if len(view) < LARGE_BYTES or len(view) % ALIGNMENT:
        return False
    return _address(np.frombuffer(view, np.uint8)) % ALIGNMENT == 0


def _address(array: NDArray[np.uint8]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _behind(views: list[memoryview], written: int) -> list[memoryview]:
    """Return what is left to write."""
    for at, view in enumerate(views):
        if written < len(view):
            return [view[written:], *views[at + 1 :]]
        written -= len(view)
    return []


@contextmanager
def _troubles(doing: str, where: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        # Reading starts from a manifest or a listing: what these name is there, or is missing.
        if doing == "read" and os.path.isdir(os.path.dirname(where)):  # noqa: PTH112, PTH120
            raise damaged(where, "it is missing") from error
        raise troubled(doing, where, error) from error
    except (NotRegularFile, IsADirectoryError) as error:
        if doing == "read":
            raise damaged(where, str(error.strerror)) from error
        raise troubled(doing, where, error) from error
    except OSError as error:
        if doing == "read" and error.errno == errno.EIO:
            raise damaged(where, "the disk can't read it") from error
        raise troubled(doing, where, error) from error
