"""What both versions of control groups have in common: a directory per node, limits and counters in files.

Memory is limited node by node, CPU for the job's group as a whole: within that, nodes have weights in proportion to their cores, so that
what one doesn't use is there for the others. How exactly busy nodes get their parts then is up to the kernel: weights hold among the nodes
that are on one CPU, and from CPU to CPU the quota of a period goes to whichever asks for it first.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.limits.base import Enter, Fence, LimiterUnavailable, OverMemory, too_small
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.protocol.nodes import Usage

__all__ = [
    "CgroupFence",
    "CgroupLimiter",
    "Counters",
    "Record",
    "make_group",
    "period_and_quota",
]

Record = Callable[[list[Path]], None]
"""Function that is told of directories before they are made: they are to be removed if this process dies."""

_PERIOD_MICROSECONDS = 20_000
"""Period of the CPU quota. Nodes with a quarter of a core together then wait at most 15 ms; what they get is as exact as with the kernel's
default of 100 ms."""
_LEAST_QUOTA_MICROSECONDS = 1_000
_LONGEST_PERIOD_MICROSECONDS = 1_000_000
_PROBE = Resources(1.0, 1 << 28)
_AT_THE_LIMIT = 0.98
"""Share of the memory limit from which on a peak has reached it: the kernel charges in batches."""


@dataclass(frozen=True)
class Counters:
    """Counters of a control group as the kernel keeps them, since the group was made."""

    cpu_seconds: float = 0.0
    throttled_seconds: float = 0.0
    """Seconds that the group was stopped by its own CPU quota; of a node that has none, those of the job's group, which has that of all
    nodes."""
    memory: int = 0
    """Bytes of memory, without file pages that may be dropped."""
    shared_memory: int = 0
    peak_memory: int = 0
    oom_kills: int = 0


class CgroupFence(ABC):
    """``directories``: the node's group, one in each hierarchy that is used. ``own_cores``: it has a CPU quota of its own."""

    def __init__(self, node: str, directories: list[Path], resources: Resources, *, own_cores: bool) -> None:
        self._node = node
        self._own_cores = own_cores
        self.directories = directories
        self._resources = resources
        self._before = Counters()
        """Counters when the present node took the fence over; the throttled seconds are those when it started."""
        self._seen_memory = 0

    @abstractmethod
    def _counters(self) -> Counters:
        """Read the group's counters. Raises OSError when the group is gone."""

    @abstractmethod
    def _write_memory(self, limit: int) -> None: ...

    @abstractmethod
    def _write_cores(self, cores: float) -> None:
        """Set the group's part of the CPU beside other nodes, in proportion to ``cores``, and its quota, if it has one."""

    @abstractmethod
    def prepare(self) -> None:
        """Set what doesn't depend on the limits. Raises OSError."""

    def _reset_peak(self) -> bool:
        """Have the kernel start its high-water mark afresh; False where it can't."""
        return False

    @property
    def enter(self) -> Enter:
        return Enter(groups=[str(directory / "cgroup.procs") for directory in self.directories])

    def started(self, pid: int) -> None:
        """Count from now on for how long the job is throttled; the node has entered by itself."""
        with suppress(OSError):  # the group is gone, and so is what would be counted
            self._before = replace(self._before, throttled_seconds=self._counters().throttled_seconds)

    def watch(self) -> None:  # noqa: B027 - the kernel does
        pass

    def set_limits(self, resources: Resources) -> None:
        """Set the limits, memory first: it is what can be refused."""
        try:
            self._write_memory(resources.memory)
            self._write_cores(resources.cores)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise too_small(self._node, resources.memory, self._counters().memory) from error
            raise BackendError(
                f"Node {self._node} can't be limited to {resources.cores:g} cores and {format_bytes(resources.memory)}: "
                f"{error.filename}: {error.strerror}"
            ) from error
        self._resources = resources

    def resize(self, resources: Resources) -> None:
        try:
            used = self._counters().memory
        except OSError as error:
            raise BackendError(
                f"Node {self._node} can't be resized: its control group is gone ({error.filename})"
            ) from error
        if resources.memory < used:  # version 2 would kill it for that
            raise too_small(self._node, resources.memory, used)
        self.set_limits(resources)

    def take_over(self, node: str, resources: Resources) -> None:
        self.resize(resources)
        afresh = self._reset_peak()
        before = self._counters()
        self._before = replace(before, peak_memory=0) if afresh else before
        self._node, self._seen_memory = node, 0

    def usage(self) -> Usage | None:
        try:
            now = self._counters()
        except OSError:
            return None
        return Usage(
            cpu_seconds=now.cpu_seconds - self._before.cpu_seconds,
            memory=now.memory,
            peak_memory=self._peak(now),
            shared_memory=now.shared_memory,
            throttled_seconds=now.throttled_seconds - self._before.throttled_seconds,
        )

    def _peak(self, now: Counters) -> int:
        """Return the kernel's high-water mark; where that is still an earlier node's, the most that was seen of this one."""
        self._seen_memory = max(self._seen_memory, now.memory)
        return max(now.peak_memory, now.memory) if now.peak_memory > self._before.peak_memory else self._seen_memory

    def over_memory(self) -> OverMemory | None:
        try:
            now = self._counters()
        except OSError:
            return None
        if now.oom_kills <= self._before.oom_kills:
            return None
        peak, limit = self._peak(now), self._resources.memory
        if peak >= limit * _AT_THE_LIMIT:
            return OverMemory(f"over its memory limit of {format_bytes(limit)} (peak {format_bytes(peak)})")
        return OverMemory(
            f"the machine, or the container around it, had no memory left (peak {format_bytes(peak)} "
            f"of its {format_bytes(limit)})"
        )

    def kill(self) -> bool:
        """Kill all members. The same processes are in each directory, unless they have moved themselves."""
        inhabited = [directory for directory in self.directories if cgroups.members(directory)]
        for directory in inhabited:
            cgroups.kill(directory)
        return not inhabited

    def remove(self) -> bool:
        left = [directory for directory in self.directories if not cgroups.remove(directory)]
        return not left


class CgroupLimiter(ABC):
    """Groups ``NAME/<node>``, in each hierarchy that is used."""

    watch_seconds: float | None = None

    def _begin(self, groups: list[Path], record: Record) -> None:
        """Make the job's groups and try to set limits in them. Raises LimiterUnavailable, and leaves nothing of them then."""
        record(groups)
        try:
            for group in groups:
                make_group(group)
            self._prepare()
            self.limit_together(_PROBE.cores)
            self.create("probe", _PROBE).remove()
        except (OSError, BackendError) as error:
            self.remove_all()
            record([])
            if isinstance(error, BackendError):
                raise LimiterUnavailable(error.message) from error
            raise _unavailable(error, next((g for g in groups if str(g) == error.filename), groups[0])) from error

    @abstractmethod
    def _prepare(self) -> None:
        """Set what all nodes' groups need of the job's. Raises OSError."""

    @abstractmethod
    def _fence(self, node: str, resources: Resources) -> CgroupFence: ...

    @abstractmethod
    def _write_cores(self, cores: float) -> None:
        """Set the CPU quota of the job's group. Raises OSError."""

    @abstractmethod
    def remove_all(self) -> None: ...

    def limit_together(self, cores: float) -> None:
        try:
            self._write_cores(cores)
        except OSError as error:
            raise BackendError(
                f"This job's nodes can't be limited to {cores:g} cores together: {error.filename}: {error.strerror}",
                hint=_TOGETHER_HINTS.get(error.errno or 0, ""),
            ) from error

    def create(self, node: str, resources: Resources) -> Fence:
        fence = self._fence(node, resources)
        try:
            for directory in fence.directories:
                make_group(directory)
            fence.prepare()
            fence.set_limits(resources)
        except OSError as error:
            fence.remove()
            raise BackendError(f"Node {node} can't be limited: {error.filename}: {error.strerror}") from error
        except BackendError:
            fence.remove()
            raise
        return fence


def make_group(path: Path) -> None:
    """Make a group. Raises OSError with the path."""
    path.mkdir()


_HINTS = {
    errno.EACCES: "Run it as root, or from within a control group that belongs to you.",
    errno.EROFS: "In a container they can be written with docker run --privileged.",
}


_TOGETHER_HINTS = {
    errno.EINVAL: "A group within has a CPU quota above that, which isn't this job's: remove it, or lower it.",
    errno.ENOENT: "Something has removed the job's control group: stop the job, and resume it.",
}


def _unavailable(error: OSError, group: Path) -> LimiterUnavailable:
    """Return why the job's group, or something in it, couldn't be made or written."""
    if error.filename == str(group):
        what = f"no control groups can be made in {group.parent}"
    else:
        what = f"control groups in {group.parent} can be made, but not used: {Path(error.filename).name}"
    return LimiterUnavailable(f"{what}: {error.strerror}", hint=_HINTS.get(error.errno or 0, ""))


def period_and_quota(cores: float) -> tuple[int, int]:
    """Return the period and the CPU quota within it, in microseconds. The kernel takes no quota under a millisecond."""
    least = _LEAST_QUOTA_MICROSECONDS
    period = min(_LONGEST_PERIOD_MICROSECONDS, max(_PERIOD_MICROSECONDS, round(least / max(cores, 1e-6))))
    return period, max(least, round(cores * period))
