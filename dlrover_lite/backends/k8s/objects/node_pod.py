"""The pod in which nodes of a job run, one after the other, as the API takes it. Pure: data in, data out."""

from __future__ import annotations

import hashlib
import re
from typing import Any, TypeAlias

import msgspec

from dlrover_lite.backends.k8s.objects.config_map_keys import config_volume
from dlrover_lite.backends.k8s.objects.names import JOB_LABEL, NODE_ACCOUNT, NODE_PORT, component_labels
from dlrover_lite.backends.k8s.objects.pod_security import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    SCRATCH,
    scratch_environment,
    scratch_volume,
)
from dlrover_lite.backends.k8s.objects.quantities import write_cores
from dlrover_lite.backends.keeper.options import MEMORY_VARIABLE, ROLE_VARIABLE
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE

__all__ = [
    "AGENT_MEMORY",
    "CONTAINER",
    "NODE_ANNOTATION",
    "SPEC_ANNOTATION",
    "PodSettings",
    "node_pod",
    "pod_name",
    "resize_patch",
]

KubeObject: TypeAlias = dict[str, Any]

CONTAINER = "node"
"""Name of the only container of a node's pod."""
NODE_ANNOTATION = "dlrover-lite.io/node"
"""Annotation with the id of the node that a pod was made for."""
SPEC_ANNOTATION = "dlrover-lite.io/spec"
"""Annotation with that node as the master wanted it, in JSON: a master that comes later knows by it what to run there."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
JOB_FILES, KEY_FILES, BRAIN_FILES = "/dlrover-lite/job", "/dlrover-lite/key", "/dlrover-lite/brain"
"""Where the job's ConfigMap and its Secret are mounted, and the Secret of a brain that jobs share."""
AGENT = ["python", "-P", "-m", "dlrover_lite.backends.keeper.agent"]
AGENT_MEMORY = 512 * MIB
"""Bytes that each pod has beside what its node is given: for the agent, and the process that nodes are forked from, which
has torch where they are workers."""
GRACE_SECONDS = 30
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z")
_LONGEST_NAME = 63
"""The most characters of a pod's name that can be its host name, too."""


class PodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all pods of a job have in common."""

    job: str
    """Name of the job's objects, which is its id."""
    namespace: str
    owner_uid: str
    """Uid of the job's StatefulSet: what it owns is deleted with it."""
    kubernetes: Kubernetes
    """Settings of the recipe, with an image."""
    name: str = ""
    """Name of the recipe."""
    command: list[str] = msgspec.field(default_factory=lambda: list(AGENT))
    agent_memory: int = 0
    """Bytes of memory that each pod has beside what its node is given: for the agent, and the process that nodes are forked from."""
    files: tuple[str, ...] = ()
    """Paths of the files that each pod finds in ``JOB_FILES``."""
    scratch_size: int = 0
    """Bytes that each pod may write to ``SCRATCH``; 0: as much as there is."""


def pod_name(job: str, node: str) -> str:
    """Return the name of the pod that is made for a node. One that can't be in a name of Kubernetes is told from others by a digest."""
    name = f"{job}-{node}"
    if _DNS_LABEL.match(name) and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.blake2b(node.encode(), digest_size=5).hexdigest()
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower())[: _LONGEST_NAME - len(digest) - 1].rstrip("-")
    return f"{plain}-{digest}"


def node_pod(
    settings: PodSettings, spec: NodeSpec, name: str, resources: Resources, *, spare: bool = False
) -> KubeObject:
    """Make a pod for a node. ``resources``: what the node may use there. ``spare``: it waits for a node of the role, and has none yet."""
    kubernetes, component = settings.kubernetes, "spare" if spare else spec.role
    labels = component_labels(settings.job, component)
    if settings.name:
        labels["dlrover-lite.io/name"] = _label_value(settings.name)
    if kubernetes.queue:
        labels[QUEUE_LABEL] = kubernetes.queue
    annotations = {} if spare else {NODE_ANNOTATION: spec.id, SPEC_ANNOTATION: msgspec.json.encode(spec).decode()}
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": settings.job, "uid": settings.owner_uid}
    metadata = {
        "name": name,
        "namespace": settings.namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [owner],  # without `controller`, or the StatefulSet would take it for one of its own
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": "Never",  # an agent that has ended has lost its nodes' memory: they begin anew in another pod
            "serviceAccountName": NODE_ACCOUNT,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": POD_SECURITY,
            "containers": [_container(settings, resources, "" if spare else spec.role)],
            "volumes": _volumes(settings),
            **_placement(settings, spec, component),
        },
    }


def resize_patch(settings: PodSettings, resources: Resources) -> KubeObject:
    """Make the patch of ``pods/resize`` by which a pod's node may use ``resources``."""
    return {"spec": {"containers": [{"name": CONTAINER, "resources": _resources(settings, resources)}]}}


def _container(settings: PodSettings, resources: Resources, role: str) -> KubeObject:
    kubernetes = settings.kubernetes
    policy = {"imagePullPolicy": kubernetes.image_pull_policy} if kubernetes.image_pull_policy else {}
    return {
        "name": CONTAINER,
        "image": kubernetes.image,
        **policy,
        "command": settings.command,
        "env": _environment(settings, role),
        "ports": [{"name": "agent", "containerPort": NODE_PORT}],
        "resources": _resources(settings, resources),
        "resizePolicy": [{"resourceName": one, "restartPolicy": "NotRequired"} for one in ("cpu", "memory")],
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "job", "mountPath": JOB_FILES, "readOnly": True},
            {"name": "key", "mountPath": KEY_FILES, "readOnly": True},
            {"name": "scratch", "mountPath": SCRATCH},
            *kubernetes.volume_mounts,
        ],
    }


def _resources(settings: PodSettings, each: Resources) -> KubeObject:
    """Return requests and limits of the container. The request of CPU is a thousandth of a core below the limit, so that the pod's quality
    of service is Burstable, and stays so: a resize mustn't change it, and Guaranteed pods get whole cores on some nodes."""
    cores, memory = write_cores(each.cores), str(each.memory + settings.agent_memory)
    less = f"{int(cores.removesuffix('m')) - 1}m"
    return {"requests": {"cpu": less, "memory": memory}, "limits": {"cpu": cores, "memory": memory}}


def _environment(settings: PodSettings, role: str) -> list[KubeObject]:
    """``role``: that of all nodes that the pod will ever run; empty: it isn't known yet."""
    values = {
        **scratch_environment(),
        KEY_FILE_VARIABLE: f"{KEY_FILES}/key",
        "DLROVER_LITE_JOB": settings.job,
        MEMORY_VARIABLE: str(settings.agent_memory),
    }
    if role:
        values[ROLE_VARIABLE] = role
    if settings.kubernetes.python_path:
        values["PYTHONPATH"] = ":".join(settings.kubernetes.python_path)
    fields = {
        "DLROVER_LITE_POD": "metadata.name",
        "DLROVER_LITE_NAMESPACE": "metadata.namespace",
        "DLROVER_LITE_POD_IP": "status.podIP",
        "DLROVER_LITE_HOST": "spec.nodeName",
    }
    return [
        *({"name": name, "value": value} for name, value in {**values, **settings.kubernetes.env}.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]


def _volumes(settings: PodSettings) -> list[KubeObject]:
    return [
        {"name": "job", **config_volume(settings.job, settings.files)},
        {"name": "key", "secret": {"secretName": settings.job, "defaultMode": 0o444}},  # whichever user it runs as
        scratch_volume(settings.scratch_size),
        *settings.kubernetes.volumes,
    ]


def _placement(settings: PodSettings, spec: NodeSpec, component: str) -> KubeObject:
    """Return where the pod may be, and where it is wanted: on the node's host, not on hosts where others were slow, and parameter servers
    apart from each other. These are wishes: rather elsewhere than nowhere."""
    kubernetes = settings.kubernetes
    found: KubeObject = {}
    wishes = [*([("In", spec.host)] if spec.host else []), *(("NotIn", host) for host in spec.avoids)]
    if wishes:
        found["affinity"] = {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "preference": {"matchFields": [{"key": "metadata.name", "operator": how, "values": [host]}]},
                    }
                    for how, host in wishes
                ]
            }
        }
    if component == "ps":
        found["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {JOB_LABEL: settings.job, "app.kubernetes.io/component": "ps"}},
            }
        ]
    if kubernetes.node_selector:
        found["nodeSelector"] = kubernetes.node_selector
    if kubernetes.tolerations:
        found["tolerations"] = kubernetes.tolerations
    if kubernetes.priority_class:
        found["priorityClassName"] = kubernetes.priority_class
    if kubernetes.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in kubernetes.image_pull_secrets]
    return found


def _label_value(text: str) -> str:
    """Return ``text`` as a label may have it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")
