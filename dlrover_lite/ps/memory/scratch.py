"""Arrays that cost memory where they are touched, a page at a time, and grow without being copied."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scratch"]

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


class Scratch:
    """``array`` [length] of zeros. numpy asks for huge pages for large arrays: what is written to many places of one at first has the
    kernel clear all of it at once, a tenth of a second for 64 MiB on some virtual machines."""

    def __init__(self, length: int, kind: Any) -> None:
        size = max(1, length) * np.dtype(kind).itemsize
        self._memory = mmap.mmap(-1, size, flags=_FLAGS)
        with suppress(OSError, AttributeError):  # a kernel without huge pages
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.array: NDArray[Any] = np.frombuffer(self._memory, kind)[:length]

    def give_back(self) -> None:
        """Give all of its memory back. The array holds zeros then."""
        self._memory.madvise(mmap.MADV_DONTNEED)
