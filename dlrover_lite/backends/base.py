"""The backend interface: what the master needs of whatever runs its nodes (design, section 8).

Three implementations share it: ``local`` (processes of this machine), ``k8s`` (pods) and ``sim`` (a virtual
clock). Nothing here assumes one machine, one file system or a real clock. Every call is idempotent: asking
again for what already is changes nothing, so a master that restarted may ask for everything once more.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from dlrover_lite.units import Resources

Role = Literal["master", "ps", "worker"]
ExitReason = Literal["Succeeded", "UserError", "Killed", "OOMKilled", "Unknown"]


class NodeSpec(msgspec.Struct, frozen=True):
    """A node as the master wants it. ``id`` is unique within the job for all time: a relaunch gets a new one."""

    id: str
    role: Role
    resources: Resources
    master_endpoint: str


class NodeEvent(msgspec.Struct, frozen=True):
    """One thing that happened to a node. ``number`` grows by one from 1 for each event of the job."""

    number: int
    node: str
    kind: Literal["started", "exited"]
    at: float
    """Seconds since the epoch."""
    reason: ExitReason | None = None
    exit_code: int | None = None
    detail: str = ""


class Usage(msgspec.Struct, frozen=True):
    """What one node has used since it started: CPU seconds, and memory bytes now and at most."""

    cpu_seconds: float
    memory: int
    peak_memory: int


class Backend(Protocol):
    """All calls raise BackendError when the backend can't be reached, or refuses."""

    def capacity(self) -> Resources:
        """What this job's nodes may use together at most."""

    def launch(self, spec: NodeSpec) -> None:
        """Start the node unless one with this id was ever started."""

    def terminate(self, node: str, *, grace_seconds: float) -> None:
        """Ask the node to end, and kill it after the grace period. Returns at once; the end is an event."""

    def events(self, after: int, *, timeout_seconds: float = 0.0) -> list[NodeEvent]:
        """Events numbered above ``after``, in order; waits up to the timeout for the first one."""

    def usage(self, node: str) -> Usage | None:
        """None once the node has ended, or before it started."""

    def logs(self, node: str) -> str:
        """Where this node's output is: a path or URL to read it from."""
