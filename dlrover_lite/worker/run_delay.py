"""How long a thread has been ready to run and had no core: held back by its process's CPU limit, or by others on the machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["RunDelay"]

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Three numbers of the calling thread, of Linux: nanoseconds on a core, nanoseconds ready to run without one, and how often it has run."""
_LENGTH = 64


class RunDelay:
    """Tells seconds of the thread that enters it. Always 0 where the system doesn't count them."""

    def __init__(self, path: Path = _SCHEDSTAT) -> None:
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> RunDelay:
        with suppress(OSError):
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def seconds(self) -> float:
        """Return the seconds without a core so far."""
        if self._descriptor < 0:
            return 0.0
        with suppress(OSError, ValueError, IndexError):
            return int(os.pread(self._descriptor, _LENGTH, 0).split()[1]) / 1e9
        return 0.0
