"""Limits by control groups, version 2.

A group may give controllers to those below it only while no process is in it itself. So the job's group goes where that
is so already, or this process, alone in its group (as the one that systemd makes for it), moves into a leaf of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.host.mounts import Hierarchy, unified
from dlrover_lite.backends.limits.base import LimiterUnavailable
from dlrover_lite.backends.limits.cgroup import (
    CgroupFence,
    CgroupLimiter,
    Counters,
    Record,
    make_group,
    period_and_quota,
)
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.nodes import Enforcement

__all__ = ["CgroupV2", "is_keepers", "place_in", "read_counters"]

_CONTROLLERS = frozenset(("cpu", "memory"))
_WEIGHT_PER_CORE = 100
_KEEPER = "keeper"
_DELEGATE = (
    "Have systemd give users these controllers: in /etc/systemd/system/user@.service.d/delegate.conf write the lines "
    "[Service] and Delegate=cpu cpuset io memory pids, then log in again."
)


def place_in(hierarchy: Hierarchy) -> Path | None:
    """Return the nearest group at or above ours that hands cpu and memory down already and in which we may make groups."""
    for group in hierarchy.up():
        try:
            handed_down = set((group / "cgroup.subtree_control").read_text().split())
        except OSError:
            continue
        # To move a process from our group to one below this, its cgroup.procs must be writable, too.
        if handed_down >= _CONTROLLERS and all(os.access(path, os.W_OK) for path in (group, group / "cgroup.procs")):
            return group
    return None


def is_keepers(group: Path) -> bool:
    """Return whether the group is the leaf that a keeper has moved into to divide the group it was started in."""
    return group.name == _KEEPER


class CgroupV2(CgroupLimiter):
    """Groups ``NAME/<node>``, below the nearest group that allows it. ``own_cores``: each node has a CPU quota, and all together have
    none."""

    def __init__(self, name: str, found: list[Hierarchy], record: Record, *, own_cores: bool = False) -> None:
        """Make the job's group where that is possible. Raises LimiterUnavailable."""
        self._own_cores = own_cores
        hierarchy = unified(found)
        if hierarchy is None:
            raise LimiterUnavailable("cgroup v2 is not mounted")
        if lacking := sorted(_CONTROLLERS - hierarchy.controllers):
            in_v1 = any(h.version == 1 and h.controllers & _CONTROLLERS for h in found)
            why = "they are in use by cgroup v1" if in_v1 else "nothing hands them down"
            raise LimiterUnavailable(
                f"cgroup v2 has no {' and '.join(lacking)} controller for {hierarchy.own}: {why}",
                hint="" if in_v1 else _DELEGATE,
            )
        place = place_in(hierarchy)
        self._made_place: Path | None = None
        if place is None:
            place = self._made_place = _make_place(hierarchy.own)
        self._group = place / name
        self._begin([self._group], record)

    def _prepare(self) -> None:
        _hand_down(self._group)

    def enforcement(self) -> Enforcement:
        return Enforcement("cgroup v2", shared_cores=not self._own_cores)

    def _fence(self, node: str, resources: Resources) -> CgroupFence:
        return _FenceV2(node, [self._group / node], resources, own_cores=self._own_cores)

    def _write_cores(self, cores: float) -> None:
        if not self._own_cores:
            cgroups.write(self._group / "cpu.max", _quota_of(cores))
        cgroups.write(self._group / "cpu.weight", _weight_of(cores))

    def remove_all(self) -> None:
        cgroups.end([self._group])
        if self._made_place is not None:
            _unmake_place(self._made_place)


def _quota_of(cores: float) -> str:
    """Return the quota and its period, as a group is told it."""
    period, quota = period_and_quota(cores)
    return f"{quota} {period}"


def _weight_of(cores: float) -> int:
    """Return the weight of a group with so many cores, as ``cgroup_v1.shares_of`` does."""
    return min(10_000, max(1, round(_WEIGHT_PER_CORE * cores)))


def _make_place(own: Path) -> Path:
    """Make our own group one that hands controllers down. Raises LimiterUnavailable when that isn't ours to do."""
    others = [pid for pid in cgroups.direct_members(own) if pid != os.getpid()]
    if others:
        raise LimiterUnavailable(
            f"other processes are in the control group we run in, {own}",
            hint="Log in through systemd (loginctl show-user says whether you did), so that a job gets one of its own; "
            "or run it as root.",
        )
    leaf = own / _KEEPER
    try:
        if not leaf.exists():
            make_group(leaf)
        cgroups.write(leaf / "cgroup.procs", os.getpid())
        _hand_down(own)
    except OSError as error:
        _unmake_place(own)
        raise LimiterUnavailable(f"{error.filename}: {error.strerror}") from error
    return own


def _unmake_place(own: Path) -> None:
    """Make our own group as it was before; where others have moved in meanwhile, as far as possible."""
    for path, value in (
        (own / "cgroup.subtree_control", " ".join(f"-{name}" for name in sorted(_CONTROLLERS))),
        (own / "cgroup.procs", os.getpid()),
    ):
        with suppress(OSError):
            cgroups.write(path, value)
    cgroups.remove(own / _KEEPER)


def _hand_down(group: Path) -> None:
    cgroups.write(group / "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(_CONTROLLERS)))


class _FenceV2(CgroupFence):
    @property
    def _group(self) -> Path:
        return self.directories[0]

    def prepare(self) -> None:
        """Set what doesn't depend on the limits."""
        cgroups.write(self._group / "memory.oom.group", 1)
        with suppress(FileNotFoundError):  # a kernel without swap
            cgroups.write(self._group / "memory.swap.max", 0)

    def _write_memory(self, limit: int) -> None:
        cgroups.write(self._group / "memory.max", limit)

    def _write_cores(self, cores: float) -> None:
        cgroups.write(self._group / "cpu.max", _quota_of(cores) if self._own_cores else "max")
        cgroups.write(self._group / "cpu.weight", _weight_of(cores))

    def _counters(self) -> Counters:
        counters = read_counters(self._group)
        if self._own_cores:
            return counters
        job = _read_throttled(cgroups.read_fields(self._group.parent / "cpu.stat"))
        return replace(counters, throttled_seconds=job)


def _read_throttled(cpu: Mapping[str, int]) -> float:
    """Return the seconds that a group was throttled, of the fields of its ``cpu.stat``."""
    return cpu.get("throttled_usec", 0) / 1e6


def read_counters(group: Path) -> Counters:
    """Read the counters of a group. Raises OSError when it is gone."""
    cpu, memory = cgroups.read_fields(group / "cpu.stat"), cgroups.read_fields(group / "memory.stat")
    current = cgroups.read_number(group / "memory.current")
    return Counters(
        cpu_seconds=cpu.get("usage_usec", 0) / 1e6,
        throttled_seconds=_read_throttled(cpu),
        memory=max(0, current - memory.get("inactive_file", 0)),
        shared_memory=memory.get("shmem", 0),
        peak_memory=cgroups.read_number(group / "memory.peak", missing=0),  # since Linux 5.19
        oom_kills=cgroups.read_fields(group / "memory.events").get("oom_kill", 0),
    )
