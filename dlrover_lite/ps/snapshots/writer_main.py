"""The process that writes a parameter server's part of a checkpoint while the server goes on: ``dl:persister``, forked from the server
when that starts, or ``python -m dlrover_lite.ps.snapshots.writer_main FD PARENT``.

It is the server's child, and never stays behind: the kernel kills it when the server ends, and so does the end of their socket. It needs
numpy and the store of checkpoints, which are imported when its priority is low already. Beside training it sleeps one to three times as
long as it works (``pace``); alone, or when the spill fills, it doesn't.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["run"]

NICE = 10
"""Niceness of the process; the kernel's default for reading and writing follows it."""
KILLED_FIRST = 500
"""The process's oom_score_adj, of at most 1000: where memory runs out, rather this process is killed than the server."""
LEAST_PAUSE, MOST_PAUSE = 1.0, 3.0
"""Minimum and maximum seconds of sleep for each second of work beside training. Of a CPU that nobody uses it takes half, and of those that
are in use a quarter at most: longer rests made a checkpoint of 8 GiB take 148 s rather than 60, and training no faster."""
REPORT_SECONDS = 0.2

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def run(descriptor: int, parent: int, *, kernels: bool = False) -> None:
    """Serve until the other end of the socket is gone (SystemExit). ``kernels``: numba and the kernels are here already."""
    _die_with(parent)
    with suppress(OSError):
        os.nice(NICE)
    with suppress(OSError), Path("/proc/self/oom_score_adj").open("w") as file:
        file.write(str(KILLED_FIRST))
    from dlrover_lite.ps.snapshots.snapshot_writer import Persisting
    from dlrover_lite.ps.snapshots.writer_pace import Leftover

    with socket.socket(fileno=descriptor) as channel:
        leftover = Leftover(MOST_PAUSE, LEAST_PAUSE, MOST_PAUSE)
        Persisting(channel, leftover=leftover, report_seconds=REPORT_SECONDS, kernels=kernels).serve()


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NAME, b"dl:persister", 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)  # it was faster


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]))
