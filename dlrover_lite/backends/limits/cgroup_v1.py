"""Limits by control groups, version 1: the cpu, cpuacct and memory controllers, mounted together or each by itself."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.host.mounts import Hierarchy, with_controller
from dlrover_lite.backends.limits.base import LimiterUnavailable
from dlrover_lite.backends.limits.cgroup import (
    CgroupFence,
    CgroupLimiter,
    Counters,
    Record,
    period_and_quota,
)
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.nodes import Enforcement

__all__ = ["CgroupV1", "read_counters"]

_CONTROLLERS = ("cpu", "cpuacct", "memory")
_SHARES_PER_CORE = 1024
"""As a process without a group has."""
_LEAST_SHARES, _MOST_SHARES = 2, 1 << 18
"""Bounds of the kernel."""
_NO_QUOTA = -1


class CgroupV1(CgroupLimiter):
    """Groups ``NAME/<node>`` below this process's own, in the hierarchy of each controller. ``own_cores``: each node has a CPU quota, and
    all together have none."""

    def __init__(self, name: str, found: list[Hierarchy], record: Record, *, own_cores: bool = False) -> None:
        """Make the job's groups and try to set limits. Raises LimiterUnavailable."""
        self._own_cores = own_cores
        self._groups: dict[str, Path] = {}
        for controller in _CONTROLLERS:
            hierarchy = with_controller(found, controller)
            if hierarchy is None:
                raise LimiterUnavailable(f"there is no {controller} controller of cgroup v1")
            self._groups[controller] = hierarchy.own / name
        self._begin(list(dict.fromkeys(self._groups.values())), record)

    def _prepare(self) -> None:
        """Nothing is needed."""

    def enforcement(self) -> Enforcement:
        memory = self._groups["memory"]
        limits_swap = (memory / "memory.memsw.limit_in_bytes").exists() or not _has_swap()
        return Enforcement("cgroup v1", [] if limits_swap else ["the use of swap"], shared_cores=not self._own_cores)

    def _fence(self, node: str, resources: Resources) -> CgroupFence:
        groups = {controller: group / node for controller, group in self._groups.items()}
        return _FenceV1(node, groups, resources, own_cores=self._own_cores)

    def _write_cores(self, cores: float) -> None:
        if not self._own_cores:
            _write_quota(self._groups["cpu"], cores)
        cgroups.write(self._groups["cpu"] / "cpu.shares", shares_of(cores))

    def remove_all(self) -> None:
        cgroups.end(dict.fromkeys(self._groups.values()))


def _write_quota(group: Path, cores: float) -> None:
    """Set the CPU quota of a group. Raises OSError."""
    period, quota = period_and_quota(cores)
    try:
        if cgroups.read_number(group / "cpu.cfs_period_us") != period:
            cgroups.write(group / "cpu.cfs_period_us", period)
        cgroups.write(group / "cpu.cfs_quota_us", quota)
    except OSError as error:
        if error.errno != errno.EINVAL or _most_within(group) > cores:
            raise
        # more than the group around this one has: that one is the limit
        cgroups.write(group / "cpu.cfs_quota_us", _NO_QUOTA)


def shares_of(cores: float) -> int:
    """Return the weight of a group with so many cores. Beside others that ask for what there is, each gets in proportion to its weight:
    with one weight for all jobs, what is short would be short for the largest alone."""
    return min(_MOST_SHARES, max(_LEAST_SHARES, round(_SHARES_PER_CORE * cores)))


class _FenceV1(CgroupFence):
    def __init__(self, node: str, directories: dict[str, Path], resources: Resources, *, own_cores: bool) -> None:
        super().__init__(node, list(dict.fromkeys(directories.values())), resources, own_cores=own_cores)
        self._cpu, self._cpuacct, self._memory = (directories[controller] for controller in _CONTROLLERS)

    def prepare(self) -> None:
        """Set what doesn't depend on the limits. An older kernel may lack either; without swap neither matters."""
        for name, value in (("memory.swappiness", 0), ("memory.oom_control", 0)):
            with suppress(OSError):
                cgroups.write(self._memory / name, value)

    def _write_memory(self, limit: int) -> None:
        plain, with_swap = self._memory / "memory.limit_in_bytes", self._memory / "memory.memsw.limit_in_bytes"
        # The limit with swap may at no moment be below the one without.
        order = [plain, with_swap] if limit < cgroups.read_number(plain) else [with_swap, plain]
        for path in order:
            if path is plain or path.exists():
                cgroups.write(path, limit)

    def _write_cores(self, cores: float) -> None:
        if self._own_cores:
            _write_quota(self._cpu, cores)
        else:
            cgroups.write(self._cpu / "cpu.cfs_quota_us", _NO_QUOTA)
        cgroups.write(self._cpu / "cpu.shares", shares_of(cores))

    def _reset_peak(self) -> bool:
        cgroups.write(self._memory / "memory.max_usage_in_bytes", 0)
        return True

    def _counters(self) -> Counters:
        counters = read_counters(self._cpu, self._cpuacct, self._memory)
        return counters if self._own_cores else replace(counters, throttled_seconds=_read_throttled(self._cpu.parent))


def read_counters(cpu: Path, cpuacct: Path, memory: Path) -> Counters:
    """Read the counters of a group, given its directory in the hierarchy of each controller. Raises OSError when it is gone."""
    stat = cgroups.read_fields(memory / "memory.stat")
    used = cgroups.read_number(memory / "memory.usage_in_bytes")
    return Counters(
        cpu_seconds=cgroups.read_number(cpuacct / "cpuacct.usage") / 1e9,
        throttled_seconds=_read_throttled(cpu),
        memory=max(0, used - stat.get("total_inactive_file", 0)),
        shared_memory=stat.get("total_shmem", 0),
        peak_memory=cgroups.read_number(memory / "memory.max_usage_in_bytes"),
        oom_kills=cgroups.read_fields(memory / "memory.oom_control").get("oom_kill", 0),
    )


def _read_throttled(cpu: Path) -> float:
    return cgroups.read_fields(cpu / "cpu.stat").get("throttled_time", 0) / 1e9


def _most_within(group: Path) -> float:
    """Return the cores of the largest quota that a group within has, 0 without: the kernel lets no group have less than those within it."""
    most = 0.0
    for file in group.glob("*/**/cpu.cfs_quota_us"):
        quota = cgroups.read_number(file, missing=_NO_QUOTA)
        period = cgroups.read_number(file.with_name("cpu.cfs_period_us"), missing=0)
        if quota > 0 and period > 0:
            most = max(most, quota / period)
    return most


def _has_swap() -> bool:
    try:
        return len(Path("/proc/swaps").read_text().splitlines()) > 1
    except OSError:
        return False
