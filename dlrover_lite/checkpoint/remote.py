"""Any file system that fsspec knows as destination, object stores above all: there is no rename; an object appears when it is closed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import fsspec

from dlrover_lite.checkpoint.destination import Piece, damaged, placed, troubled
from dlrover_lite.core.errors import JobError

__all__ = ["RemoteDirectory"]


class RemoteDirectory:
    """Paths of the file system are what fsspec makes of the URL; ``url`` stays as it was written."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._system, path = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            raise JobError(f"{url} can't be used: {error}", hint="Install what it names with pip.") from error
        except ValueError as error:
            known = "Use a path, or a URL that fsspec knows, such as s3://bucket/folder."
            raise JobError(f"{url} can't be used: {error}", hint=known) from error
        self._path = str(path).rstrip("/")

    def create(self) -> None:
        with _troubles("create", self.url):
            self._system.makedirs(self._path, exist_ok=True)

    def exists(self) -> bool:
        with _troubles("list", self.url):
            return bool(self._system.exists(self._path))

    def directories(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        with _troubles("list", self.url):
            self._system.invalidate_cache()
            for path, details in self._system.find(self._path, detail=True).items():
                directory, slash, name = path[len(self._path) :].lstrip("/").partition("/")
                if slash and "/" not in name:
                    found.setdefault(directory, {})[name] = int(details["size"])
        return found

    def make(self, directory: str) -> None:
        """Make a directory where there are any: object stores have none, they come with what is in them."""
        with _troubles("create", f"{self.url}/{directory}"):
            self._system.makedirs(placed(self._path, directory), exist_ok=True)

    def writer(self, name: str) -> _Writer:
        return _Writer(self._system, placed(self._path, name), f"{self.url}/{name}")

    def put(self, name: str, data: bytes) -> None:
        with _troubles("write", f"{self.url}/{name}"):
            self._system.pipe_file(placed(self._path, name), data)

    def open(self, name: str) -> _Reader:
        return _Reader(self._system, placed(self._path, name), f"{self.url}/{name}")

    def remove(self, directory: str, *, first: str = "") -> None:
        with _troubles("remove", f"{self.url}/{directory}"):
            if first:
                with suppress(FileNotFoundError):
                    self._system.rm_file(placed(self._path, f"{directory}/{first}"))
            with suppress(FileNotFoundError):
                self._system.rm(placed(self._path, directory), recursive=True)


class _Writer:
    def __init__(self, system: Any, path: str, url: str) -> None:
        self._system, self._path, self._url = system, path, url
        with _troubles("write", url):
            self._file: Any = system.open(path, "wb")

    def write(self, pieces: Sequence[Piece]) -> None:
        with _troubles("write", self._url):
            for piece in pieces:
                self._file.write(piece)

    def finish(self) -> None:
        with _troubles("write", self._url):
            self._file.close()
        self._file = None

    def abandon(self) -> None:
        """Abandon the file under way; without effect on one that is finished. What can't be removed now, the next checkpoint cleans up."""
        if self._file is None:
            return
        with suppress(JobError), _troubles("remove", self._url):
            if isinstance(self._file, fsspec.spec.AbstractBufferedFile):
                self._file.discard()
                self._file.closed = True  # being collected, it would upload what it has
            if self._system.exists(self._path):
                self._system.rm_file(self._path)
        self._file = None


class _Reader:
    read_bytes = 8 << 20

    def __init__(self, system: Any, path: str, url: str) -> None:
        self._system, self._path, self.url = system, path, url
        with _troubles("read", url):
            self.size = int(system.info(path)["size"])

    def read(self, offset: int, length: int) -> memoryview:
        with _troubles("read", self.url):
            data = self._system.cat_file(self._path, start=offset, end=offset + length)
        if len(data) != length:
            raise damaged(self.url, f"it ends at byte {offset + len(data):,}")
        return memoryview(data)

    def read_once(self) -> None:
        pass

    def close(self) -> None:
        pass


@contextmanager
def _troubles(doing: str, where: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if doing == "read":
            raise damaged(where, "it is missing") from error
        raise troubled(doing, where, error) from error
    except JobError:
        raise
    except Exception as error:
        raise troubled(doing, where, error) from error
