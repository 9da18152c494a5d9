"""What the shell lets this user's processes have (``ulimit``): open files and processes, and whether that is enough for a job.

Too little of either ends as an error somewhere deep in a library, so it is looked at before a job starts.
"""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import NamedTuple

__all__ = ["Shortage", "descriptor_shortage", "exhausted", "process_shortage", "raise_descriptors"]

_DESCRIPTORS, _DESCRIPTORS_PER_NODE = 192, 16
"""Numbers of descriptors that the process of a job with the most needs, in any case and for each node: data files, sockets, memory that
nodes share."""
_THREADS, _THREADS_PER_NODE = 64, 24
"""Numbers of threads of all processes of a job, in any case and for each node: the kernel counts each thread as a process."""


class Shortage(NamedTuple):
    """A limit that is too low. ``message`` says which one it is and what would be needed, ``hint`` how to raise it."""

    message: str
    hint: str


def raise_descriptors(nodes: int) -> None:
    """Let this process and those it starts have the open files that a job with so many nodes needs, as far as that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _needed_descriptors(nodes)
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_shortage(nodes: int) -> Shortage | None:
    """Say why a job with so many nodes couldn't open its files, even if this process raises its limit as far as it may; None: it can."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = _needed_descriptors(nodes)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return None
    return Shortage(
        f"a process may have {hard:,} open files here (ulimit -n), and a job with {nodes:,} nodes needs {needed:,}",
        f"Raise it: ulimit -n {max(4096, needed)}; for good, nofile in /etc/security/limits.conf, or LimitNOFILE of the service.",
    )


def process_shortage(nodes: int, *, user: int | None = None, threads: int | None = None) -> Shortage | None:
    """Say why a job with so many nodes couldn't start its processes and threads; None: it can. ``user``: who it is for (None: whoever runs
    this; the limit isn't in force for root); ``threads``: how many that user has already (None: they are counted)."""
    user = os.geteuid() if user is None else user
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if user == 0 or limit == resource.RLIM_INFINITY:
        return None
    there = _threads_of(user) if threads is None else threads
    needed = _THREADS + _THREADS_PER_NODE * nodes
    if limit - there >= needed:
        return None
    return Shortage(
        f"this user may have {limit:,} processes and threads here (ulimit -u), {there:,} of them there are already, and a job with "
        f"{nodes:,} nodes needs {needed:,} more",
        f"Raise it: ulimit -u {max(4096, there + needed)}; for good, nproc in /etc/security/limits.conf. Or end other programs.",
    )


def exhausted(error: BaseException) -> Shortage | None:
    """Say what has run out, if that is what an error says, whichever library raised it."""
    code = getattr(error, "errno", None)
    if code in (errno.EMFILE, errno.ENFILE):
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        what = f"{error.strerror}: a process may have {soft:,}" if isinstance(error, OSError) else f"{error}: {soft:,}"
        return Shortage(f"{what} open files here (ulimit -n)", "Raise it: ulimit -n 4096")
    forked = isinstance(error, BlockingIOError) and error.filename is None
    if forked or (isinstance(error, RuntimeError) and "can't start new thread" in str(error)):
        soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        limit = "no limit of its own" if soft == resource.RLIM_INFINITY else f"a limit of {soft:,}"
        return Shortage(
            f"no more processes or threads can be started: {error}; this user has {limit} (ulimit -u)",
            "Raise it: ulimit -u 4096; in a container, its limit of processes (pids). Or end other programs.",
        )
    return None


def _needed_descriptors(nodes: int) -> int:
    return _DESCRIPTORS + _DESCRIPTORS_PER_NODE * nodes


def _threads_of(user: int) -> int:
    """Count the threads of a user's processes; 0 where processes can't be seen."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == user:
                count += len(os.listdir(process / "task"))  # noqa: PTH208 - a number is wanted
        except OSError:
            continue  # it has ended
    return count
