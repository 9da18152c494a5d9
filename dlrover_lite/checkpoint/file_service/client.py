"""The files of a job that another process serves: read from anywhere with the job's key, and as destination of checkpoints."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from dlrover_lite.checkpoint.destination import Piece, damaged
from dlrover_lite.checkpoint.file_service.service import DAMAGED
from dlrover_lite.core.errors import JobError, RemoteError, UsageError, WireError
from dlrover_lite.protocol import file_messages as messages
from dlrover_lite.protocol.file_messages import MOST_PIECE_BYTES, FileEntry
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Reply

__all__ = ["SCHEME", "FileClient", "FilePart", "FilesUnreachable", "ServedDirectory", "served"]

SCHEME = "dlrover-lite"
_DEADLINE_SECONDS = 60.0
"""Longest wait for an answer: who serves may be starting again, or busy with another's large file."""

T = TypeVar("T")


class FilesUnreachable(JobError):
    """Nobody answers."""


class FilePart(NamedTuple):
    data: memoryview
    """Bytes from the offset on: at most as many as were asked for, and none beyond the end."""
    size: int
    """Size of the file now; 0 of one that isn't there."""
    is_there: bool = True


class FileClient:
    """A connection to who serves a job's files at ``endpoint``, for one thread at a time. Raises JobError where it can't be had."""

    def __init__(
        self,
        endpoint: str,
        connector: Connector | None = None,
        *,
        peer: str = "who keeps the job's files",
        has_ended: Callable[[], bool] = lambda: False,
        deadline_seconds: float | None = None,
    ) -> None:
        """``connector``: None: one of its own, with the key that the environment names. ``has_ended``: whether nobody can answer any
        more."""
        self.endpoint = endpoint
        self._has_ended = has_ended
        self._deadline_seconds = _DEADLINE_SECONDS if deadline_seconds is None else deadline_seconds
        self._own_connector: Connector | None = None
        try:
            if connector is None:
                connector = self._own_connector = Connector.of_this_process()
            self._client = connector.client(endpoint, messages.FileReplies, peer=peer)
        except (UsageError, WireError) as error:
            raise JobError(f"{endpoint} can't be used: {error.message}", hint=error.hint) from error

    def tree(self, below: str = "") -> list[FileEntry]:
        """List all files that may be read, below a directory."""
        return self.ask(messages.ListTree(below), messages.Tree)[0].files

    def part(self, path: str, offset: int, most_bytes: int = MOST_PIECE_BYTES) -> FilePart:
        """Read a part of a file, which may be growing, or not be there."""
        answer, reply = self.ask(messages.ReadPart(path, offset, most_bytes), messages.Part)
        data = reply.buffer(0) if len(reply.frames) == 1 else memoryview(b"")
        if len(data) != min(most_bytes, max(0, answer.size - offset)):
            raise JobError(f"{path} doesn't come whole: {len(data)} bytes from {offset:,} on", hint="Try again.")
        return FilePart(data, answer.size, answer.is_there)

    def ask(self, request: msgspec.Struct, expected: type[T], frames: Sequence[Any] = ()) -> tuple[T, Reply]:
        """Raises JobError, CheckpointDamaged."""
        try:
            reply = self._client.call(
                request, frames, deadline_seconds=self._deadline_seconds, has_ended=self._has_ended
            )
        except RemoteError as error:
            if error.code == DAMAGED:
                where, _, what = error.message.partition(" is damaged: ")
                raise damaged(where, what or error.message) from error
            raise JobError(error.message, hint=error.hint) from error
        except WireError as error:
            raise FilesUnreachable(
                f"The job's files can't be reached: {error.message}", hint=error.hint or "Does the job's master run?"
            ) from error
        if not isinstance(reply.body, expected):
            raise JobError(f"{type(request).__name__} was answered with {type(reply.body).__name__}")
        return reply.body, reply

    def close(self) -> None:
        self._client.close()
        if self._own_connector is not None:
            self._own_connector.close()


def served(url: str) -> ServedDirectory:
    """Return the directory of a URL, ``dlrover-lite://HOST:PORT/checkpoints``, with the job's key as the environment names it."""
    address, _, root = url.rstrip("/").removeprefix(f"{SCHEME}://").partition("/")
    place = f"{SCHEME}://{address}"
    return ServedDirectory(url.rstrip("/"), root, lambda: FileClient(f"tcp://{address}", peer=f"who keeps {place}"))


class ServedDirectory:
    """``Destination`` that is the directory ``root`` of what ``connect`` reaches; ``url`` is its name."""

    def __init__(self, url: str, root: str, connect: Callable[[], FileClient]) -> None:
        self.url = url
        self._root, self._connect = root, connect

    def create(self) -> None:
        self._ask(messages.CreateDirectory(self._root), messages.Done)

    def exists(self) -> bool:
        return self._ask(messages.DirectoryExists(self._root), messages.Whether).is_so

    def directories(self) -> dict[str, dict[str, int]]:
        return self._ask(messages.ListFiles(self._root), messages.Listing).directories

    def make(self, directory: str) -> None:
        self._ask(messages.MakeDirectory(self._root, directory), messages.Done)

    def writer(self, name: str) -> _Writer:
        return _Writer(self._connect(), self._root, name)

    def put(self, name: str, data: bytes) -> None:
        if len(data) <= MOST_PIECE_BYTES:
            self._ask(messages.PutFile(self._root, name), messages.Done, [data])
            return
        writer = self.writer(name)
        try:
            writer.write([data])
            writer.finish()
        finally:
            writer.abandon()

    def open(self, name: str) -> _Reader:
        return _Reader(self.url, self._root, name, self._connect)

    def remove(self, directory: str, *, first: str = "") -> None:
        self._ask(messages.RemoveDirectory(self._root, directory, first), messages.Done)

    def _ask(self, request: msgspec.Struct, expected: type[T], frames: Sequence[Any] = ()) -> T:
        peer = self._connect()
        try:
            return peer.ask(request, expected, frames)[0]
        finally:
            peer.close()


class _Writer:
    def __init__(self, peer: FileClient, root: str, name: str) -> None:
        self._peer: FileClient | None = peer
        self._token = secrets.randbits(63)
        self._size = 0
        try:
            peer.ask(messages.BeginFile(root, name, self._token), messages.Done)
        except JobError:
            self._close()
            raise

    def write(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            view = memoryview(piece)
            for start in range(0, len(view), MOST_PIECE_BYTES):
                part = view[start : start + MOST_PIECE_BYTES]
                self._ask(messages.WriteFile(self._token, self._size), [part])
                self._size += len(part)

    def finish(self) -> None:
        self._ask(messages.FinishFile(self._token))
        self._close()

    def abandon(self) -> None:
        """Abandon the file under way; without effect on one that is finished."""
        if self._peer is not None:
            with suppress(JobError):
                self._ask(messages.AbandonFile(self._token))
            self._close()

    def _ask(self, request: msgspec.Struct, frames: Sequence[Any] = ()) -> None:
        assert self._peer is not None
        self._peer.ask(request, messages.Done, frames)

    def _close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None


class _Reader:
    read_bytes = MOST_PIECE_BYTES

    def __init__(self, url: str, root: str, name: str, connect: Callable[[], FileClient]) -> None:
        self.url = f"{url}/{name}"
        self._path, self._connect = f"{root}/{name}", connect
        self._free: list[FileClient] = []
        self._lock = threading.Lock()
        try:
            self.size = self._read(0, 0).size
        except BaseException:
            self.close()
            raise

    def read(self, offset: int, length: int) -> memoryview:
        if length <= MOST_PIECE_BYTES:
            return self._piece(offset, length)
        whole = bytearray(length)
        for start in range(0, length, MOST_PIECE_BYTES):
            count = min(MOST_PIECE_BYTES, length - start)
            whole[start : start + count] = self._piece(offset + start, count)
        return memoryview(whole)

    def _piece(self, offset: int, length: int) -> memoryview:
        found = self._read(offset, length)
        if len(found.data) < length:
            raise damaged(self.url, f"it ends at byte {offset + len(found.data):,}")
        return found.data

    def _read(self, offset: int, length: int) -> FilePart:
        """Read on a connection that no other thread uses; one that has failed isn't used again."""
        with self._lock:
            peer = self._free.pop() if self._free else None
        peer = peer or self._connect()
        try:
            found = peer.part(self._path, offset, length)
        except BaseException:
            peer.close()
            raise
        with self._lock:
            self._free.append(peer)
        if not found.is_there:
            raise damaged(self.url, "it is missing")
        return found

    def read_once(self) -> None:
        pass

    def close(self) -> None:
        while self._free:
            self._free.pop().close()
