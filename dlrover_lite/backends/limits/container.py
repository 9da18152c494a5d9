"""Limits that are those of the container around us: whoever runs it sets and changes them, the kernel enforces them.

What nodes use is read from the container's own control group, as far as nobody else is in it: all that is in it counts for the node
that runs, as it is the sum that is limited; except what the keeper and the template take, as far as the container was given that beside.
Where several nodes run at the same time, or the group can't be read, each node's own processes count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import psutil

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.host.mounts import Hierarchy, hierarchies, unified, with_controller
from dlrover_lite.backends.limits import cgroup_v1, cgroup_v2
from dlrover_lite.backends.limits.base import Enter, Fence, OverMemory, too_small
from dlrover_lite.backends.limits.cgroup import Counters
from dlrover_lite.backends.limits.watchdog import Watchdog
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.protocol.nodes import Enforcement, Usage

__all__ = ["ContainerGroup", "ContainerLimits", "container_group"]

_FIRST_PROCESS = 1
_NO_LIMIT = 1 << 60
"""Bytes from which on a limit is none: version 1 shows one of a few pages under 2^63."""


class ContainerGroup:
    """The control group of the container around us."""

    def __init__(self, read: Callable[[], Counters], limit: Path) -> None:
        self.read = read
        self._limit = limit

    def memory_limit(self) -> int | None:
        """Return the limit now; None where there is none."""
        limit = cgroups.read_number(self._limit, missing=_NO_LIMIT)
        return limit if limit < _NO_LIMIT else None


def container_group(found: list[Hierarchy] | None = None) -> ContainerGroup | str:
    """Return the control group of the container around us; a phrase that says why where there is none of our own."""
    found = hierarchies() if found is None else found
    v1 = [with_controller(found, controller) for controller in ("cpu", "cpuacct", "memory")]
    v2 = unified(found)
    if v2 is not None and "memory" in v2.controllers:
        own = v2.own
        group = ContainerGroup(partial(cgroup_v2.read_counters, own), own / "memory.max")
    elif all(v1):
        cpu, cpuacct, own = (hierarchy.own for hierarchy in v1 if hierarchy is not None)
        group = ContainerGroup(partial(cgroup_v1.read_counters, cpu, cpuacct, own), own / "memory.limit_in_bytes")
    else:
        return "no control groups with memory and CPU are mounted here"
    if not _is_ours(own):
        return f"other processes are in the control group that we run in, {own}"
    try:
        group.read()
    except (OSError, ValueError) as error:
        return f"the counters of {own} can't be read: {error}"
    return group


def _is_ours(group: Path) -> bool:
    """Return whether a group holds only us and what we have started. The first process of a container is in the container's."""
    if os.getpid() == _FIRST_PROCESS:
        return True
    known = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    return set(cgroups.direct_members(group)) <= known


class ContainerLimits:
    """``Limiter`` of nodes in a container."""

    watch_seconds: float | None = None

    def __init__(self, group: ContainerGroup | str, *, beside: int = 0) -> None:
        """``group``: that of the container; or why there is none, as a phrase. ``beside``: bytes that the container has beside what its
        node was given, for the keeper and the template."""
        self.beside = beside
        self.group = group if isinstance(group, ContainerGroup) else None
        self._why = "" if isinstance(group, ContainerGroup) else group
        self.running: set[_ContainerFence] = set()
        self.accounted_kills = 0
        """Number of processes killed for memory, as of the last node whose end that was."""
        self._watchdog = Watchdog("it only looks")

    def enforcement(self) -> Enforcement:
        return Enforcement(
            "the container's limits", [], self._why and f"what nodes use is a sum of processes: {self._why}"
        )

    def create(self, node: str, resources: Resources) -> Fence:
        return _ContainerFence(self, node, resources)

    def limit_together(self, cores: float) -> None:
        """Do nothing: the container has its limit."""

    def processes(self, node: str, resources: Resources) -> Fence:
        """Return what looks at the processes of a node, and kills them."""
        return self._watchdog.create(node, resources)

    def remove_all(self) -> None:
        self._watchdog.remove_all()
        self.running.clear()


class _ContainerFence:
    """A node among those of a container. It is no fence: what the node may use is changed from outside."""

    def __init__(self, limits: ContainerLimits, node: str, resources: Resources) -> None:
        self._limits = limits
        self._begin(node, resources)

    def _begin(self, node: str, resources: Resources) -> None:
        self._node = node
        self._resources = resources
        self._processes = self._limits.processes(node, resources)
        self._before = Counters()
        self._beside = 0
        self._seen_memory = 0
        self._cpu_seconds = 0.0

    @property
    def enter(self) -> Enter:
        return Enter(killed_first=True)

    def started(self, pid: int) -> None:
        self._processes.started(pid)
        self._limits.running.add(self)
        if self._limits.group is not None:
            self._before = self._limits.group.read()
            kept = self._before.shared_memory  # by an earlier node, for this one
            self._beside = min(self._limits.beside, max(0, self._before.memory - kept))

    def resize(self, resources: Resources) -> None:
        """Take note of limits that are changed by whoever runs the container."""
        group = self._group()
        usage = self._processes.usage() if group is None else None
        used = self._own(group.read().memory) if group is not None else usage.memory if usage is not None else 0
        if resources.memory < used:
            raise too_small(self._node, resources.memory, used)
        self._resources = resources

    def _group(self) -> ContainerGroup | None:
        """Return the container's group if no other node runs in it: all that it uses counts for this one then."""
        return None if self._limits.running - {self} else self._limits.group

    def take_over(self, node: str, resources: Resources) -> None:
        self.resize(resources)
        self._processes.remove()
        self._begin(node, resources)

    def usage(self) -> Usage | None:
        if (group := self._group()) is None:
            usage = self._processes.usage()
            if usage is None:
                return None
        else:
            now, before = group.read(), self._before
            usage = Usage(
                now.cpu_seconds - before.cpu_seconds,
                self._own(now.memory),
                self._own(self._peak(now)),
                now.shared_memory,
                now.throttled_seconds - before.throttled_seconds,
            )
        # It doesn't fall when another node begins, and processes count in place of the group.
        self._cpu_seconds = max(self._cpu_seconds, usage.cpu_seconds)
        return msgspec.structs.replace(usage, cpu_seconds=self._cpu_seconds)

    def _own(self, memory: int) -> int:
        """Return what counts for the node of what the container uses, in bytes."""
        return max(0, memory - self._beside)

    def _peak(self, now: Counters) -> int:
        """Return the kernel's high-water mark; where that is still an earlier node's, the most that was seen of this one."""
        self._seen_memory = max(self._seen_memory, now.memory)
        return max(now.peak_memory, now.memory) if now.peak_memory > self._before.peak_memory else self._seen_memory

    def over_memory(self) -> OverMemory | None:
        """Return whether the kernel has killed a process of the container for memory while this node ran, and no other node has been told
        so."""
        self._limits.running.discard(self)
        group = self._limits.group
        if group is None:
            return None
        now = group.read()
        if now.oom_kills <= max(self._before.oom_kills, self._limits.accounted_kills):
            return None
        self._limits.accounted_kills = now.oom_kills
        limit = group.memory_limit()
        within = "the memory of its host" if limit is None else f"its container's memory limit of {format_bytes(limit)}"
        # A node may use what the container keeps for the agent, too: it may have had more than its own limit.
        return OverMemory(f"over {within} (peak {format_bytes(now.peak_memory)})", self._own(self._peak(now)))

    def watch(self) -> None:
        pass

    def kill(self) -> bool:
        return self._processes.kill()

    def remove(self) -> bool:
        return self._processes.remove()
