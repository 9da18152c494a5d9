"""A pod like those of jobs, by which a cluster tells whether it would admit one. It is never started."""

from __future__ import annotations

from typing import Any

from dlrover_lite.backends.k8s.objects.names import APP
from dlrover_lite.backends.k8s.objects.pod_security import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    SCRATCH,
    scratch_environment,
    scratch_volume,
)

__all__ = ["probe_pod"]


def probe_pod(namespace: str, image: str, account: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "dlrover-lite-probe",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": APP, "app.kubernetes.io/component": "probe"},
        },
        "spec": {
            "serviceAccountName": account,
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "securityContext": POD_SECURITY,
            "containers": [
                {
                    "name": "node",
                    "image": image,
                    "securityContext": CONTAINER_SECURITY,
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "64Mi"},
                        "limits": {"cpu": "200m", "memory": "128Mi"},
                    },
                    "env": [{"name": name, "value": value} for name, value in scratch_environment().items()],
                    "volumeMounts": [{"name": "scratch", "mountPath": SCRATCH}],
                }
            ],
            "volumes": [scratch_volume()],
        },
    }
