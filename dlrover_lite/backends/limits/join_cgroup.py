"""The child's side of a fence."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.limits.base import Enter

try:
    import resource  # now, not in the forked child
except ImportError:  # pragma: no cover - not on the systems we run on
    resource = None  # type: ignore[assignment]

__all__ = ["NODE_VARIABLE", "enter_fence"]

NODE_VARIABLE = "DLROVER_LITE_NODE"
"""Environment variable with the node's id, for what the node starts."""

_AUTOGROUP = Path("/proc/self/autogroup")
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_HIGHEST_OOM_SCORE = 1000
_MORE_OOM_SCORE = 20
"""Thousandths of all memory that count for a node beyond what it has. A node has the pages of its template, too, so that little is enough;
and where a whole machine is short of memory, it is to stay in the rank that its pod has there."""


def enter_fence(enter: Enter) -> None:
    """Enter a fence; called in the node's process. Raises OSError when it can't be entered."""
    for group in enter.groups:
        cgroups.write(Path(group), 0)
    if enter.cpus:
        os.sched_setaffinity(0, enter.cpus)
    if enter.nice:
        value = os.nice(enter.nice)
        with suppress(OSError):  # where sessions are scheduled as groups, nice counts within one only
            _AUTOGROUP.write_text(str(value))
    if enter.killed_first:
        with suppress(OSError):
            _OOM_SCORE.write_text(str(min(_HIGHEST_OOM_SCORE, int(_OOM_SCORE.read_text()) + _MORE_OOM_SCORE)))
    if enter.more_data is not None and resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        set_data_limit(0, enter.more_data)


def set_data_limit(pid: int, more_data: int) -> None:
    """Let the process (0: this one) allocate ``more_data`` bytes beyond what it has now. The soft limit, so that it can be raised again."""
    if hasattr(resource, "prlimit"):
        held = data_bytes(pid)
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        limit = held + more_data
        resource.prlimit(
            pid, resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
        )


def data_bytes(pid: int) -> int:
    """Return what RLIMIT_DATA counts: private memory that may be written, touched or not."""
    text = Path(f"/proc/{pid or 'self'}/status").read_text()
    return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmData:")), 0)
