"""Memory that outlives its process: kept by the backend, under an address that each node finds in its environment.

``keeper:PATH``: the unix socket of whoever holds descriptors for nodes. A node names itself, and sends a descriptor to be kept, or asks for
those that the node it follows has left. ``directory:PATH``: files of a memory volume, which a container that is started again finds there.
Nothing: memory ends with the process.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.core.bounds import Items, Name, Text
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.files.durable import make_private

if TYPE_CHECKING:
    from dlrover_lite.ps.memory.state_memory import Memory

__all__ = [
    "MEMORY_VARIABLE",
    "DirectoryMemory",
    "Fetch",
    "Keep",
    "KeeperMemory",
    "KeeperRequest",
    "Kept",
    "Left",
    "Refused",
    "make_memfd",
    "open_memory",
]

MEMORY_VARIABLE = "DLROVER_LITE_MEMORY"
"""Name of the environment variable that says where a node's memory is kept."""
FILES_AT_ONCE = 64
"""Number of descriptors in one message; the kernel passes at most 253."""
_ANSWER_SECONDS = 30.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


class Keep(msgspec.Struct, frozen=True, tag=True):
    """A request with one descriptor: hold it for ``node``, in place of an earlier one of this name. Answer Kept, or Refused."""

    node: Name
    name: Name


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """A request for all that was left for ``node``. Answer Left, more than one if need be, or Refused."""

    node: Name


class Kept(msgspec.Struct, frozen=True, tag=True):
    pass


class Left(msgspec.Struct, frozen=True, tag=True):
    """The answer with a descriptor for each name."""

    names: Items[Name]
    more: bool = False


class Refused(msgspec.Struct, frozen=True, tag=True):
    why: Text


KeeperRequest = Keep | Fetch
_Answer = Kept | Left | Refused


def open_memory(node: str, environment: Mapping[str, str] = os.environ) -> Memory | None:
    """Open the memory that the environment names; None where nothing outlives the node. Raises BackendError for an address that means
    nothing here."""
    address = environment.get(MEMORY_VARIABLE, "")
    kind, _, where = address.partition(":")
    if not address:
        return None
    if kind == "keeper" and where:
        return KeeperMemory(where, node)
    if kind == "directory" and where:
        return DirectoryMemory(Path(where))
    raise BackendError(f"{MEMORY_VARIABLE}={address} is neither keeper:PATH nor directory:PATH")


class KeeperMemory:
    """Anonymous memory whose descriptors another process holds too. Methods raise BackendError when it can't be reached, or refuses."""

    def __init__(self, path: str, node: str) -> None:
        self._path = path
        self._node = node

    def create(self, name: str, reserve_bytes: int) -> int:
        fd = make_memfd(_checked(name), reserve_bytes)
        try:
            with closing(self._connect()) as connection:
                self._send(connection, Keep(self._node, name), [fd])
                answer, _ = self._hear(connection)
            if not isinstance(answer, Kept):
                raise self._failed(type(answer).__name__)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def left(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with closing(self._connect()) as connection:
            self._send(connection, Fetch(self._node))
            more = True
            while more:
                answer, fds = self._hear(connection)
                if not isinstance(answer, Left) or len(fds) != len(answer.names):
                    raise self._failed(f"{type(answer).__name__} with {len(fds)} descriptors")
                found.update(zip(answer.names, fds, strict=True))
                more = answer.more
        return found

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(self._path)
        except OSError as error:
            connection.close()
            raise self._failed(error.strerror or str(error)) from error
        return connection

    def _send(self, connection: socket.socket, message: KeeperRequest, fds: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(connection, [msgspec.json.encode(message)], fds)
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from error

    def _hear(self, connection: socket.socket) -> tuple[_Answer, list[int]]:
        try:
            data, fds, _, _ = socket.recv_fds(connection, 1 << 16, FILES_AT_ONCE, socket.MSG_CMSG_CLOEXEC)
            answer: _Answer = from_json(data, _Answer)
        except (OSError, msgspec.DecodeError) as error:
            raise self._failed(str(error)) from error
        if isinstance(answer, Refused):
            raise self._failed(answer.why)
        return answer, fds

    def _failed(self, why: str) -> BackendError:
        return BackendError(
            f"{self._node}'s memory can't be kept by {self._path}: {why}", hint="See keeper.log in the job's logs."
        )


class DirectoryMemory:
    """Files in a directory of its own. ``left`` is what was there when this was made. Methods raise BackendError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with _named(self._directory):
            make_private(directory)
            self._before = {path.name for path in directory.iterdir() if _NAME.match(path.name)}

    def create(self, name: str, reserve_bytes: int) -> int:
        made, path = self._directory / f".{_checked(name)}", self._directory / name
        with _named(self._directory):
            fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(fd, reserve_bytes)
                made.replace(path)  # never there with another size than this
            except OSError:
                os.close(fd)
                with suppress(OSError):
                    made.unlink()
                raise
        self._before.discard(name)
        return fd

    def left(self) -> dict[str, int]:
        with _named(self._directory):
            return {name: os.open(self._directory / name, os.O_RDWR | os.O_CLOEXEC) for name in sorted(self._before)}


@contextmanager
def _named(directory: Path) -> Iterator[None]:
    """Errors of the system become ours, with the directory."""
    try:
        yield
    except OSError as error:
        raise BackendError(
            f"memory can't be kept in {directory}: {error.strerror}",
            hint="It must be a directory of this node's own, in a file system in memory (tmpfs).",
        ) from error


def _checked(name: str) -> str:
    if not _NAME.match(name):
        raise ValueError(f"{name!r} can't be the name of a memory file")
    return name


def make_memfd(name: str, size: int, *, fixed: bool = False) -> int:
    """An anonymous file of memory. ``fixed``: nobody can change its size any more."""
    if sys.platform != "linux":
        raise OSError("only Linux has memory that outlives its process")
    fd = os.memfd_create(name, os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if fixed else 0))
    try:
        os.ftruncate(fd, size)
        if fixed:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd
