"""The log of a job's process as it is read from elsewhere, while it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dlrover_lite.checkpoint.file_service.client import FilePart
from dlrover_lite.protocol.file_messages import MOST_PIECE_BYTES

__all__ = ["RemoteLog"]

_LONGEST_LINE_BYTES = 1 << 16


class RemoteLog:
    """``jobs.backend.Log`` of a file that is read by ``part`` (path, offset, most bytes)."""

    def __init__(self, path: str, part: Callable[[str, int, int], FilePart], *, last_lines: int | None = None) -> None:
        self.restarts = 0
        self._path, self._part = path, part
        self._position = 0
        self._rest = b""
        if last_lines is not None:
            self._position = self._start_of_last_lines(last_lines)

    @property
    def begun(self) -> str:
        return self._rest.decode(errors="replace")

    def new_lines(self, *, at_end: bool = False) -> Iterator[str]:
        while True:
            found = self._part(self._path, self._position, MOST_PIECE_BYTES)
            if found.size < self._position:
                self._position, self._rest = 0, b""
                self.restarts += 1
                continue
            self._position += len(found.data)
            *whole, self._rest = (self._rest + bytes(found.data)).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
            if len(self._rest) > _LONGEST_LINE_BYTES:
                yield self.begun
                self._rest = b""
            if not found.data or self._position >= found.size:
                break
        if at_end and self._rest:
            yield self.begun
            self._rest = b""

    def _start_of_last_lines(self, count: int) -> int:
        """Return where the last ``count`` lines start; read from the end."""
        end = position = self._part(self._path, 0, 0).size
        newlines = 0
        if count == 0:
            return end
        while position > 0:
            step = min(1 << 18, position)
            position -= step
            chunk = bytes(self._part(self._path, position, step).data)
            at = len(chunk)
            while (at := chunk.rfind(b"\n", 0, at)) >= 0:
                newlines += position + at != end - 1  # the newline at the very end ends the last line
                if newlines == count:
                    return position + at + 1
        return 0
