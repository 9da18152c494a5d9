"""All that a job has in its namespace before its nodes: the StatefulSet of its master, and what that owns. Pure: data in, data out."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from dlrover_lite.backends.k8s.objects.config_map_keys import config_volume, key_of
from dlrover_lite.backends.k8s.objects.names import (
    BRAIN_PORT,
    FILES_PORT,
    MASTER_PORT,
    NODE_ACCOUNT,
    component_labels,
)
from dlrover_lite.backends.k8s.objects.node_pod import BRAIN_FILES, JOB_FILES, KEY_FILES, QUEUE_LABEL
from dlrover_lite.backends.k8s.objects.pod_security import (
    CONTAINER_SECURITY,
    SCRATCH,
    pod_security,
    scratch_environment,
    scratch_volume,
)
from dlrover_lite.protocol.brain_mode import BRAIN_ADDRESS_VARIABLE, BRAIN_KEY_VARIABLE
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE

__all__ = [
    "RUNTIME",
    "STORAGE",
    "JobObjects",
    "access_mode",
    "claim_of",
    "master_pod",
    "owned_objects",
    "reader_pod",
    "stateful_set",
    "volume_claim",
]

KubeObject: TypeAlias = dict[str, Any]

STORAGE = "/storage"
"""Where the master's pod and readers find the job's volume."""
RUNTIME = "run"
"""Directory, in the job's own, of what only tells where its processes are now."""
MASTER_GRACE_SECONDS = 150
"""Grace period of the master's pod in seconds: the master takes a last checkpoint, and ends its nodes."""
READER_SECONDS = 3600
"""Longest life of a reader pod in seconds."""
READER_IDLE_SECONDS = 300
"""Seconds for which nobody has asked a reader pod for anything, after which it ends."""
_PORTS = {"master": MASTER_PORT, "files": FILES_PORT}
_MASTER = ["python", "-P", "-m", "dlrover_lite.backends.k8s.jobs.master_pod"]
_READER = ["python", "-P", "-m", "dlrover_lite.backends.k8s.jobs.files.server"]
_MASTER_RESOURCES = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
_READER_RESOURCES = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}


class JobObjects(msgspec.Struct, frozen=True, kw_only=True):
    """What the objects of a job are made from."""

    job: str
    """Id of the job: the name of all its objects."""
    namespace: str
    kubernetes: Kubernetes
    """Settings of the recipe, with an image."""
    name: str = ""
    """Name of the recipe."""
    access: str = "ReadWriteOnce"
    """Access mode of the job's volume."""
    annotations: dict[str, str] = {}
    """Annotations of the StatefulSet."""
    files: tuple[str, ...] = ()
    """Paths of the files that its pods find in ``JOB_FILES``; those of a reader don't matter."""


def access_mode(provisioner: str) -> str:
    """Return how a volume of this provisioner is to be mounted: by a single pod, where it can see to that."""
    return "ReadWriteOncePod" if re.search(r"(^|\.)csi(\.|$)", provisioner) else "ReadWriteOnce"


def claim_of(settings: Kubernetes, job: str) -> str:
    """Return the name of the claim that the job's directory is on."""
    return settings.volume_claim or job


def stateful_set(made: JobObjects) -> KubeObject:
    """Make the StatefulSet of the master, with no pod so far."""
    pod = master_pod(made)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _meta(made, "master") | {"annotations": made.annotations},
        "spec": {
            "replicas": 0,
            "serviceName": made.job,
            "selector": {"matchLabels": _selector(made.job)},
            "template": {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]},
        },
    }


def owned_objects(made: JobObjects, uid: str, key: str, files: Mapping[str, bytes]) -> list[KubeObject]:
    """Make what the StatefulSet with this uid owns: Secret, ConfigMap and Service. ``key``: the job's key as text; ``files``: paths and
    contents of what pods find in ``JOB_FILES``."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": made.job, "uid": uid}

    def meta(component: str) -> KubeObject:
        return _meta(made, component) | {"ownerReferences": [owner]}

    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": meta("key"),
            "immutable": True,
            "type": "Opaque",
            "data": {"key": b64encode(key.encode()).decode()},
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("files"), **_contents(files)},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta("master"),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,  # nodes look for a master that has just come back
                "selector": _selector(made.job),
                "ports": [{"name": name, "port": port, "targetPort": port} for name, port in _PORTS.items()],
            },
        },
    ]


def volume_claim(made: JobObjects) -> KubeObject:
    """Make the claim of the job's volume. Nothing owns it: it outlives the job."""
    settings = made.kubernetes
    kind = {"storageClassName": settings.storage_class} if settings.storage_class else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _meta(made, "storage"),
        "spec": {
            "accessModes": [made.access],
            "resources": {"requests": {"storage": str(settings.storage_size)}},
            **kind,
        },
    }


def master_pod(made: JobObjects) -> KubeObject:
    """Make the pod that the StatefulSet has: its template, and what a cluster is asked beforehand whether it would admit."""
    settings = made.kubernetes
    spec = _spec(made, "master", settings.service_account, _MASTER, _MASTER_RESOURCES)
    spec |= {"automountServiceAccountToken": True, "terminationGracePeriodSeconds": MASTER_GRACE_SECONDS}
    if settings.brain:
        _share_brain(spec, settings.brain, made.namespace)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _pod_meta(made, f"{made.job}-0", "master"), "spec": spec}


def reader_pod(made: JobObjects) -> KubeObject:
    """Make a pod that serves the files of a job that is over. It has no rights, and is gone after a while."""
    served = [
        f"{STORAGE}/jobs/{made.job}",
        f"tcp://*:{FILES_PORT}",
        "--idle-seconds",
        str(READER_IDLE_SECONDS),
    ]
    spec = _spec(made, "reader", NODE_ACCOUNT, [*_READER, *served], _READER_RESOURCES)
    spec |= {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": READER_SECONDS,
        "terminationGracePeriodSeconds": 1,
    }
    if made.kubernetes.brain:
        _share_brain(spec, made.kubernetes.brain, made.namespace)
    name = f"{made.job}-reader"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _pod_meta(made, name, "reader"), "spec": spec}


def _share_brain(spec: KubeObject, brain: str, namespace: str) -> None:
    """Let this pod reach the brain that jobs share: its master, and who serves the job's files, for the history. Its key may be missing, as
    the brain may: a job runs without either."""
    container = spec["containers"][0]
    values = {
        BRAIN_ADDRESS_VARIABLE: f"tcp://{brain}.{namespace}.svc:{BRAIN_PORT}",
        BRAIN_KEY_VARIABLE: f"{BRAIN_FILES}/key",
    }
    container["env"] += [{"name": name, "value": value} for name, value in values.items()]
    container["volumeMounts"].append({"name": "brain", "mountPath": BRAIN_FILES, "readOnly": True})
    secret = {"secretName": brain, "defaultMode": 0o444, "optional": True}
    spec["volumes"].append({"name": "brain", "secret": secret})


def _meta(made: JobObjects, component: str) -> KubeObject:
    labels = component_labels(made.job, component)
    if made.name:
        labels["dlrover-lite.io/name"] = made.name
    return {"name": made.job, "namespace": made.namespace, "labels": labels}


def _pod_meta(made: JobObjects, name: str, component: str) -> KubeObject:
    """Return the metadata of a pod. Kueue is told its queue there, and not at the StatefulSet, which it would forbid to scale."""
    found = _meta(made, component) | {"name": name}
    if made.kubernetes.queue:
        found["labels"][QUEUE_LABEL] = made.kubernetes.queue
    return found


def _selector(job: str) -> dict[str, str]:
    """Return the labels by which the master's pod is found: no label may be among them that another release writes otherwise."""
    labels = component_labels(job, "master")
    return {name: labels[name] for name in ("app.kubernetes.io/instance", "app.kubernetes.io/component")}


def _contents(files: Mapping[str, bytes]) -> KubeObject:
    """Return the contents of a ConfigMap: as text what is text, so that people can read it."""
    text, binary = {}, {}
    for path, data in files.items():
        name = key_of(path)
        try:
            text[name] = data.decode("utf-8")
        except UnicodeDecodeError:
            binary[name] = b64encode(data).decode()
    return {"data": text, **({"binaryData": binary} if binary else {})}


def _spec(made: JobObjects, name: str, account: str, command: list[str], resources: KubeObject) -> KubeObject:
    settings = made.kubernetes
    placement: KubeObject = {
        "nodeSelector": settings.node_selector,
        "tolerations": settings.tolerations,
        "priorityClassName": settings.priority_class,
        "imagePullSecrets": [{"name": secret} for secret in settings.image_pull_secrets],
    }
    policy = {"imagePullPolicy": settings.image_pull_policy} if settings.image_pull_policy else {}
    return {
        "serviceAccountName": account,
        "enableServiceLinks": False,
        "securityContext": pod_security(settings.fs_group),
        "containers": [
            {
                "name": name,
                "image": settings.image,
                **policy,
                "command": command,
                "env": _environment(made),
                "ports": [{"name": port, "containerPort": number} for port, number in _PORTS.items()],
                "resources": resources,
                "securityContext": CONTAINER_SECURITY,
                "volumeMounts": [
                    {"name": "job", "mountPath": JOB_FILES, "readOnly": True},
                    {"name": "key", "mountPath": KEY_FILES, "readOnly": True},
                    {"name": "scratch", "mountPath": SCRATCH},
                    {"name": "storage", "mountPath": STORAGE},
                    *settings.volume_mounts,
                ],
            }
        ],
        "volumes": [
            {"name": "job", **config_volume(made.job, made.files)},
            {"name": "key", "secret": {"secretName": made.job, "defaultMode": 0o444}},  # whichever user it runs as
            scratch_volume(),
            {"name": "storage", "persistentVolumeClaim": {"claimName": claim_of(settings, made.job)}},
            *settings.volumes,
        ],
        **{key: value for key, value in placement.items() if value},
    }


def _environment(made: JobObjects) -> list[KubeObject]:
    settings = made.kubernetes
    values = {
        **scratch_environment(),
        KEY_FILE_VARIABLE: f"{KEY_FILES}/key",
        # The brain's history, and indexes of data: no two masters may write to one database.
        "DLROVER_LITE_HOME": f"{STORAGE}/home/{made.job}" if settings.volume_claim else f"{STORAGE}/home",
        "DLROVER_LITE_JOB": made.job,
        "DLROVER_LITE_LISTEN": "*",
    }
    if settings.python_path:
        values["PYTHONPATH"] = ":".join(settings.python_path)
    fields = {
        "DLROVER_LITE_POD": "metadata.name",
        "DLROVER_LITE_NAMESPACE": "metadata.namespace",
        "DLROVER_LITE_POD_IP": "status.podIP",
        "DLROVER_LITE_HOST": "spec.nodeName",
    }
    return [
        *({"name": name, "value": value} for name, value in {**values, **settings.env}.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]
