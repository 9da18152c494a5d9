"""The backend interface: what the master needs of whatever runs its nodes (design, section 8).

Three implementations share it: ``local`` (processes of this machine), ``k8s`` (pods) and ``sim`` (a virtual
clock). Nothing here assumes one machine, one file system or a real clock. Every call is idempotent: asking
again for what already is changes nothing, so a master that restarted may ask for everything once more.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from dlrover_lite.core.bounds import ByKey, Bytes, Cores, Count, ExitCode, Items, Name, Seconds, Text, Timestamp, Url
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host, SharedRoom

Role = Literal["master", "ps", "worker"]
ExitReason = Literal["Succeeded", "UserError", "OOMKilled", "Killed", "Preempted", "StartupTimeout", "Hung", "Unknown"]
"""Why a node ended. StartupTimeout and Hung are the master's own verdicts: it has such nodes terminated. OOMKilled: over its memory
limit, by the kernel's count or the watchdog's. Preempted: asked to end (SIGTERM, an eviction) by somebody other than the master, or cut off
from it."""

UNANSWERED_SECONDS = 600.0
"""Seconds for which a node goes on asking its master, or a parameter server, that doesn't answer. Whoever has lost its host is back within
minutes, where hosts have to be found; and names, networks and API servers of clusters are away for minutes, too."""
UNANSWERED_EXIT_CODE = 75
"""Exit code of a node that ended because it got no answer: something other than the node was at fault (EX_TEMPFAIL)."""
COUNTED_SECONDS = 3600.0
"""Seconds for which it counts that a node, or another process of a job, had to be started again: a job that runs for weeks isn't ended by
what happens once in some days."""


class NodeSpec(msgspec.Struct, frozen=True):
    """A node as the master wants it. ``id`` is unique within the job for all time: a relaunch gets a new one."""

    id: Name
    role: Role
    resources: Resources
    master_endpoint: Url
    follows: Name = ""
    """An ended node of the same role: this one takes over its limits, what it has left of memory, and what is still charged for that."""
    listen: Url = ""
    """Where a node that others talk to listens: its backend says so, and the node tells the master what came of it."""
    host: Name = ""
    """Host that it is wanted on; empty: wherever there is room. One that takes over what another has left is where that is."""
    avoids: Items[Name] = []
    """Hosts that it isn't wanted on, as others were slow there; rather there than nowhere."""


class Observed(msgspec.Struct, frozen=True):
    """A node that was launched, as its backend sees it. Times are seconds since the epoch."""

    started_at: Timestamp | None = None
    """When its process began to run; None while it hasn't, and of a node that ended before it did."""
    ended_at: Timestamp | None = None
    reason: ExitReason | None = None
    """Why it ended; None while it hasn't."""
    exit_code: ExitCode | None = None
    detail: Text = ""
    """Why it ended, in words; of one that has neither started nor ended what it waits for, as "pending: …" and "pulling: …"."""
    host: Name = ""
    """Host that was found for it, or, with ``no_room``, the only one where it can start; empty: none yet, or it isn't known which."""
    no_room: Text = ""
    """Why no host has room for it, in the words of whoever looks for one; empty: there is one, or nobody has looked yet."""
    used_memory: Bytes = 0
    """Bytes of memory that one which was OOMKilled had used, where that may be more than its limit; 0: it wasn't."""


class Observation(msgspec.Struct, frozen=True):
    """All nodes of a job that were ever launched, as they are at one moment."""

    version: Count
    """Number that rises with each change of a node, from 0 when there is none; it means something only to the backend that told it."""
    nodes: ByKey[Name, Observed]


class Usage(msgspec.Struct, frozen=True):
    """What one node has used since it started: the node itself and whatever it has started. Memory is in bytes."""

    cpu_seconds: Seconds
    memory: Bytes
    """Working set in bytes: all that the node is charged for but file pages that may be dropped; shared memory included."""
    peak_memory: Bytes
    shared_memory: Bytes = 0
    throttled_seconds: Seconds = 0.0
    """Seconds in which the node was ready to run and held back by its CPU limit. Where the nodes of a job share their cores, all of them
    are stopped together: seconds since this node started in which they were, whichever of them was ready to run. Each CPU of the machine
    counts for itself."""


class HostUsage(msgspec.Struct, frozen=True):
    """A machine that nodes run on."""

    host: Name
    cores: Cores
    """Cores that this job's nodes, and whoever shares them, can use on this machine."""
    cpu_seconds: Seconds
    """CPU seconds that everything (this job, others, the system) has taken of these cores since some moment."""


class Readings(msgspec.Struct, frozen=True):
    """The usage of all that runs, as of one moment."""

    nodes: ByKey[Name, Usage]
    on: ByKey[Name, Name]
    """Host of each of these nodes."""
    hosts: Items[HostUsage]
    addresses: ByKey[Name, Name] = {}
    """IP address of each node that has one which no node on another host has."""


class Enforcement(msgspec.Struct, frozen=True):
    """How limits are enforced here."""

    kind: Text
    """How limits are enforced, in words: ``cgroup v2``, ``cgroup v1``, ``watchdog``, …"""
    cannot: Items[Text] = []
    """What isn't enforced, a phrase for each: "fractions of a core"."""
    why: Text = ""
    """Why nothing better is in force, and what to do about it; empty for the best there is."""
    shared_cores: bool = False
    """The nodes of a job share the cores that they have together: what one doesn't use, others may."""


class Backend(Protocol):
    """What runs the nodes of a job. All calls raise BackendError when the backend can't be reached, or refuses."""

    def capacity(self) -> list[Host]:
        """Return the hosts that there are, with what this job's nodes may use together on each at most."""

    def shared_room(self) -> SharedRoom | None:
        """Return what all jobs may use together, where what ``capacity`` tells depends on what others have; None: it doesn't."""

    def launch(self, spec: NodeSpec) -> None:
        """Start the node unless one with this id was ever started. Raises BackendError when it is wanted on a host that isn't there."""

    def resize(self, node: str, resources: Resources) -> None:
        """Change a node's limits in place; on a node that has ended it changes those that a follower takes over.

        Raises ResizeUnderWay, which is a BackendError, while the node doesn't have them yet: who asks again learns when it does. Raises
        CantResize, another one, where the node isn't going to have them, but a new one could. Raises BackendError for a node that was
        never launched, for a memory limit below what the node uses, and where it can't be done for now.
        """

    def terminate(self, node: str, *, grace_seconds: float, keep_memory: bool = False) -> None:
        """Ask the node to end, and kill it after the grace period. Returns at once.

        Memory that would outlive the node, for one that follows it, ends with it, or now if it has ended; with ``keep_memory`` it stays.
        """

    def observe(self, *, after: int | None = None) -> Observation | None:
        """Return how all nodes are. ``after``: the version that the caller knows; None is returned when nothing is another than then."""

    def readings(self) -> Readings:
        """Measure the usage of all nodes that run, and of the hosts they are on."""

    def enforcement(self) -> Enforcement:
        """Say how the limits of this job's nodes are enforced."""
