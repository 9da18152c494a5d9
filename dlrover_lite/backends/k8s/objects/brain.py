"""The brain that the jobs of a namespace share: its claim, Service and Deployment. Pure: data in, data out."""

from __future__ import annotations

from typing import Any, TypeAlias

from dlrover_lite.backends.k8s.objects.names import APP, BRAIN, BRAIN_PORT, NODE_ACCOUNT
from dlrover_lite.backends.k8s.objects.node_pod import BRAIN_FILES
from dlrover_lite.backends.k8s.objects.pod_security import (
    CONTAINER_SECURITY,
    FS_GROUP,
    SCRATCH,
    pod_security,
    scratch_environment,
    scratch_volume,
)
from dlrover_lite.core.version import __version__
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE

__all__ = ["brain_objects", "how_to_make_its_key"]

KubeObject: TypeAlias = dict[str, Any]

_STORAGE = "/storage"
_STORAGE_SIZE = "2Gi"
_GRACE_SECONDS = 30
_SERVE = ["python", "-P", "-m", "dlrover_lite", "brain", "serve", "--port", str(BRAIN_PORT)]
_PROBE = ["python", "-P", "-m", "dlrover_lite.brain_server.probe"]
_RESOURCES = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
_SELECTOR = {"app.kubernetes.io/instance": BRAIN, "app.kubernetes.io/component": "brain"}


def brain_objects(namespace: str, image: str, *, storage_class: str = "", fs_group: int = FS_GROUP) -> list[KubeObject]:
    """Make the objects. ``fs_group``: group that the volume is given to; 0: none.

    The Secret with the key isn't among them: whoever applies them twice must not make another one."""
    return [_claim(namespace, storage_class), _service(namespace), _deployment(namespace, image, fs_group)]


def how_to_make_its_key(namespace: str) -> str:
    """Return the command that makes the Secret; the key stands on no command line."""
    return (
        "python3 -c 'import secrets; print(secrets.token_hex(32))' | "
        f"kubectl create secret generic {BRAIN} --namespace {namespace} --from-file=key=/dev/stdin"
    )


def _meta(namespace: str) -> KubeObject:
    labels = {
        "app.kubernetes.io/name": APP,
        **_SELECTOR,
        "app.kubernetes.io/managed-by": APP,
        "app.kubernetes.io/version": __version__.replace("+", "_"),
    }
    return {"name": BRAIN, "namespace": namespace, "labels": labels}


def _claim(namespace: str, storage_class: str) -> KubeObject:
    kind = {"storageClassName": storage_class} if storage_class else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _meta(namespace),
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": _STORAGE_SIZE}}, **kind},
    }


def _service(namespace: str) -> KubeObject:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(namespace),
        "spec": {
            "clusterIP": "None",
            "selector": _SELECTOR,
            "ports": [{"name": "brain", "port": BRAIN_PORT, "targetPort": BRAIN_PORT}],
        },
    }


def _deployment(namespace: str, image: str, fs_group: int) -> KubeObject:
    meta = _meta(namespace)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # no two brains may write to one database
            "selector": {"matchLabels": _SELECTOR},
            "template": {"metadata": {"labels": meta["labels"]}, "spec": _pod(image, fs_group)},
        },
    }


def _pod(image: str, fs_group: int) -> KubeObject:
    return {
        "serviceAccountName": NODE_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": pod_security(fs_group),
        "containers": [_container(image)],
        "volumes": [
            {"name": "key", "secret": {"secretName": BRAIN, "defaultMode": 0o444}},  # whichever user it runs as
            scratch_volume(),
            {"name": "storage", "persistentVolumeClaim": {"claimName": BRAIN}},
        ],
    }


def _container(image: str) -> KubeObject:
    values = {
        **scratch_environment(),
        KEY_FILE_VARIABLE: f"{BRAIN_FILES}/key",
        "DLROVER_LITE_HOME": f"{_STORAGE}/home",
        "DLROVER_LITE_LISTEN": "*",
    }
    port = {"tcpSocket": {"port": BRAIN_PORT}}
    return {
        "name": "brain",
        "image": image,
        "command": _SERVE,
        "env": [{"name": name, "value": value} for name, value in values.items()],
        "ports": [{"name": "brain", "containerPort": BRAIN_PORT}],
        "resources": _RESOURCES,
        "securityContext": CONTAINER_SECURITY,
        "startupProbe": {**port, "periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": {**port, "periodSeconds": 5},
        # A process whose socket is open may hang, so it is asked. It costs a Python's start, therefore seldom.
        "livenessProbe": {"exec": {"command": _PROBE}, "periodSeconds": 60, "timeoutSeconds": 20},
        "volumeMounts": [
            {"name": "key", "mountPath": BRAIN_FILES, "readOnly": True},
            {"name": "scratch", "mountPath": SCRATCH},
            {"name": "storage", "mountPath": _STORAGE},
        ],
    }
