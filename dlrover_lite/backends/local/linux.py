"""What Linux offers to leave no process behind; elsewhere these do nothing and shutting down relies on the keeper."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = [
    "adopt_orphans",
    "die_with_parent",
    "give_back_freed_memory",
    "keep_freed_memory",
    "set_process_name",
    "thread_count",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_KEPT_BYTES = 64 << 20
"""Free at the end of a heap, at most, before the kernel gets it back. Several times what a minibatch takes."""
_MAPPED_BYTES = 32 << 20
"""What is asked for at once and goes back at once, at least: the most that glibc allows."""
_ALLOCATOR_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

# Loaded here, not between fork and exec, where only little is safe.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


def die_with_parent(parent_pid: int) -> None:
    """Called in a child: have the kernel kill it when its parent ends, and end now if that has happened already."""
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)  # what the kernel would have done: whoever asks is told the same reason


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_process_name(name: str) -> None:
    """What ``ps -o comm`` and ``top`` show: the first 15 bytes."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


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
    """All pages that are free, to the kernel. What is forked afterwards doesn't use pages that this process is charged for."""
    if _LIBC is not None and hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def thread_count() -> int | None:
    """Threads of this process, those of native libraries included; None where that can't be known."""
    return len(os.listdir("/proc/self/task")) if _LIBC is not None else None  # noqa: PTH208
