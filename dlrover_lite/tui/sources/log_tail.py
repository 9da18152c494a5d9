"""The end of a log file, which grows."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from dlrover_lite.core.errors import JobError

__all__ = ["LogTail"]

_FIRST_BYTES = 256 * 1024
KEPT_LINES = 5000


class LogTail:
    """Reads what was written since the last time. The first time, the last 256 KiB."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._told: tuple[str, ...] = ()
        self._position: int | None = None
        self._begun = b""
        """What there is so far of a line without its end."""

    def read(self) -> tuple[str, ...]:
        """Return all lines that are kept; the same object as before if nothing is new. Raises JobError when the file can't be read."""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if self._position is None or size < self._position:  # or it was begun anew
                    self._lines.clear()
                    self._begun = b""
                    self._position = max(0, size - _FIRST_BYTES)
                    file.seek(self._position)
                    if self._position:
                        self._position += len(file.readline())
                file.seek(self._position)
                data = file.read(max(0, size - self._position))
        except OSError as error:
            raise JobError(f"Can't read {self.path}: {error.strerror}") from error
        if data or not self._told:
            self._position += len(data)
            *whole, self._begun = (self._begun + data).split(b"\n")
            self._lines.extend(_cleaned(text) for text in whole)
            begun = (_cleaned(self._begun),) if self._begun else ()
            self._told = (*self._lines, *begun) or ("(nothing so far)",)
        return self._told


def _cleaned(text: bytes) -> str:
    """Decode a line, without what would move a terminal's cursor."""
    decoded = text.decode(errors="replace").expandtabs()
    return "".join(character if character.isprintable() else "�" for character in decoded.rstrip("\r"))
