"""Where a cluster's API server is, who asks it, and in which namespace: from a kubeconfig, or from within a pod."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kubernetes import client, config
from kubernetes.config import incluster_config, kube_config

from dlrover_lite.core.errors import BackendError

__all__ = ["Connection", "connect", "contexts"]

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Connection(NamedTuple):
    client: client.ApiClient
    server: str
    """URL of the API server."""
    namespace: str
    context: str
    """Context of the kubeconfig; empty: this process runs in a pod of the cluster."""


def connect(context: str = "", namespace: str = "", *, environment: Mapping[str, str] = os.environ) -> Connection:
    """Find the API server; it isn't asked for anything yet. ``context`` and ``namespace``: empty for the present ones. In a pod, without a
    kubeconfig, that is the pod's own cluster.

    Raises BackendError where no kubeconfig can be read, or it has no such context.
    """
    file = _kubeconfig(environment)
    if not context and not _exists(file) and "KUBERNETES_SERVICE_HOST" in environment:
        return _connect_from_pod(namespace)
    if not _exists(file):
        raise BackendError(
            f"No cluster is known here: there is no kubeconfig at {file}",
            hint="Name one with KUBECONFIG=FILE, or write one with your provider's command; `kubectl get pods` uses the same.",
        )
    known, present = _read_contexts(file)
    chosen = context or present
    if not chosen:
        raise BackendError(
            f"The kubeconfig {file} has no present context",
            hint=f"Choose one of {', '.join(known) or 'none'}: `kubectl config use-context NAME`, or `context:` in the recipe.",
        )
    if chosen not in known:
        raise BackendError(
            f"The kubeconfig {file} has no context {chosen}", hint=f"It has {', '.join(sorted(known)) or 'none'}."
        )
    configuration = client.Configuration()
    try:
        config.load_kube_config(file, context=chosen, client_configuration=configuration, persist_config=False)
    except (config.ConfigException, OSError, ValueError, KeyError) as error:
        raise BackendError(
            f"The context {chosen} of the kubeconfig {file} can't be used: {error}",
            hint=f"`kubectl --context {chosen} get pods` tells more.",
        ) from error
    return _connection(configuration, namespace or known[chosen] or "default", chosen)


def contexts(*, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """List the contexts of the kubeconfig, each with its namespace; nothing where there is none. Raises BackendError where it can't be
    read."""
    file = _kubeconfig(environment)
    return _read_contexts(file)[0] if _exists(file) else {}


def _connect_from_pod(namespace: str) -> Connection:
    configuration = client.Configuration()
    try:
        incluster_config.load_incluster_config(client_configuration=configuration)
        own = namespace or _POD_NAMESPACE.read_text("utf-8").strip()
    except (config.ConfigException, OSError) as error:
        raise BackendError(
            f"The cluster that this pod runs in can't be asked: {error}",
            hint="Give the pod a service account: `serviceAccountName`, and `automountServiceAccountToken: true`.",
        ) from error
    return _connection(configuration, own, "")


def _connection(configuration: client.Configuration, namespace: str, context: str) -> Connection:
    configuration.retries = False  # whoever calls knows what may be done twice
    return Connection(client.ApiClient(configuration), configuration.host, namespace, context)


def _kubeconfig(environment: Mapping[str, str]) -> str:
    """Return the kubeconfig's path, or several of them, as kubectl takes them."""
    return environment.get("KUBECONFIG") or str(Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config")


def _exists(files: str) -> bool:
    return any(Path(file).is_file() for file in files.split(os.pathsep) if file)


def _read_contexts(files: str) -> tuple[dict[str, str], str]:
    """Read the contexts, each with its namespace, and the present one."""
    try:
        merged = kube_config.KubeConfigMerger(files).config
        listed = merged.safe_get("contexts") if merged is not None else None
        found = {one["name"]: one["context"].safe_get("namespace") or "" for one in listed or []}
        return found, (merged.safe_get("current-context") if merged is not None else None) or ""
    except Exception as error:
        raise BackendError(
            f"The kubeconfig {files} can't be read: {error}", hint="`kubectl config view` shows what is wrong with it."
        ) from error
