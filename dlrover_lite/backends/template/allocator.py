"""What nodes tell glibc's allocator; with another C library these do nothing."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["give_back_freed_memory", "keep_freed_memory"]

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_KEPT_BYTES = 64 << 20
"""Bytes free at the end of a heap, at most, before the kernel gets them back. Several times what a minibatch takes."""
_MAPPED_BYTES = 32 << 20
"""Size in bytes from which on what is asked for at once goes back at once: the most that glibc allows."""
_ALLOCATOR_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

_LIBC = ctypes.CDLL(None) if sys.platform.startswith("linux") else None


def keep_freed_memory() -> None:
    """Have glibc keep what is freed for what is needed next, unless the user's environment tells it otherwise.

    By itself it goes by the largest block that has been freed so far, and gives back what is free beyond twice that: with two or three
    buffers for each minibatch a process may fetch them from the kernel again and again, for as long as it lives, or it may not. Servers
    of the same rows differed by a quarter in CPU seconds per request (``docs/decisions/0008-freed-memory-is-kept.md``). A peak is as
    high as before.
    """
    if _LIBC is None or not hasattr(_LIBC, "mallopt") or any(map(os.environ.get, _ALLOCATOR_VARIABLES)):
        return
    _LIBC.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    _LIBC.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def give_back_freed_memory() -> None:
    """Give all free pages back to the kernel. What is forked afterwards doesn't use pages that this process is charged for."""
    if _LIBC is not None and hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
