"""What a namespace needs before it can have jobs: service accounts, roles and a network policy, as `kubectl apply` takes them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from ruamel.yaml import YAML

from dlrover_lite.backends.k8s.objects.names import APP, MASTER_ACCOUNT, NODE_ACCOUNT, USER_ROLE
from dlrover_lite.backends.k8s.objects.rights import MASTER_RIGHTS, USER_RIGHTS, Right, rules_of
from dlrover_lite.core.version import __version__

__all__ = ["as_yaml", "manifests"]

KubeObject: TypeAlias = dict[str, Any]
_LABELS = {
    "app.kubernetes.io/name": APP,
    "app.kubernetes.io/managed-by": APP,
    "app.kubernetes.io/version": __version__.replace("+", "_"),
}
_RBAC = "rbac.authorization.k8s.io"


def manifests(
    namespace: str, *, users: Sequence[str] = (), groups: Sequence[str] = (), create_namespace: bool = False
) -> list[KubeObject]:
    """Make the objects, in the order in which they are to be applied. ``users``, ``groups``: who may run jobs, by the names that the
    cluster knows them by; nobody is bound to that role without. ``create_namespace``: begin with the namespace, with restricted pods."""
    subjects = [
        {"kind": kind, "name": name, "apiGroup": _RBAC}
        for kind, names in (("User", users), ("Group", groups))
        for name in names
    ]
    return [
        *([_namespace(namespace)] if create_namespace else []),
        _account(namespace, MASTER_ACCOUNT, token=True),
        _account(namespace, NODE_ACCOUNT, token=False),
        _role(namespace, MASTER_ACCOUNT, MASTER_RIGHTS),
        _binding(
            namespace, MASTER_ACCOUNT, [{"kind": "ServiceAccount", "name": MASTER_ACCOUNT, "namespace": namespace}]
        ),
        _role(namespace, USER_ROLE, USER_RIGHTS),
        *([_binding(namespace, USER_ROLE, subjects)] if subjects else []),
        _network_policy(namespace),
    ]


def as_yaml(objects: Iterable[KubeObject]) -> str:
    """Write objects as YAML documents."""
    yaml = YAML(typ="safe")
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    out = io.StringIO()
    for one in objects:
        out.write("---\n")
        yaml.dump(one, out)
    return out.getvalue()


def _meta(namespace: str, name: str) -> KubeObject:
    return {"name": name, "namespace": namespace, "labels": dict(_LABELS)}


def _namespace(name: str) -> KubeObject:
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**_LABELS, **restricted}}}


def _account(namespace: str, name: str, *, token: bool) -> KubeObject:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _meta(namespace, name),
        "automountServiceAccountToken": token,
    }


def _role(namespace: str, name: str, rights: Sequence[Right]) -> KubeObject:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": _meta(namespace, name),
        "rules": rules_of(rights),
    }


def _binding(namespace: str, role: str, subjects: Sequence[KubeObject]) -> KubeObject:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": _meta(namespace, role),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": role},
        "subjects": list(subjects),
    }


def _network_policy(namespace: str) -> KubeObject:
    """Let a job's pods be reached by pods of jobs alone. (A port-forward comes from the node that a pod is on, which no policy forbids.)"""
    jobs = {"matchLabels": {"app.kubernetes.io/name": APP}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(namespace, APP),
        "spec": {"podSelector": jobs, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": jobs}]}]},
    }
