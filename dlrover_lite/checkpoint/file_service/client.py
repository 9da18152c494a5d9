"""Directories that another process serves, as destination of checkpoints: ``dlrover-lite://HOST:PORT/checkpoints``, with the job's key as
the environment names it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from dlrover_lite.checkpoint.destination import Piece, damaged
from dlrover_lite.checkpoint.file_service.service import DAMAGED
from dlrover_lite.core.errors import DeadlineExceeded, JobError, RemoteError, UsageError, WireError
from dlrover_lite.protocol import file_messages as messages
from dlrover_lite.protocol.file_messages import MOST_PIECE_BYTES
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Reply

__all__ = ["SCHEME", "ServedDirectory"]

SCHEME = "dlrover-lite"
_DEADLINE_SECONDS = 60.0
"""Longest wait for an answer: who serves may be starting again, or busy with another's large file."""

T = TypeVar("T")


class _Peer:
    """A connection to who serves, for one thread at a time."""

    def __init__(self, endpoint: str, url: str) -> None:
        try:
            self._connector = Connector.of_this_process()
            self._client: Client = self._connector.client(endpoint, messages.FileReplies, peer=f"who keeps {url}")
        except (UsageError, WireError) as error:
            raise JobError(f"{url} can't be used: {error.message}", hint=error.hint) from error

    def ask(self, request: msgspec.Struct, expected: type[T], frames: Sequence[Any] = ()) -> tuple[T, Reply]:
        """Raises JobError, CheckpointDamaged."""
        try:
            reply = self._client.call(request, frames, deadline_seconds=_DEADLINE_SECONDS)
        except RemoteError as error:
            if error.code == DAMAGED:
                where, _, what = error.message.partition(" is damaged: ")
                raise damaged(where, what or error.message) from error
            raise JobError(error.message, hint=error.hint) from error
        except DeadlineExceeded as error:
            raise JobError(error.message, hint="Does the job's master run?") from error
        if not isinstance(reply.body, expected):
            raise JobError(f"{type(request).__name__} was answered with {type(reply.body).__name__}")
        return reply.body, reply

    def close(self) -> None:
        self._client.close()
        self._connector.close()


class ServedDirectory:
    """``url``: of the scheme above; its path is the directory below what is served."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        address, _, self._root = self.url.removeprefix(f"{SCHEME}://").partition("/")
        self._endpoint = f"tcp://{address}"

    def create(self) -> None:
        self._ask(messages.CreateDirectory(self._root), messages.Done)

    def exists(self) -> bool:
        return self._ask(messages.DirectoryExists(self._root), messages.Whether).is_so

    def directories(self) -> dict[str, dict[str, int]]:
        return self._ask(messages.ListFiles(self._root), messages.Listing).directories

    def make(self, directory: str) -> None:
        self._ask(messages.MakeDirectory(self._root, directory), messages.Done)

    def writer(self, name: str) -> _Writer:
        return _Writer(self._peer(), self._root, name)

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
        size = self._ask(messages.StatFile(self._root, name), messages.FileSize).size
        return _Reader(self._endpoint, self.url, self._root, name, size)

    def remove(self, directory: str, *, first: str = "") -> None:
        self._ask(messages.RemoveDirectory(self._root, directory, first), messages.Done)

    def _peer(self) -> _Peer:
        return _Peer(self._endpoint, self.url)

    def _ask(self, request: msgspec.Struct, expected: type[T], frames: Sequence[Any] = ()) -> T:
        peer = self._peer()
        try:
            return peer.ask(request, expected, frames)[0]
        finally:
            peer.close()


class _Writer:
    def __init__(self, peer: _Peer, root: str, name: str) -> None:
        self._peer: _Peer | None = peer
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

    def __init__(self, endpoint: str, url: str, root: str, name: str, size: int) -> None:
        self.url, self.size = f"{url}/{name}", size
        self._endpoint, self._root, self._name = endpoint, root, name
        self._free: list[_Peer] = []
        self._lock = threading.Lock()

    def read(self, offset: int, length: int) -> memoryview:
        peer = self._taken()
        try:
            if length <= MOST_PIECE_BYTES:
                return self._piece(peer, offset, length)
            whole = bytearray(length)
            for start in range(0, length, MOST_PIECE_BYTES):
                count = min(MOST_PIECE_BYTES, length - start)
                whole[start : start + count] = self._piece(peer, offset + start, count)
            return memoryview(whole)
        finally:
            with self._lock:
                self._free.append(peer)

    def _piece(self, peer: _Peer, offset: int, length: int) -> memoryview:
        request = messages.ReadFile(self._root, self._name, offset, length)
        _, reply = peer.ask(request, messages.Piece)
        if len(reply.frames) != 1 or len(found := reply.buffer(0)) != length:
            raise damaged(self.url, f"{length} bytes from {offset:,} on don't come whole")
        return found

    def _taken(self) -> _Peer:
        """Return a connection that no other thread uses."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return _Peer(self._endpoint, self.url)

    def read_once(self) -> None:
        pass

    def close(self) -> None:
        while self._free:
            self._free.pop().close()
