"""What this machine, or the container around us, can give."""

from __future__ import annotations

import os
from pathlib import Path

from dlrover_lite.backends.host.cgroups import read_number
from dlrover_lite.backends.host.mounts import Hierarchy, hierarchies, unified, with_controller
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host

__all__ = ["cpu_quotas", "host_name", "machine_resources", "this_host"]


def this_host() -> Host:
    """Return this machine as the only host of the local backend."""
    return Host(host_name(), machine_resources())


def host_name() -> str:
    """Return the name of this machine among the hosts of a backend: the same whatever it calls itself on its network, so that nobody takes
    it for two."""
    return "localhost"


def machine_resources(found: list[Hierarchy] | None = None) -> Resources:
    """Return the cores and memory that may be used: of the machine, less what affinity and the limits of the control groups around us
    leave."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = hierarchies() if found is None else found
    v1_memory, v2 = with_controller(found, "memory"), unified(found)
    # A group is bound by its own limits and by those of all groups above it.
    cores = min([cores, *cpu_quotas(found).values()])
    for group in v1_memory.up() if v1_memory else ():
        memory = min(memory, read_number(group / "memory.limit_in_bytes", missing=memory))
    for group in v2.up() if v2 else ():
        memory = min(memory, read_number(group / "memory.max", missing=memory))
    return Resources(cores, memory)


def cpu_quotas(found: list[Hierarchy]) -> dict[Path, float]:
    """Return the cores of each control group around us that has a limit."""
    v1, v2 = with_controller(found, "cpu"), unified(found)
    quotas = {
        group: _quota([*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")])
        for group in (v1.up() if v1 else ())
    }
    quotas |= {group: _quota(_words(group / "cpu.max")) for group in (v2.up() if v2 else ())}
    return {group: cores for group, cores in quotas.items() if cores is not None}


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _quota(words: list[str]) -> float | None:
    """Return the cores that a quota and period in microseconds make; None without a limit."""
    if len(words) != 2 or words[0] == "max" or int(words[0]) <= 0:
        return None
    return int(words[0]) / int(words[1])
