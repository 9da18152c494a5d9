"""Processes of this machine as the watchdog sees them: from /proc, by psutil where there is none."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Memory",
    "Seen",
    "all_processes",
    "command_of",
    "memory_of",
    "node_of",
    "proportional_memory",
    "see",
    "threads_of",
]

_PROC = Path("/proc")
_HAS_PROC = (_PROC / "self" / "stat").exists()
_TICKS = os.sysconf("SC_CLK_TCK")


class Seen(NamedTuple):
    pid: int
    parent: int
    session: int
    started: str
    """Start time of the process, which tells it from a later one with this pid."""
    cpu_seconds: float
    """CPU seconds of the process and of children that it has waited for."""


class Memory(NamedTuple):
    """Memory of a process in bytes. File pages, which may be dropped, aren't counted."""

    used: int
    shared: int
    """Bytes of ``used`` in shared memory that the process has mapped and touched."""


def see(pid: int) -> Seen | None:
    """Look at a process; None when there is none with this pid (one that waits to be reaped is there)."""
    if not _HAS_PROC:
        return _see_with_psutil(pid)
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # From the third field on: state, ppid, pgrp, session, …, utime, stime, cutime, cstime, …, starttime
    seconds = sum(map(int, fields[11:15])) / _TICKS
    return Seen(pid, int(fields[1]), int(fields[3]), fields[19], seconds)


def all_processes() -> dict[int, Seen]:
    """Look at all processes; return them by pid. Where there is no /proc: the descendants of this process."""
    if _HAS_PROC:
        pids = [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 - names are all that is needed
    else:
        import psutil

        pids = [process.pid for process in psutil.Process().children(recursive=True)]
    return {pid: seen for pid in pids if (seen := see(pid)) is not None}


def memory_of(pid: int) -> Memory | None:
    """Return the memory of a process; None when it has ended."""
    if not _HAS_PROC:
        return _memory_from_psutil(pid)
    fields = _kibibytes(_PROC / str(pid) / "status")
    if "RssAnon" not in fields:
        return None
    return Memory(fields["RssAnon"] + fields["RssShmem"], fields["RssShmem"])


def proportional_memory(pid: int) -> int | None:
    """Return bytes as ``Memory.used``, but of a page that several processes share only this one's part. Slow: milliseconds per GiB."""
    fields = _kibibytes(_PROC / str(pid) / "smaps_rollup")
    return fields["Pss_Anon"] + fields["Pss_Shmem"] if "Pss_Anon" in fields else None


def threads_of(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(_PROC / str(pid) / "task")]  # noqa: PTH208 - names are all that is needed
    return []


def command_of(pid: int) -> bytes:
    """Return the arguments of a process; one that was forked has those of the process it comes from."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def node_of(pid: int, variable: str) -> str:
    """Return what ``variable`` is in the environment that the process was started with; empty if it isn't, or nobody may know."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    prefix = f"{variable}=".encode()
    return next((part[len(prefix) :].decode() for part in environment.split(b"\0") if part.startswith(prefix)), "")


def _kibibytes(path: Path) -> dict[str, int]:
    """Read the fields in kB, as bytes; empty when the process has ended."""
    fields = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 3 and words[2] == "kB":
                fields[words[0].rstrip(":")] = int(words[1]) << 10
    return fields


def _see_with_psutil(pid: int) -> Seen | None:
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return Seen(pid, process.ppid(), os.getsid(pid), f"{process.create_time():.3f}", times.user + times.system)
    except (psutil.Error, OSError):
        return None


def _memory_from_psutil(pid: int) -> Memory | None:
    import psutil

    try:
        return Memory(psutil.Process(pid).memory_info().rss, 0)
    except psutil.Error:
        return None
