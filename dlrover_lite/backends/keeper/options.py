"""How a keeper runs its job; the defaults are what a person gets."""

from __future__ import annotations

import sys

import msgspec

from dlrover_lite.backends.limits.base import Limits
from dlrover_lite.protocol.brain_mode import BrainMode
from dlrover_lite.protocol.nodes import Role
from dlrover_lite.transport.endpoints import TransportKind

__all__ = ["MEMORY_VARIABLE", "ROLE_VARIABLE", "AgentOptions", "KeeperOptions", "KeeperReady", "NodeOptions"]

MEMORY_VARIABLE = "DLROVER_LITE_AGENT_MEMORY"
"""Environment variable with ``AgentOptions.memory``, which whoever makes the pod knows."""
ROLE_VARIABLE = "DLROVER_LITE_AGENT_ROLE"
"""Environment variable with the role of all nodes of a pod, where whoever makes the pod knows it: nothing is imported there for others."""


class NodeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How nodes are started."""

    entries: dict[Role, str] = msgspec.field(
        default_factory=lambda: {"worker": "dlrover_lite.worker.main:main", "ps": "dlrover_lite.ps.server.main:main"}
    )
    """``module:function`` of each role, called in the node with (NodeSpec, job directory as Path); returns the exit code or None."""
    imports: dict[Role, list[str]] = msgspec.field(
        default_factory=lambda: {
            "worker": ["torch", "dlrover_lite.worker.compile_kernels:compile_kernels"],
            "ps": ["dlrover_lite.ps.server.compile_kernels:compile_kernels"],
        }
    )
    """Modules that the template imports for nodes of each role before it forks them, beside that of their entry; ``module:function`` is
    called, too."""
    restarts: int = 10
    """How often the master, and the template, may be started again; one that dies more often than this fails the job."""
    longest_restart_delay_seconds: float = 30.0
    """Longest delay before a restart in seconds. The first restart is at once, the second after half a second, each further one after twice
    as long."""

    @property
    def imported(self) -> list[str]:
        """What the template imports, for the roles that have an entry."""
        modules = [entry.partition(":")[0] for entry in self.entries.values()]
        return list(dict.fromkeys([*(name for role in self.entries for name in self.imports.get(role, ())), *modules]))


class KeeperOptions(NodeOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a keeper with a master runs its job."""

    master: list[str] = msgspec.field(
        default_factory=lambda: [sys.executable, "-P", "-m", "dlrover_lite.master_process"]
    )
    """Command of the master; the job's directory is appended."""
    runs_nodes: bool = True
    """Whether nodes run here, too. False: the master launches them elsewhere, and there is neither a template nor anybody to ask at
    ``JobRecord.keeper_endpoint``."""
    master_grace_seconds: float = 20.0
    """Seconds from asking the master to stop until it is killed: it stops the nodes itself, with their grace."""
    node_grace_seconds: float = 5.0
    """Seconds from asking a node to end that the master has left behind until it is killed."""
    limits: Limits = "auto"
    """How the nodes' limits are enforced; the job doesn't start if that can't be had. ``auto``: the best that can."""
    own_cores: bool = False
    """Whether each node has a CPU limit of its own, as pods have, in place of one of all nodes together."""
    spared: str = "dlrover_lite.brain_server.files:running_brain"
    """``module:function`` that returns the id of a process to be left alone when the job ends, or None: a brain that this job's master
    has started is adopted by the keeper, and serves other jobs too."""
    transport: TransportKind = "unix"
    """How the processes of the job reach each other."""
    listen: str = ""
    """Address at which the master listens, where it is over TCP and to be reached from elsewhere; empty: any port of this machine."""
    advertised: str = ""
    """Address by which nodes know the master; empty: where it listens."""
    runtime: str = ""
    """Directory of what tells where the job's processes are, made anew; empty: a short path for sockets, outside the job's directory."""
    brain: BrainMode = "off"
    """Brain that the master asks for advice, and tells what happens: the user's daemon, if there is one, or one in its own process."""


class AgentOptions(NodeOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How an agent, the keeper of a node's pod, runs."""

    files: str = "/dlrover-lite/job"
    """Directory with the job's ``recipe.json``."""
    scratch: str = "/scratch"
    """The directory that may be written to."""
    memory: int = 0
    """Bytes of memory that the container has beside what its node was given."""
    port: int = 7071
    """Port of the pod's IP to listen at."""
    idle_seconds: float = 600.0
    """Seconds for which nobody has asked for anything, after which the agent ends, and its nodes with it."""
    grace_seconds: float = 20.0
    """Seconds from asking nodes to end, as the pod is being deleted, until they are killed; less than the pod's own grace period."""


class KeeperReady(msgspec.Struct, frozen=True):
    """What the keeper tells the launching command, once: that it is up, or why it can't be."""

    error: str = ""
    hint: str = ""
