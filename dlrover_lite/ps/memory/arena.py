"""Memory for rows: contiguous, sparse, growing without a copy, costing memory only where touched (design, section 6)."""

from __future__ import annotations

import mmap
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError

_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
"""Advice of Linux 5.14 and later to madvise; Python's mmap doesn't name it yet."""


class Arena:
    """``reserve_bytes`` of address space. On Linux it is a memfd, which can outlive the process that writes it."""

    def __init__(self, name: str, reserve_bytes: int = 0, *, fd: int | None = None) -> None:
        """Map all of the file ``fd``, and keep it; without ``fd`` make a new file."""
        size = pages(reserve_bytes)
        self.fd: int | None = fd
        """Descriptor of the file, for another process to map it; None where there is no file. It is open as long as the arena is there."""
        try:
            if fd is not None:
                size = os.fstat(fd).st_size
                if size % mmap.PAGESIZE:
                    raise ValueError("not whole pages")
            elif sys.platform == "linux":
                self.fd = os.memfd_create(name, os.MFD_CLOEXEC)
                os.ftruncate(self.fd, size)
            self._map = mmap.mmap(-1 if self.fd is None else self.fd, size)
            # fewer TLB misses on random rows, where the kernel gives huge pages to shared memory (most don't unless told)
            with suppress(OSError, AttributeError):
                self._map.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, ValueError, OverflowError) as error:
            self.close()
            raise JobError(
                f"can't reserve {size} bytes of address space for {name}: {error}",
                hint="Raise the limit on virtual memory (ulimit -v).",
            ) from error
        self.size = size
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. What is mapped stays as it is."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def touch(self, start: int, stop: int) -> None:
        """Have memory for bytes [start, stop) that were not touched yet, several times faster than by writing them."""
        start, stop = pages(start), pages(min(stop, self.size))
        if start < stop and sys.platform == "linux":
            with suppress(OSError):  # an older kernel: writing will do it
                self._map.madvise(_MADV_POPULATE_WRITE, start, stop - start)

    def map(self, stop: int) -> None:
        """Map all that is in the memory below byte ``stop`` at once, which takes two thirds of what it does page by page."""
        if sys.platform == "linux":
            with suppress(OSError):  # an older kernel: reading will do it
                self._map.madvise(_MADV_POPULATE_READ, 0, pages(min(stop, self.size)))

    def put(self, start: int, data: NDArray[Any]) -> bool:
        """Have ``data``, contiguous, from byte ``start`` on, where there may be no memory yet: cheaper than to ``touch`` and to write, as
        nobody clears the memory before. False where that can't be done, or huge pages come cheaper: the caller has to touch and write."""
        if self.fd is None or _gives_hugepages() or start + data.nbytes > self.size:
            return False
        left = data.reshape(-1).data.cast("B")
        try:
            at = start
            while left:
                written = os.pwrite(self.fd, left, at)
                left, at = left[written:], at + written
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(_MADV_POPULATE_READ, first, pages(at) - first)
        except OSError:
            return False  # an older kernel, or a file that is only to be mapped
        return True

    def give_back(self, start: int, stop: int) -> None:
        """Return the memory of bytes [start, stop) to the system, but for the rest of the page that ``start`` is in; they read as zeros
        then. ``stop``: no byte from there to the end of its page is in use."""
        start, stop = pages(start), pages(min(stop, self.size))
        if start < stop and sys.platform == "linux":
            self._map.madvise(mmap.MADV_REMOVE, start, stop - start)


@cache
def _gives_hugepages() -> bool:
    """Say whether the kernel gives huge pages to shared memory when it is touched."""
    try:
        chosen = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read_text(encoding="ascii")
    except OSError:
        return False
    return "[never]" not in chosen and "[deny]" not in chosen


def pages(size: int) -> int:
    """Round up to the next multiple of a page, in bytes."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
