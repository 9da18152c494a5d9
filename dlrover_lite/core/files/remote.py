"""A file under a URL that fsspec knows: its version, and ranges of its bytes. Credentials are what the environment has."""

from __future__ import annotations

import glob
import hashlib
import io
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.retries import PATIENT, Refused, Retries, retrying
from dlrover_lite.core.files.urls import scheme_of, shown, url_problem

__all__ = ["RangeStream", "RemoteFile", "Version"]

T = TypeVar("T")

_TAGS = ("ETag", "etag", "md5Hash", "generation", "content_md5", "Content-MD5", "md5", "Digest")
_TIMES = ("LastModified", "last_modified", "Last-Modified", "updated", "mtime", "modified", "created")
_STAMP_BITS = 60
"""A stamp is kept as a modification time in nanoseconds, too."""
_WHY = 300
"""The most characters of a file system's own words in a message."""


class Version(NamedTuple):
    """What a file has to be still, for what is known of it to hold."""

    size: int
    """Bytes."""
    stamp: int
    """Modification time in nanoseconds; of a file under a URL a digest of its tag (or of its modification time), 0 if there is neither."""


class RemoteFile:
    """``url`` is spelled as the person wrote it. It holds no connection: any process and thread may use it."""

    def __init__(self, url: str, retries: Retries = PATIENT) -> None:
        self.url = url
        self._retries = retries
        self._version: Version | None = None

    def __str__(self) -> str:
        return shown(self.url)

    def __repr__(self) -> str:
        return f"RemoteFile({shown(self.url)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFile) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def name(self) -> str:
        path = urlsplit(self.url).path if scheme_of(self.url) in ("http", "https") else self.url
        return path.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def is_folder(self) -> bool:
        """Return whether it stands for all that is below a folder. Over ``https://`` nothing is listed."""
        return scheme_of(self.url) not in ("http", "https") and self.url.endswith("/")

    @property
    def is_pattern(self) -> bool:
        """Return whether it may name several files: a glob or a folder. A ``?`` of an ``https://`` URL begins its query."""
        return self.is_folder or (scheme_of(self.url) not in ("http", "https") and glob.has_magic(self.url))

    def matches(self) -> list[RemoteFile]:
        """Return the files that the URL as a glob or folder names, sorted. Those that a store's list tells the version of know it: none of
        them is asked for alone. Raises DataError."""

        def find() -> dict[str, Version | None]:
            system, path = self._system()
            system.invalidate_cache()
            try:
                found = system.find(path, detail=True) if self.is_folder else system.glob(path, detail=True)
            finally:
                system.invalidate_cache()  # it would keep what it knows of each
            inside = len(path.rstrip("/")) if self.is_folder else None
            return {name: _version(its) for name, its in sorted(found.items()) if _is_data(name, its, inside)}

        written, path = self.url.rstrip("/"), self._path().rstrip("/")
        before = written[: len(written) - len(path)] if written.endswith(path) else f"{scheme_of(written)}://"
        listed = self._ask("listed", find)
        files = [RemoteFile(before + name, self._retries) for name in listed]
        versions = list(listed.values())
        if len(files) > 1 and versions[0] is not None and files[0].current() == versions[0]:
            # Lists of this store say the same as it does of one object: or all would seem to have changed.
            for file, version in zip(files, versions, strict=True):
                file._version = version
        return files

    def version(self) -> Version:
        """Return the version that was first asked for: reading goes by it. Raises DataError."""
        if self._version is None:
            self._version = self.current()
        return self._version

    def current(self) -> Version:
        """Ask which version there is now. Raises DataError."""

        def ask() -> dict[str, Any]:
            system, path = self._system()
            system.invalidate_cache()
            found: dict[str, Any] = system.info(path)
            return found

        found = self._ask("read", ask)
        if found.get("type") == "directory":
            raise DataError(
                f"{self} is a folder; name its files, as in {str(self).rstrip('/')}/*.tsv, or all: {str(self).rstrip('/')}/"
            )
        if (version := _version(found)) is None:
            raise DataError(f"{self} can't be used: the server doesn't tell its size")
        return version

    def check(self) -> None:
        """Check that the file is still what it was. Raises DataError when it isn't."""
        if self.current() != self.version():
            raise self.changed()

    def changed(self) -> DataError:
        return DataError(f"{self} was changed while it was being read", hint="Start again once nothing writes to it.")

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop), all of which there should be. Whether the file is the same as before is for ``check`` to say.
        Raises DataError."""

        def get() -> bytes:
            system, path = self._system()
            data: bytes = system.cat_file(path, start=start, end=stop)
            if len(data) < stop - start:
                raise ConnectionError(f"{len(data):,} of {stop - start:,} bytes have come")
            return data

        if stop <= start:
            return b""
        data = self._ask("read", get)
        if len(data) > stop - start:
            raise DataError(
                f"{self} can't be read: the server sends all of it where a range of bytes is asked for",
                hint="Put it on a server that serves ranges, or copy it here.",
            )
        return data

    def _path(self) -> str:
        """Return what the file system calls it."""
        return str(self._ask("read", self._system)[1])

    def _system(self) -> tuple[Any, str]:
        """Return the file system, made in this process, and the file's path in it."""
        import fsspec

        system, path = fsspec.core.url_to_fs(self.url, **_options(self.url))
        _try_once(system)
        return system, str(path)

    def _ask(self, doing: str, call: Callable[[], T]) -> T:
        if problem := url_problem(self.url):
            raise DataError(problem)
        try:
            return retrying(call, self._retries)
        except Refused as refused:
            raise self._error(doing, refused) from refused.error

    def _error(self, doing: str, refused: Refused) -> DataError:
        error = refused.error
        why = " ".join(str(error).split())[:_WHY] or type(error).__name__
        match refused.kind:
            case "missing":
                bucket = ", and no such bucket" if "bucket" in why.lower() else ""
                return DataError(f"{self}: no such object{bucket}", hint="Check the URL, and who may see it.")
            case "forbidden":
                return DataError(
                    f"{self} may not be read: {why}",
                    hint="Credentials come from the environment, a Secret or the pod's service account; they need the right to read it.",
                )
            case "changed":
                return self.changed()
            case "package" | "unusable":
                return DataError(f"{self} can't be {doing}: {why}", hint="Check the URL.")
        times = f" (tried {refused.attempts} times)" if refused.attempts > 1 else ""
        return DataError(
            f"{self} can't be {doing}: {type(error).__name__}: {why}{times}",
            hint="The store, or the way to it, doesn't work or refuses so many requests. Start again, or resume, when it does.",
        )


class RangeStream(io.RawIOBase):
    """A stream over ranges of bytes that ``fetch(start, stop)`` returns."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes | memoryview]) -> None:
        self._size, self._fetch, self._position = size, fetch, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._position))
        view[:count] = self._fetch(self._position, self._position + count)
        self._position += count
        return count


def _is_data(name: str, details: dict[str, Any], inside: int | None) -> bool:
    """Return whether this is an object to be read. Below a folder, whose path has the length ``inside``, what begins with ``_`` or ``.``
    isn't: markers, and what is just being written."""
    if details.get("type") == "directory" or name.endswith("/"):
        return False
    return inside is None or not any(part.startswith(("_", ".")) for part in name[inside:].split("/"))


def _version(found: dict[str, Any]) -> Version | None:
    """Return the version that a store tells; None where it doesn't tell the size."""
    return None if found.get("size") is None else Version(int(found["size"]), _stamp(found))


def _stamp(found: dict[str, Any]) -> int:
    tag = next((f"{found[name]}" for name in (*_TAGS, *_TIMES) if found.get(name)), "")
    digest = hashlib.blake2b(tag.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _STAMP_BITS) if tag else 0


def _try_once(system: Any) -> None:
    """Have a file system try once: tries again are ours. (That of Google has no way to say so, and makes six.)"""
    if hasattr(system, "retries"):  # s3fs
        system.retries = 1
    clients = getattr(system, "service_client", None)  # adlfs: its client pauses for 15 s and more
    for client in clients if isinstance(clients, list) else [clients]:
        policy: Any = getattr(getattr(client, "_config", None), "retry_policy", None)
        if hasattr(policy, "total_retries"):
            policy.total_retries = 0


def _options(url: str) -> dict[str, Any]:
    """Return how the file system is to be made: so that it doesn't try again for minutes by itself."""
    if scheme_of(url) in ("abfs", "abfss", "az"):
        return {"default_fill_cache": False}  # one of our own: who writes there has nobody else to try again
    if scheme_of(url) not in ("s3", "s3a"):
        return {}
    import fsspec

    given = dict(fsspec.config.conf.get("s3", {}).get("config_kwargs", {}))
    return {"config_kwargs": {"retries": {"total_max_attempts": 1}, **given}}
