"""The section ``backend: {k8s: …}`` of a recipe: how a job's pods are made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dlrover_lite.core.units import GIB, LEAST_CORES, LEAST_MEMORY, MOST_CORES, MOST_MEMORY, Resources

__all__ = ["Kubernetes", "NodePool"]


class NodePool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nodes of the cluster that are alike, of which it starts more where pods find no room. Sizes are of one of them."""

    labels: dict[str, str] = {}
    """Labels by which those that are there are known; none: by ``node_selector`` alone."""
    most: Annotated[int, Meta(ge=1, le=10_000)]
    """Number of nodes that there may be, those that are there included."""
    cores: Annotated[float, Meta(ge=LEAST_CORES, le=MOST_CORES)]
    """Cores that pods may have of one of them (what it is said to have as allocatable)."""
    memory: Annotated[int, Meta(ge=LEAST_MEMORY, le=MOST_MEMORY)]
    """Bytes that pods may have of one of them."""

    @property
    def together(self) -> Resources:
        """What all nodes that there may be have."""
        return Resources(self.most * self.cores, self.most * self.memory)


class Kubernetes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a job's pods are made. Sizes are in bytes."""

    image: str = ""
    """Image that has dlrover-lite; empty: the one that the command was told, or an error."""
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    """When the image is pulled; empty: as the cluster does by itself."""
    image_pull_secrets: list[str] = []
    python_path: list[str] = []
    """Directories in the image, or on a volume, that Python looks for the model's modules in."""
    namespace: str = ""
    """Namespace of the job; empty: the context's."""
    context: str = ""
    """Context of the kubeconfig; empty: the current one."""
    service_account: str = "dlrover-lite-master"
    """Service account of the master's pod. Other pods have none."""
    storage_class: str = ""
    """Class of the job's volume; empty: the cluster's default."""
    storage_size: Annotated[int, Meta(ge=LEAST_MEMORY, le=MOST_MEMORY)] = 10 * GIB
    """Size of the job's volume."""
    scratch_size: Annotated[int, Meta(ge=0, le=MOST_MEMORY)] = 0
    """Size of the directory that each pod of a node writes to, where the exported model is put together; 0: as a model may need that fills
    what the job may use."""
    fs_group: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 65532
    """Group that the job's volume is given to; 0: none, where the namespace gives one of its own."""
    volume_claim: str = ""
    """Claim that is there already, to be used instead of one of the job's own."""
    env: dict[str, str] = {}
    volumes: list[dict[str, Any]] = []
    """Volumes of every pod, as in a pod's ``volumes``."""
    volume_mounts: list[dict[str, Any]] = []
    """Where they are, as in a container's ``volumeMounts``."""
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    node_pools: list[NodePool] = []
    """Nodes that the cluster would start for the job; empty: it has those that are there."""
    grow_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 300.0
    """Seconds within which another node of a pool is there; a pod without room for longer means that none comes."""
    priority_class: str = ""
    brain: Annotated[str, Meta(pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?\Z")] = ""
    """Name of the brain that jobs of the namespace share (``dlrover-lite-brain``); empty: each job has one of its own."""
    queue: str = ""
    """Kueue's local queue; empty: none."""
    spares: Annotated[int, Meta(ge=0, le=64)] = 0
    """Number of pods that wait, started, for a node to run."""
