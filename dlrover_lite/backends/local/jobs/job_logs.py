"""Logs of a job's processes: files that grow, and may be cut off or replaced meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dlrover_lite.core.errors import JobError

__all__ = ["LogFile"]

_CHUNK_BYTES = 1 << 18
_LONGEST_LINE_BYTES = 1 << 16


class LogFile:
    """``jobs.backend.Log`` of a file. Needs memory for one chunk, whatever the file's size."""

    def __init__(self, path: Path, *, last_lines: int | None = None) -> None:
        self.restarts = 0
        self._path = path
        self._position = 0
        self._inode = 0
        self._rest = b""
        if last_lines is not None:
            self._position = _start_of_last_lines(path, last_lines)

    @property
    def begun(self) -> str:
        return self._rest.decode(errors="replace")

    def new_lines(self, *, at_end: bool = False) -> Iterator[str]:
        try:
            yield from self._whole_lines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise JobError(f"Can't read {self._path}: {error.strerror}") from error
        if at_end and self._rest:
            yield self.begun
            self._rest = b""

    def _whole_lines(self) -> Iterator[str]:
        with self._path.open("rb") as file:
            status = self._path.stat()
            if status.st_size < self._position or (self._inode and status.st_ino != self._inode):
                self._position, self._rest = 0, b""
                self.restarts += 1
            self._inode = status.st_ino
            file.seek(self._position)
            while chunk := file.read(_CHUNK_BYTES):
                self._position += len(chunk)
                *whole, self._rest = (self._rest + chunk).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace")
                if len(self._rest) > _LONGEST_LINE_BYTES:
                    yield self.begun
                    self._rest = b""


def _start_of_last_lines(path: Path, count: int) -> int:
    """Return where the last ``count`` lines start; read from the end."""
    try:
        with path.open("rb") as file:
            position = end = file.seek(0, 2)
            newlines = 0
            while position > 0:
                step = min(_CHUNK_BYTES, position)
                position -= step
                file.seek(position)
                chunk = file.read(step)
                at = len(chunk)
                while (at := chunk.rfind(b"\n", 0, at)) >= 0:
                    # The newline at the very end ends the last line; it doesn't start another.
                    newlines += position + at != end - 1
                    if count in (0, newlines):
                        return end if count == 0 else position + at + 1
    except OSError:  # whoever reads it is told
        return 0
    return 0 if count else end
