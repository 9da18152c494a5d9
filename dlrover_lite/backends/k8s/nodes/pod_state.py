"""The state that the book of pods keeps of each pod and each node, and the actions that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dlrover_lite.backends.k8s.objects.pod_view import PodView
from dlrover_lite.backends.k8s.objects.quantities import write_cores
from dlrover_lite.backends.keeper import protocol
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.nodes import NodeSpec, Observed, Role

__all__ = ["Action", "CreatePod", "DeletePod", "NodeState", "Order", "PodState", "ResizePod", "is_same"]

Order = protocol.Launch | protocol.Terminate | protocol.Resize
"""What an agent is told, until it has acknowledged it."""
ANSWERS_SECONDS = 10.0
"""An agent that was silent for longer isn't given another node."""


class CreatePod(NamedTuple):
    pod: str
    spec: NodeSpec
    """The node that it is made for."""
    resources: Resources
    spare: bool = False


class DeletePod(NamedTuple):
    pod: str
    uid: str
    grace_seconds: int


class ResizePod(NamedTuple):
    pod: str
    resources: Resources


Action = CreatePod | DeletePod | ResizePod


@dataclass
class NodeState:
    spec: NodeSpec
    pod: str
    """Name of the pod that it runs in, or is to."""
    observed: Observed = field(default_factory=Observed)
    launch: Literal["due", "asked", "done"] = "due"
    """Whether its agent was told to start it, and has acknowledged that."""
    terminate: protocol.Terminate | None = None
    """What its agent is still to be told."""
    asked_to_end: bool = False
    grace_seconds: float = 0.0
    keeps_memory: bool = False
    """What it leaves of memory is for one that follows it."""
    followed_by: str = ""
    launch_by: float | None = None
    """Time when it is started in a pod that hasn't been given yet what it was to have; None: it isn't waited for."""

    @property
    def ended(self) -> bool:
        return self.observed.ended_at is not None

    @property
    def is_untouched(self) -> bool:
        """Whether no agent was ever told to start it."""
        return self.launch == "due" and self.observed.started_at is None


@dataclass
class PodState:
    name: str
    role: Role
    wanted: Resources
    """What its node is to have."""
    nodes: list[str] = field(default_factory=list)
    """Nodes that were in it, the one that is, or was last, at the end."""
    create: Literal["due", "asked", "done"] = "due"
    delete: Literal["no", "asked"] = "no"
    delete_at: float | None = None
    """Time when it is to be deleted."""
    grace_seconds: int = 30
    retry_at: float = 0.0
    """Time before which it isn't tried again to make or delete it."""
    resize: Literal["no", "due", "asked"] = "no"
    resize_at: float = 0.0
    """Time before which a resize that was refused isn't tried again."""
    resize_problem: str = ""
    """Why it hasn't been resized, in words of who refuses it; empty: nobody does."""
    cant_resize: bool = False
    """It isn't to be expected any more that it is resized."""
    deferred_since: float | None = None
    """Time since when its host has put the resize off."""
    tell_size: bool = False
    """Its agent is still to be told what its node may use by now."""
    uid: str = ""
    view: PodView | None = None
    created_at: float = 0.0
    """Time when the API has said that it is made."""
    cant_start_since: float | None = None
    unschedulable_since: float | None = None
    heard: bool = False
    """Whether its agent has ever answered."""
    silent_seconds: float = 0.0
    """For how long it has been asked without an answer."""
    logs_copied: bool = False
    """All that its nodes have printed is copied, the last of which has ended."""
    spare: bool = False
    """It was made to wait for a node, and none has come yet."""
    was_taken: bool = False
    """Its node has come later than the pod. It is started once the agent has answered, and elsewhere if it doesn't."""
    takes_no_more: bool = False

    @property
    def node(self) -> str:
        """The node that is in it, or was last; empty: there was none."""
        return self.nodes[-1] if self.nodes else ""

    @property
    def is_leaving(self) -> bool:
        return self.delete == "asked" or (self.view is not None and self.view.is_leaving)

    @property
    def runs(self) -> bool:
        """Whether its agent can be asked."""
        return self.view is not None and self.view.is_running and bool(self.view.status.pod_ip)

    @property
    def awaits_agent(self) -> bool:
        """Whether its agent has to answer before the node is started."""
        return self.was_taken and not self.heard

    @property
    def takes_nodes(self) -> bool:
        return self.heard and self.may_take_nodes

    @property
    def may_take_nodes(self) -> bool:
        """Whether it can be given a node once its agent has answered."""
        return not self.takes_no_more and self.runs and self.silent_seconds < ANSWERS_SECONDS and not self.is_leaving


def is_same(one: Resources, other: Resources) -> bool:
    """Whether a pod with the one has as much as with the other: CPU is given in thousandths of a core."""
    return write_cores(one.cores) == write_cores(other.cores) and one.memory == other.memory
