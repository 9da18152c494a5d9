"""What this machine, or the container around us, can give, and what a process has taken of it."""

from __future__ import annotations

import os
from pathlib import Path

from dlrover_lite.backends.base import Usage
from dlrover_lite.units import Resources

__all__ = ["machine_resources", "process_usage"]

_CGROUPS = Path("/sys/fs/cgroup")


def machine_resources(cgroups: Path = _CGROUPS) -> Resources:
    """Cores and memory that may be used: of the machine, less what affinity and a container's own limits leave."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    quota, limit = _cpu_quota(cgroups), _memory_limit(cgroups)
    return Resources(min(cores, quota) if quota else cores, min(memory, limit) if limit else memory)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _cpu_quota(cgroups: Path) -> float | None:
    """Cores: version 2 (``cpu.max`` holds quota and period), else version 1."""
    words = _words(cgroups / "cpu.max") or [
        *_words(cgroups / "cpu" / "cpu.cfs_quota_us"),
        *_words(cgroups / "cpu" / "cpu.cfs_period_us"),
    ]
    if len(words) != 2 or words[0] == "max" or int(words[0]) <= 0:
        return None
    return int(words[0]) / int(words[1])


def _memory_limit(cgroups: Path) -> int | None:
    """Bytes. Version 1 says "unlimited" as a number larger than any memory."""
    words = _words(cgroups / "memory.max") or _words(cgroups / "memory" / "memory.limit_in_bytes")
    return int(words[0]) if words and words[0] != "max" else None


def process_usage(pid: int) -> Usage | None:
    """None when the process has ended."""
    proc = Path(f"/proc/{pid}")
    if not proc.exists():
        return _usage_from_psutil(pid)
    try:
        stat = (proc / "stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
    except (FileNotFoundError, ProcessLookupError):
        return None
    if "VmRSS" not in status:  # ended, not yet reaped
        return None
    seconds = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return Usage(seconds, _kibibytes(status["VmRSS"]), _kibibytes(status["VmHWM"]))


def _kibibytes(field: str) -> int:
    return int(field.split(maxsplit=1)[0]) << 10


def _usage_from_psutil(pid: int) -> Usage | None:
    import psutil

    try:
        process = psutil.Process(pid)
        times, memory = process.cpu_times(), process.memory_info().rss
    except psutil.Error:
        return None
    return Usage(times.user + times.system, memory, memory)
