"""What Linux offers to leave no process behind; elsewhere these do nothing and shutting down relies on the keeper.

``python linux.py PARENT COMMAND…`` becomes COMMAND, tied to the life of the process PARENT. Between fork and exec no Python may run in a
process with threads, which a keeper is once it has begun; so its children tie themselves. It imports little: each child waits for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["adopt_orphans", "die_with_parent", "free_beginning", "set_process_name", "thread_count", "tied"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2

# Loaded here, not between fork and exec, where only little is safe.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, and end now if that has happened already. Called in a child."""
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)  # what the kernel would have done: whoever asks is told the same reason


def tied(command: list[str]) -> list[str]:
    """Return what to start instead of a command, for a child that ends when this process does."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_process_name(name: str) -> None:
    """Set the name that ``ps -o comm`` and ``top`` show: the first 15 bytes."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def free_beginning(descriptor: int, length: int) -> bool:
    """Give the room of a file's first bytes back to its disk; they read as zeros then, and the file is as long as before. Return whether
    that could be done."""
    if _LIBC is None:
        return False
    return bool(
        _LIBC.fallocate(
            descriptor, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(length)
        )
        == 0
    )


def thread_count() -> int | None:
    """Return the number of threads of this process, those of native libraries included; None where that can't be known."""
    return len(os.listdir("/proc/self/task")) if _LIBC is not None else None  # noqa: PTH208


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
