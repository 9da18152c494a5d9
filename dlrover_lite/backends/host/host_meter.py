"""How busy this machine, or the container around us, is with everything that runs on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.host.machine import cpu_quotas, host_name, machine_resources
from dlrover_lite.backends.host.mounts import Hierarchy, hierarchies, with_controller
from dlrover_lite.protocol.nodes import HostUsage

__all__ = ["HostMeter"]


class HostMeter:
    """Measures how busy this machine is. Where a control group around us has fewer cores than the machine, what is within that group
    counts."""

    def __init__(self, found: list[Hierarchy] | None = None, *, name: str = "") -> None:
        """``name``: what the machine is called; empty: as the local backend does."""
        found = hierarchies() if found is None else found
        self.name = name or host_name()
        self._found = found
        self._cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        self._read = self._of_group(found) or self._of_machine

    def read(self) -> HostUsage:
        return HostUsage(self.name, machine_resources(self._found).cores, self._read())

    def _of_group(self, found: list[Hierarchy]) -> Callable[[], float] | None:
        """Return what reads the account of the tightest group around us; None if there is none, or it can't be read."""
        quotas = cpu_quotas(found)
        cpus = len(self._cpus) if self._cpus is not None else os.cpu_count() or 1
        group = min(quotas, key=lambda group: quotas[group], default=None)
        if group is None or quotas[group] >= cpus:
            return None
        for usage in (_usage_v2, _usage_v1):
            try:
                usage(group, found)
            except (OSError, KeyError, ValueError):
                continue
            return partial(usage, group, found)
        return None

    def _of_machine(self) -> float:
        times = psutil.cpu_times(percpu=True)
        if self._cpus is not None and self._cpus[-1] < len(times):
            times = [times[cpu] for cpu in self._cpus]
        # a guest's time is in the user's; stolen is what other machines on the same hardware took
        return float(
            sum(
                getattr(of_cpu, kind, 0.0)
                for of_cpu in times
                for kind in ("user", "nice", "system", "irq", "softirq", "steal")
            )
        )


def _usage_v2(group: Path, _: list[Hierarchy]) -> float:
    return cgroups.read_fields(group / "cpu.stat")["usage_usec"] / 1e6


def _usage_v1(group: Path, found: list[Hierarchy]) -> float:
    cpu, account = with_controller(found, "cpu"), with_controller(found, "cpuacct")
    if cpu is None or account is None:
        raise ValueError("there is no account of CPU seconds")
    return cgroups.read_number(account.mount / group.relative_to(cpu.mount) / "cpuacct.usage") / 1e9
