"""A host that turns slow under one node, by something that nobody of the job can resize.

All nodes of a local job are on one machine, so hosts are emulated. Nodes have CPU limits of their own (``KeeperOptions.own_cores``): with
one limit of all together the others would use what a slow one leaves. A host turns slow: within the node's own control group another one
is made, whose quota is a part of what the node has, and all the node's processes are put there. So the product sees what it would see of
a machine whose CPU strangers take: the node takes longer for the same work at the same CPU seconds, its own limit holds it back less than
before, and more cores for it change nothing. What it doesn't see is the strangers' CPU: there aren't any, since they would have to take it
from the other nodes, whose hosts are to stay as they are. Nodes that come later are on other hosts: they have groups of their own.

Control groups of version 1 only: in version 2 a group with processes in it can't have groups below it that are limited.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

__all__ = ["available", "pid_of", "slow_down"]

_PERIOD_MICROSECONDS = 100_000
_LEAST_QUOTA_MICROSECONDS = 1_000
_ROUNDS = 50


def available() -> str:
    """Why not; empty: it can be."""
    from dlrover_lite.backends.host.mounts import hierarchies, with_controller

    return "" if with_controller(hierarchies(), "cpu") else "there is no cpu controller of cgroup v1"


def pid_of(keeper: int, node: str) -> int:
    """Of a node of the job with this keeper. Raises SystemExit when it doesn't run."""
    for process in psutil.Process(keeper).children(recursive=True):
        with suppress(psutil.Error):
            if process.name() == f"dl:{node}":
                return int(process.pid)
    raise SystemExit(f"{node} doesn't run")


def slow_down(pid: int, cores: float) -> Path:
    """The node that this process is of has so many cores from now on; the group that holds it, which goes with the node."""
    from dlrover_lite.backends.host.mounts import hierarchies, with_controller

    hierarchy = with_controller(hierarchies(Path(f"/proc/{pid}")), "cpu")
    if hierarchy is None:
        raise SystemExit(f"the cpu group of process {pid} is not to be found")
    group = hierarchy.own / "host"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
    quota = max(_LEAST_QUOTA_MICROSECONDS, round(cores * _PERIOD_MICROSECONDS))
    (group / "cpu.cfs_quota_us").write_text(str(quota))
    for _ in range(_ROUNDS):  # what is forked meanwhile is in the node's group still
        left = (hierarchy.own / "cgroup.procs").read_text().split()
        if not left:
            return group
        for each in left:
            with suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(each)
    raise SystemExit(f"processes of {hierarchy.own} can't be moved")
