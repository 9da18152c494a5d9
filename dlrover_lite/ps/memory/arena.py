"""Memory for rows: contiguous, sparse, growing without a copy, costing memory only where touched (design, section 6)."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import time
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError
from dlrover_lite.ps.memory.aligned_mapping import HUGE_BYTES, Mapping
from dlrover_lite.ps.memory.free_huge_pages import FreePages
from dlrover_lite.ps.memory.page_choice import PageChoice

_MADV_POPULATE_READ, _MADV_POPULATE_WRITE, _MADV_COLLAPSE = 22, 23, 25
"""Advice of Linux 5.14 and later to madvise, the last one of 6.1 and later; Python's mmap doesn't name it yet."""
_SMALL_BYTES = 16 << 20
"""Bytes at the beginning of an arena that get small pages: little tables are to take little memory."""


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
            self._mapping = Mapping(self.fd, size)
        except (OSError, ValueError, OverflowError) as error:
            self.close()
            raise JobError(
                f"can't reserve {size} bytes of address space for {name}: {error}",
                hint="Raise the limit on virtual memory (ulimit -v).",
            ) from error
        self.size = size
        self.bytes: NDArray[np.uint8] = self._mapping.bytes
        self._choice, self._free = PageChoice(), FreePages()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. What is mapped stays as it is."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def touch(self, start: int, stop: int) -> int:
        """Have memory for bytes [start, stop) that were not touched yet, several times faster than by writing them, and in huge pages where
        they can be had for as little. Returns where it ends: behind ``stop``, perhaps."""
        start, stop = pages(start), pages(min(stop, self.size))
        while start < stop:
            end = (start // HUGE_BYTES + 1) * HUGE_BYTES
            if not self._touch_huge(start):
                end, began = min(stop, end), time.thread_time()
                self._populate(_MADV_POPULATE_WRITE, start, end)
                self._choice.took(end - start, time.thread_time() - began, huge=False)
            start = end
        return start

    def touch_huge(self, start: int, stop: int) -> int:
        """Have memory for bytes from ``start`` on that were not touched yet, as long as huge pages are the quickest way. Returns where
        it ends."""
        start, stop = pages(start), pages(min(stop, self.size))
        while start < stop and self._touch_huge(start, at_once=True):
            start = (start // HUGE_BYTES + 1) * HUGE_BYTES
        return start

    def _touch_huge(self, start: int, *, at_once: bool = False) -> bool:
        """Make a huge page of the memory around byte ``start``, from which on nothing is touched yet; what is before stays as it is. False
        where there may be none, or none can be had."""
        first = start // HUGE_BYTES * HUGE_BYTES
        if not _SMALL_BYTES <= first <= self.size - HUGE_BYTES or self.fd is None:
            return False
        if not self._choice.huge(at_once=at_once) or not self._free.enough():
            return False
        began = time.thread_time()
        try:
            if first == start:
                self._mapping.advise(_MADV_POPULATE_WRITE, first, mmap.PAGESIZE)  # nothing is made of a hole
            self._mapping.advise(_MADV_COLLAPSE, first, HUGE_BYTES)
        except OSError as error:
            self._choice.failed(for_good=error.errno == errno.EINVAL)
            return False
        self._choice.took(HUGE_BYTES, time.thread_time() - began, huge=True)
        return True

    def map(self, stop: int) -> None:
        """Map all that is in the memory below byte ``stop`` at once, which takes two thirds of what it does page by page."""
        self._populate(_MADV_POPULATE_READ, 0, pages(min(stop, self.size)))

    def put(self, start: int, data: NDArray[Any]) -> bool:
        """Have ``data``, contiguous, from byte ``start`` on, where there may be no memory yet: cheaper than to ``touch`` and to write, as
        nobody clears the memory before. False where that can't be done: the caller has to touch and write."""
        if self.fd is None or start + data.nbytes > self.size:
            return False
        left, began = data.reshape(-1).data.cast("B"), time.thread_time()
        try:
            at = start
            while left:
                written = os.pwrite(self.fd, left, at)
                left, at = left[written:], at + written
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._mapping.advise(_MADV_POPULATE_READ, first, pages(at) - first)
        except OSError:
            return False  # an older kernel, or a file that is only to be mapped
        self._choice.took(max(1, data.nbytes), time.thread_time() - began, huge=False)
        return True

    def give_back(self, start: int, stop: int) -> None:
        """Return the memory of bytes [start, stop) to the system, but for the rest of the page that ``start`` is in; they read as zeros
        then. ``stop``: no byte from there to the end of its page is in use."""
        start, stop = pages(start), pages(min(stop, self.size))
        if start < stop and sys.platform == "linux":
            self._mapping.advise(mmap.MADV_REMOVE, start, stop - start)

    def _populate(self, advice: int, start: int, stop: int) -> None:
        if start < stop and sys.platform == "linux":
            with suppress(OSError):  # an older kernel: reading or writing will do it
                self._mapping.advise(advice, start, stop - start)


def pages(size: int) -> int:
    """Round up to the next multiple of a page, in bytes."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
