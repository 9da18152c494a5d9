"""Serves a job's directory to whoever has the job's key and doesn't see this file system: commands, and its pods, as only one of them can
have the volume.

All files may be read but the key, and what links lead to elsewhere; checkpoints and the exported model may be written. It holds one piece
of a file at a time, and files under way by the tokens that their writers have chosen: requests may be repeated.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlrover_lite.checkpoint.destination import FileWriter, damaged, placed, troubled
from dlrover_lite.checkpoint.local import LocalDirectory
from dlrover_lite.core.errors import CheckpointDamaged, DlroverLiteError, JobError
from dlrover_lite.core.files.regular import NotRegularFile, open_regular
from dlrover_lite.protocol import file_messages as messages
from dlrover_lite.protocol.file_messages import MOST_PIECE_BYTES
from dlrover_lite.transport.frames import MalformedMessage, Request

__all__ = ["DAMAGED", "REFUSED", "FileService"]

DAMAGED, REFUSED = "damaged", "refused"
"""``Failure.code`` of what is no file as it should be, and of all else that can't be done."""
IDLE_SECONDS = 900.0
"""Seconds after which a file under way is given up that nobody adds to: its writer has ended."""
_REMEMBERED = 4096
_HIDDEN = "key"
"""File that nobody is given: it is what proves who one is."""


@dataclass(eq=False)
class _UnderWay:
    writer: FileWriter
    name: str
    size: int = 0
    touched_at: float = 0.0


class FileService:
    """``root``: the directory that is served. ``writable``: directories in it that others may write to."""

    def __init__(self, root: str, *, writable: Collection[str] = (), clock: Callable[[], float]) -> None:
        self._root = root
        self._resolved = os.path.realpath(root)
        self._writable = writable
        self._clock = clock
        self._under_way: dict[int, _UnderWay] = {}
        self._finished: OrderedDict[int, None] = OrderedDict()
        """Tokens of the files finished last: who hasn't heard of it asks again."""

    def answer(self, request: Request) -> tuple[Any, list[Any]]:
        """Do what is asked; return the reply and its frames. Raises JobError, CheckpointDamaged, MalformedMessage."""
        match request.body:
            case messages.ListTree(below):
                return messages.Tree(list(self._tree(below))), []
            case messages.ReadPart(path, offset, most_bytes):
                return self._part(path, offset, most_bytes)
            case messages.CreateDirectory(root):
                self._writable_directory(root).create()
            case messages.DirectoryExists(root):
                return messages.Whether(self._directory(root).exists()), []
            case messages.ListFiles(root):
                return messages.Listing(self._directory(root).directories()), []
            case messages.MakeDirectory(root, directory):
                self._writable_directory(root).make(directory)
            case messages.BeginFile(root, name, token):
                self._begin(root, name, token)
            case messages.WriteFile(token, offset):
                self._write(token, offset, _frame(request))
            case messages.FinishFile(token):
                self._finish(token)
            case messages.AbandonFile(token):
                if (file := self._under_way.pop(token, None)) is not None:
                    file.writer.abandon()
            case messages.PutFile(root, name):
                self._writable_directory(root).put(name, bytes(_frame(request)))
            case messages.RemoveDirectory(root, directory, first):
                self._writable_directory(root).remove(directory, first=first)
        return messages.Done(), []

    def give_up_idle(self) -> list[str]:
        """Give up files under way that nobody has added to for long; return their names."""
        before = self._clock() - IDLE_SECONDS
        idle = [token for token, file in self._under_way.items() if file.touched_at < before]
        names = []
        for token in idle:
            file = self._under_way.pop(token)
            file.writer.abandon()
            names.append(file.name)
        return names

    def close(self) -> None:
        """Leave nothing of files under way."""
        while self._under_way:
            with suppress(JobError):
                self._under_way.popitem()[1].writer.abandon()

    def _within(self, path: str) -> str:
        """Return where a path is. Raises JobError for one that leads out of what is served, or mustn't be read."""
        found = placed(self._root, path)
        resolved = os.path.realpath(found)
        if path == _HIDDEN or not resolved.startswith(f"{self._resolved}/"):
            raise JobError(f"{path!r} is no file of {Path(self._root).name} that can be read")
        return found

    def _directory(self, root: str) -> LocalDirectory:
        return LocalDirectory(self._within(root))

    def _writable_directory(self, root: str) -> LocalDirectory:
        if root.partition("/")[0] not in self._writable:
            where = " and ".join(self._writable) or "nowhere"
            raise JobError(f"{root} of {Path(self._root).name} isn't written to by others, only: {where}")
        return self._directory(root)

    def _tree(self, below: str) -> Iterator[messages.FileEntry]:
        for place, _, names in os.walk(self._within(below) if below else self._root):
            for name in names:
                file = Path(place, name)
                path = file.relative_to(self._root).as_posix()
                if path == _HIDDEN or name.startswith(".") or file.is_symlink():
                    continue
                with suppress(FileNotFoundError):  # gone meanwhile
                    status = file.stat()
                    yield messages.FileEntry(path, status.st_size, status.st_mtime)

    def _part(self, path: str, offset: int, most_bytes: int) -> tuple[messages.Part, list[bytes]]:
        if most_bytes > MOST_PIECE_BYTES:
            raise MalformedMessage(f"{most_bytes} bytes are asked for at once")
        file = self._within(path)
        try:
            with open_regular(file) as opened:
                size = os.fstat(opened.fileno()).st_size
                data = os.pread(opened.fileno(), min(most_bytes, max(0, size - offset)), min(offset, size))
                return messages.Part(size), [data]
        except FileNotFoundError:
            return messages.Part(0, is_there=False), [b""]
        except (NotRegularFile, IsADirectoryError) as error:
            raise damaged(file, str(error.strerror)) from error
        except OSError as error:
            if error.errno == errno.EIO:
                raise damaged(file, "the disk can't read it") from error
            raise troubled("read", file, error) from error

    def _begin(self, root: str, name: str, token: int) -> None:
        if token not in self._under_way:
            self._under_way[token] = _UnderWay(self._writable_directory(root).writer(name), name)
        self._under_way[token].touched_at = self._clock()

    def _write(self, token: int, offset: int, piece: memoryview) -> None:
        file = self._file(token)
        if offset + len(piece) <= file.size:
            return  # a repeated request
        if offset != file.size:
            raise JobError(f"{file.name} can't be written: bytes from {file.size:,} to {offset:,} have not come")
        if len(piece):
            file.writer.write([piece])
        file.size += len(piece)
        file.touched_at = self._clock()

    def _finish(self, token: int) -> None:
        if token in self._finished:
            return
        self._file(token).writer.finish()
        del self._under_way[token]
        self._finished[token] = None
        if len(self._finished) > _REMEMBERED:
            self._finished.popitem(last=False)

    def _file(self, token: int) -> _UnderWay:
        if (file := self._under_way.get(token)) is None:
            raise JobError(
                "A file under way is lost: who keeps the job's files has begun anew, or it was given up",
                hint="What it was a part of is written again the next time.",
            )
        return file


def failure_of(error: DlroverLiteError) -> str:
    """Return the code by which a client raises the same error."""
    return DAMAGED if isinstance(error, CheckpointDamaged) else REFUSED


def _frame(request: Request) -> memoryview:
    if len(request.frames) != 1:
        raise MalformedMessage(f"{len(request.frames)} frames where one is due")
    piece = request.buffer(0)
    if piece.nbytes > MOST_PIECE_BYTES:
        raise MalformedMessage(f"a piece of {piece.nbytes} bytes")
    return piece
