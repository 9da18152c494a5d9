"""What a way of enforcing limits has to offer: a limiter for the job, a fence for each node."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import msgspec

from dlrover_lite.core.bounds import Bytes, Count, Items, Nice, Url
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.protocol.nodes import Enforcement, Usage

__all__ = ["Enter", "Fence", "Limiter", "LimiterUnavailable", "Limits", "OverMemory", "check_resources", "too_small"]

Limits = Literal["auto", "cgroup-v2", "cgroup-v1", "watchdog"]


class LimiterUnavailable(BackendError):
    """This way of enforcing limits can't be used here. The message is a phrase that says why, the hint what to do about it."""


class Enter(msgspec.Struct, frozen=True):
    """What a process does to be within a fence, before it runs anything of the node; what it starts later is within too."""

    groups: Items[Url] = []
    """Paths of ``cgroup.procs`` files that the process writes itself to."""
    cpus: Items[Count] = []
    """The only CPUs that the process runs on; empty: as it is."""
    nice: Nice = 0
    """Number added to the nice value of the process."""
    killed_first: bool = False
    """Where memory is short the kernel kills this process rather than what it was started by."""
    more_data: Bytes | None = None
    """Bytes that the process may allocate beyond what it has when it enters; None: no bound."""


class OverMemory(msgspec.Struct, frozen=True):
    """A node, or something it had started, was killed for memory. ``detail`` says so in words, with the numbers."""

    detail: str
    used: Bytes = 0
    """Bytes of memory that it had used by then, where that may be more than its limit; 0: it wasn't."""


def check_resources(node: str, resources: Resources) -> None:
    """Raise BackendError where a node can't have that, on any machine."""
    if not (resources.cores > 0 and math.isfinite(resources.cores) and resources.memory > 0):
        raise BackendError(
            f"Node {node} can't have {resources.cores:g} cores and {resources.memory:,} bytes: both must be above 0"
        )


def too_small(node: str, limit: int, used: int) -> BackendError:
    return BackendError(
        f"Node {node} can't be limited to {format_bytes(limit)} of memory: {format_bytes(used)} are in use",
        hint=f"Give it more than that ({used:,} bytes), or end it first.",
    )


class Fence(Protocol):
    """The limits of one node, and what it uses within them. No call blocks.

    Where the nodes of a job share their cores, a node's cores are its part of them when all nodes want more than there is, and what all
    have together is limited by ``Limiter.limit_together``.
    """

    @property
    def enter(self) -> Enter: ...

    def started(self, pid: int) -> None:
        """Note that the node runs, as ``pid``."""

    def resize(self, resources: Resources) -> None:
        """Change the limits now. Raises BackendError, naming both numbers, for less memory than is in use."""

    def take_over(self, node: str, resources: Resources) -> None:
        """Make it the fence of another node, which follows one that has ended: memory stays charged, the counters start afresh.
        Raises as ``resize``."""

    def usage(self) -> Usage | None:
        """Return the usage since the node started; None when nothing can be said."""

    def over_memory(self) -> OverMemory | None:
        """Set once something within was killed for memory, by the kernel's own count or the watchdog's."""

    def watch(self) -> None:
        """Look at the node; called every ``Limiter.watch_seconds`` while it runs."""

    def kill(self) -> bool:
        """Send SIGKILL to all that is within; True when there was nothing. What is forked meanwhile may be missed: repeat it until then."""

    def remove(self) -> bool:
        """Remove all of the fence; False while something is still within."""


class Limiter(Protocol):
    watch_seconds: float | None
    """Seconds between two looks at the fences; None: the kernel does that."""

    def enforcement(self) -> Enforcement: ...

    def create(self, node: str, resources: Resources) -> Fence:
        """Create the fence of a node. Raises BackendError that says what couldn't be set."""

    def limit_together(self, cores: float) -> None:
        """Limit the cores that all nodes have together; nothing happens where each node has a limit of its own. Raises BackendError."""

    def remove_all(self) -> None:
        """End everything within all fences, and leave nothing of them."""
