"""Limits where control groups can't be used: CPU affinity and nice for the cores, a watchdog for the memory.

What it can't do is in ``enforcement``. Memory that a node has from the template it was forked from isn't counted, as it isn't
charged by control groups either.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from dlrover_lite.backends.limits.base import Enter, Fence, OverMemory, too_small
from dlrover_lite.backends.limits.join_cgroup import NODE_VARIABLE, set_data_limit
from dlrover_lite.backends.limits.processes import (
    Seen,
    all_processes,
    command_of,
    memory_of,
    node_of,
    proportional_memory,
    see,
    threads_of,
)
from dlrover_lite.core.units import GIB, Resources, format_bytes
from dlrover_lite.protocol.nodes import Enforcement, Usage

__all__ = ["Watchdog"]

_LOOK_SECONDS = 0.1
_SEARCH_SECONDS = 0.5
"""Seconds between two searches for new processes: each looks at every process of the machine."""
_NICE_STEP = 1.25
"""Factor by which the kernel gives a process more of a CPU than one that is nicer by one."""
_HAS_AFFINITY = hasattr(os, "sched_setaffinity")


class Watchdog:
    watch_seconds: float | None = _LOOK_SECONDS

    def __init__(self, why: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the watchdog. ``why`` says why nothing better is in force, and what to do about it."""
        self._why = why
        self._clock = clock
        self._fences: list[_Watched] = []
        self._use_of_cpus: Counter[int] = Counter(dict.fromkeys(os.sched_getaffinity(0), 0) if _HAS_AFFINITY else {})
        self._table: dict[int, Seen] = {}
        self._searched_at = -math.inf

    def enforcement(self) -> Enforcement:
        cannot = ["fractions of a core"] if _HAS_AFFINITY else ["how many cores a node uses"]
        cannot += [
            f"memory that is taken and used within {_LOOK_SECONDS:g} s, between two looks",
            "memory that no process has mapped",
        ]
        return Enforcement("watchdog", cannot, self._why)

    def create(self, node: str, resources: Resources) -> Fence:
        fence = _Watched(self, node, resources)
        self._fences.append(fence)
        return fence

    def limit_together(self, cores: float) -> None:
        """Do nothing: each node has CPUs of its own."""

    def remove_all(self) -> None:
        for fence in list(self._fences):
            fence.kill()
            self.forget(fence)

    def forget(self, fence: _Watched) -> None:
        if fence in self._fences:
            self._fences.remove(fence)
            self._use_of_cpus.subtract(fence.cpus)

    def assign(self, cores: float, before: list[int]) -> list[int]:
        """Assign whole CPUs, the least used ones; ``before`` are given back, and preferred."""
        self._use_of_cpus.subtract(before)
        ranked = sorted(self._use_of_cpus, key=lambda cpu: (self._use_of_cpus[cpu], cpu not in before, cpu))
        cpus = sorted(ranked[: max(1, math.ceil(cores))])
        self._use_of_cpus.update(cpus)
        return cpus

    def processes(self, *, fresh: bool) -> dict[int, Seen]:
        """Return the processes of the whole machine, as seen at most ``_SEARCH_SECONDS`` ago."""
        if fresh or self._clock() - self._searched_at >= _SEARCH_SECONDS:
            self._table, self._searched_at = all_processes(), self._clock()
        return self._table


class _Watched:
    """The fence of one node: its process, and whatever has come from it."""

    def __init__(self, watchdog: Watchdog, node: str, resources: Resources) -> None:
        self._watchdog = watchdog
        self._node = node
        self._resources = resources
        self.cpus = watchdog.assign(resources.cores, [])
        self._forget_processes()

    def _forget_processes(self) -> None:
        self._main: Seen | None = None
        self._known: dict[int, Seen] = {}
        self._inherited = 0
        self._forked_as = b""
        self._ended_cpu_seconds = 0.0
        self._cpu_seconds = 0.0
        self._peak = 0
        self._over: OverMemory | None = None

    @property
    def enter(self) -> Enter:
        return Enter(cpus=self.cpus, nice=_nice(self._resources.cores), more_data=_more_data(self._resources.memory))

    def started(self, pid: int) -> None:
        self._main = see(pid)
        if self._main is None:
            return
        self._known[pid] = self._main
        template = memory_of(self._main.parent)
        self._inherited = template.used if template is not None else 0
        self._forked_as = command_of(self._main.parent)

    # --- limits -----------------------------------------------------------------------------------------------------

    def resize(self, resources: Resources) -> None:
        used = self._used() if self._known else 0
        if resources.memory < used:
            raise too_small(self._node, resources.memory, used)
        self._resources = resources
        self.cpus = self._watchdog.assign(resources.cores, self.cpus)
        for pid in self._known:
            with suppress(
                OSError
            ):  # it has ended, or made itself another user's; being nicer can't be undone by everyone
                for thread in threads_of(pid) if _HAS_AFFINITY else ():
                    os.sched_setaffinity(thread, self.cpus)
                if (more_data := _more_data(resources.memory)) is not None:
                    set_data_limit(pid, more_data)
                os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + _nice(resources.cores))

    def take_over(self, node: str, resources: Resources) -> None:
        self._forget_processes()
        self._node = node
        self.resize(resources)

    # --- looking ----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        self._look(fresh=False)
        if self._over is not None or self._used() <= self._resources.memory:
            return
        self._look(fresh=True)
        used = self._used(exactly=True)
        if used > self._resources.memory:
            limit = format_bytes(self._resources.memory)
            self._over = OverMemory(f"over its memory limit of {limit}: the watchdog saw {format_bytes(used)}")
            self.kill()

    def usage(self) -> Usage | None:
        if self._main is None:
            return None
        self._look(fresh=False)
        used = self._used(exactly=True)
        shared = sum(memory.shared for pid in self._known if (memory := memory_of(pid)) is not None)
        return Usage(self._cpu_seconds, used, max(self._peak, used), shared)

    def over_memory(self) -> OverMemory | None:
        return self._over

    def _look(self, *, fresh: bool) -> None:
        """Bring ``_known`` and the CPU seconds up to date."""
        self._find_new(self._watchdog.processes(fresh=fresh))
        known: dict[int, Seen] = {}
        for pid, before in self._known.items():
            now = see(pid)
            if now is not None and now.started == before.started:
                known[pid] = now
            elif before.parent not in self._known:  # its parent counts what it has waited for
                self._ended_cpu_seconds += before.cpu_seconds
        self._known = known
        total = self._ended_cpu_seconds + sum(seen.cpu_seconds for seen in known.values())
        self._cpu_seconds = max(self._cpu_seconds, total)

    def _find_new(self, table: dict[int, Seen]) -> None:
        main = self._main
        if main is None:
            return
        replaced = main.pid in table and table[main.pid].started != main.started
        keeper = os.getpid()
        # Parents before their children: a process may have a smaller pid than its parent, so until nothing changes.
        found = True
        while found:
            found = False
            for seen in table.values():
                if seen.pid in self._known or (replaced and seen.pid == main.pid):
                    continue
                if (
                    seen.parent in self._known
                    or (seen.session == main.pid and not replaced)
                    or (seen.parent == keeper and node_of(seen.pid, NODE_VARIABLE) == self._node)
                ):
                    self._known[seen.pid] = seen
                    found = True

    def _used(self, *, exactly: bool = False) -> int:
        """Return the bytes in use. What forked processes share is counted for each, apart from what all have from the template, but for a
        closer look at more than one process."""
        memories = {pid: memory for pid in self._known if (memory := memory_of(pid)) is not None}
        used = sum(max(0, memory.used - self._inherited_by(pid)) for pid, memory in memories.items())
        if exactly and len(memories) > 1:
            parts = [proportional_memory(pid) for pid in self._known]
            if proportional := sum(part for part in parts if part is not None):
                used = min(used, proportional)
        self._peak = max(self._peak, used)
        return used

    def _inherited_by(self, pid: int) -> int:
        """Return the bytes that a process has from the one that the node was forked from; none once it runs another command."""
        return self._inherited if command_of(pid) == self._forked_as else 0

    # --- ends -------------------------------------------------------------------------------------------------------

    def kill(self) -> bool:
        if self._main is not None:
            self._look(fresh=True)
        for seen in self._known.values():
            _kill(seen)
        return not self._known

    def remove(self) -> bool:
        if self._known:
            self._look(fresh=True)
            if self._known:
                return False
        self._watchdog.forget(self)
        return True


def _kill(meant: Seen) -> None:
    """Kill exactly the process that was seen."""
    with suppress(ProcessLookupError, PermissionError):
        if not hasattr(os, "pidfd_open"):
            if (now := see(meant.pid)) is not None and now.started == meant.started:
                os.kill(meant.pid, signal.SIGKILL)
            return
        pidfd = os.pidfd_open(meant.pid)
        try:
            if (now := see(meant.pid)) is not None and now.started == meant.started:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _nice(cores: float) -> int:
    """Return a nice value by which nodes that share a CPU get of it in proportion to the fraction they asked for."""
    fraction = cores / max(1, math.ceil(cores))
    return min(19, round(-math.log(fraction, _NICE_STEP))) if 0 < fraction < 1 else 0


def _more_data(memory: int) -> int | None:
    """Return a bound for allocated bytes: far above what the watchdog lets pass, and still a bound for a jump between two looks."""
    return 2 * memory + GIB if sys.platform.startswith("linux") else None
