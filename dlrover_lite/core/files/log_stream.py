"""Logs on a disk that is full: who writes to one goes on without it, and says later how much is missing."""

from __future__ import annotations

import errno
import io
import sys
from typing import Any

from dlrover_lite.core.failpoints import needs_room

__all__ = ["LogFile", "pass_over_full_disk"]


class LogFile(io.FileIO):
    """A log file: what there is no room for is counted and dropped."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._dropped = 0

    def write(self, data: Any) -> int:
        """Write ``data``; never fail for want of room. Returns how many bytes are dealt with: written, or dropped."""
        size = memoryview(data).nbytes
        try:
            needs_room("job.log")
            if self._dropped:
                note = f"[{self._dropped:,} bytes are missing here: the disk was full]\n".encode()
                super().write(note)
                self._dropped = 0
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._dropped += size
            return size


def pass_over_full_disk() -> None:
    """Pass what this process prints from now on, and those forked from it, through a ``LogFile``."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None:
            stream.flush()
            setattr(
                sys,
                name,
                io.TextIOWrapper(
                    io.BufferedWriter(LogFile(descriptor)),
                    encoding="utf-8",
                    errors="backslashreplace",
                    line_buffering=True,
                ),
            )
