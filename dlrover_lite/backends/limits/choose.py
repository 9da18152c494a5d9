"""Which way of enforcing limits is in force: the best that works here."""

from __future__ import annotations

import os
import sys

from dlrover_lite.backends.host.mounts import Hierarchy, hierarchies
from dlrover_lite.backends.limits.base import Limiter, LimiterUnavailable, Limits
from dlrover_lite.backends.limits.cgroup import Record
from dlrover_lite.backends.limits.cgroup_v1 import CgroupV1
from dlrover_lite.backends.limits.cgroup_v2 import CgroupV2
from dlrover_lite.backends.limits.watchdog import Watchdog
from dlrover_lite.core.errors import BackendError

__all__ = ["choose"]


def choose(
    wanted: Limits, name: str, record: Record, found: list[Hierarchy] | None = None, *, own_cores: bool = False
) -> Limiter:
    """Try each way, the best first, by making a group and setting limits on it. Groups are called ``name``. ``own_cores``: each node is
    to have a CPU limit of its own, in place of one of all nodes together.

    Version 2 may move this process to another group. Raises BackendError when ``wanted`` can't be had.
    """
    refusals: dict[str, LimiterUnavailable] = {}
    if found is None:
        found = hierarchies()
    for kind, make in (("cgroup-v2", CgroupV2), ("cgroup-v1", CgroupV1)):
        if wanted not in ("auto", kind):
            continue
        try:
            return make(name, found, record, own_cores=own_cores)
        except LimiterUnavailable as refusal:
            refusals[kind] = refusal
    if wanted == "auto":
        return Watchdog(_why(found, refusals))
    if wanted == "watchdog":
        return Watchdog("it was asked for")
    because = refusals[wanted]
    raise BackendError(
        f"This job's limits are to be enforced by {wanted}, which can't be used here: {because.message}",
        hint=because.hint or "Leave the choice to it: limits = auto.",
    )


def _why(found: list[Hierarchy], refusals: dict[str, LimiterUnavailable]) -> str:
    """Say in one line for people why there are no control groups, and what to do."""
    if not sys.platform.startswith("linux"):
        return "control groups are Linux's: run it there, or in a container, for exact limits"
    if not found:
        return "no control groups are mounted here: a container needs them mounted writable (docker run --privileged)"
    relevant = [refusals[kind] for kind in _present(found) if kind in refusals] or list(refusals.values())
    hints = [refusal.hint for refusal in relevant if refusal.hint]
    if not hints and os.geteuid() != 0:
        hints = ["Run it as root, or on a system with cgroup v2 and systemd user sessions."]
    return "; ".join(refusal.message for refusal in relevant) + (f". {hints[0]}" if hints else "")


def _present(found: list[Hierarchy]) -> list[str]:
    """Return the versions that have the controllers, mounted."""
    v2 = any(h.version == 2 and "memory" in h.controllers for h in found)
    v1 = any(h.version == 1 and "memory" in h.controllers for h in found)
    return ["cgroup-v2"] * v2 + ["cgroup-v1"] * v1
