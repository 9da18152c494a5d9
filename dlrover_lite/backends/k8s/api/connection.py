"""Where a cluster's API server is, who asks it, and in which namespace: from a kubeconfig, or from within a pod.

The official client knows kubeconfigs, and WebSockets. It takes a second of CPU to import, and 60 MiB: it is when it is needed, which it
isn't in pods.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

from dlrover_lite.core.errors import BackendError

__all__ = ["Connection", "PodToken", "connect", "connection_of", "contexts"]

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account's token, its namespace, and the authority of the API server's certificate."""
_NO_ACCOUNT = "Give the pod a service account: `serviceAccountName`, and `automountServiceAccountToken: true`."
_TOKEN_SECONDS = 60.0
"""How long a token is used until its file is read again: the kubelet replaces it well before it is over."""
_CONNECTIONS = 8


@dataclass(frozen=True)
class Connection:
    server: str
    """URL of the API server."""
    namespace: str
    context: str
    """Context of the kubeconfig; empty: this process runs in a pod of the cluster."""
    pool: urllib3.PoolManager
    authorize: Callable[[MutableMapping[str, str]], None]
    """Function that adds to a request's headers who asks. Raises OSError."""
    make_client: Callable[[], Any]

    @cached_property
    def client(self) -> Any:
        """The official client, asking as this connection does."""
        return self.make_client()


class PodToken:
    """The token of a service account, in a file that is replaced now and then. ``clock``: seconds that only rise."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises OSError."""
        self._file, self._clock = file, clock
        self._read()

    def _read(self) -> None:
        self._text, self._read_at = self._file.read_text("utf-8").strip(), self._clock()
        if not self._text:
            raise OSError(f"{self._file} is empty")

    def authorize(self, headers: MutableMapping[str, str]) -> None:
        """Add the token to a request's headers. Raises OSError."""
        if self._clock() >= self._read_at + _TOKEN_SECONDS:
            self._read()
        headers["Authorization"] = f"Bearer {self._text}"


def connect(context: str = "", namespace: str = "", *, environment: Mapping[str, str] = os.environ) -> Connection:
    """Find the API server; it isn't asked for anything yet. ``context`` and ``namespace``: empty for the present ones. In a pod, without a
    kubeconfig, that is the pod's own cluster.

    Raises BackendError where no kubeconfig can be read, or it has no such context.
    """
    file = _kubeconfig(environment)
    if not context and not _exists(file) and "KUBERNETES_SERVICE_HOST" in environment:
        return _connect_from_pod(namespace, environment)
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
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        config.load_kube_config(file, context=chosen, client_configuration=configuration, persist_config=False)
    except (config.ConfigException, OSError, ValueError, KeyError) as error:
        raise BackendError(
            f"The context {chosen} of the kubeconfig {file} can't be used: {error}",
            hint=f"`kubectl --context {chosen} get pods` tells more.",
        ) from error
    return connection_of(configuration, namespace or known[chosen] or "default", chosen)


def contexts(*, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """List the contexts of the kubeconfig, each with its namespace; nothing where there is none. Raises BackendError where it can't be
    read."""
    file = _kubeconfig(environment)
    return _read_contexts(file)[0] if _exists(file) else {}


def connection_of(configuration: Any, namespace: str, context: str) -> Connection:
    """Return the connection that a configuration of the official client describes."""
    from kubernetes import client

    configuration.retries = False  # whoever calls knows what may be done twice
    api = client.ApiClient(configuration)

    def authorize(headers: MutableMapping[str, str]) -> None:
        api.update_params_for_auth(headers, [], ["BearerToken"])

    return Connection(configuration.host, namespace, context, api.rest_client.pool_manager, authorize, lambda: api)


def _connect_from_pod(namespace: str, environment: Mapping[str, str]) -> Connection:
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT") or "443"
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        token = PodToken(_ACCOUNT / "token")
        own = namespace or (_ACCOUNT / "namespace").read_text("utf-8").strip()
        (_ACCOUNT / "ca.crt").read_bytes()
    except OSError as error:
        raise BackendError(f"The cluster that this pod runs in can't be asked: {error}", hint=_NO_ACCOUNT) from error
    return Connection(server, own, "", _pool(server, str(_ACCOUNT / "ca.crt")), token.authorize, _make_pods_client)


def _pool(server: str, authority: str) -> urllib3.PoolManager:
    """Make the pool of connections to a server, by way of a proxy where the environment says so."""
    settings: dict[str, Any] = {"ca_certs": authority, "maxsize": _CONNECTIONS}
    proxy = getproxies().get("https")
    if proxy and not proxy_bypass(urlsplit(server).netloc):
        return urllib3.ProxyManager(proxy, **settings)
    return urllib3.PoolManager(**settings)


def _make_pods_client() -> Any:
    from kubernetes import client
    from kubernetes.config import incluster_config

    configuration = client.Configuration()
    incluster_config.load_incluster_config(client_configuration=configuration)
    configuration.retries = False
    return client.ApiClient(configuration)


def _kubeconfig(environment: Mapping[str, str]) -> str:
    """Return the kubeconfig's path, or several of them, as kubectl takes them."""
    return environment.get("KUBECONFIG") or str(Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config")


def _exists(files: str) -> bool:
    return any(Path(file).is_file() for file in files.split(os.pathsep) if file)


def _read_contexts(files: str) -> tuple[dict[str, str], str]:
    """Read the contexts, each with its namespace, and the present one."""
    from kubernetes.config import kube_config

    try:
        merged = kube_config.KubeConfigMerger(files).config
        listed = merged.safe_get("contexts") if merged is not None else None
        found = {one["name"]: one["context"].safe_get("namespace") or "" for one in listed or []}
        return found, (merged.safe_get("current-context") if merged is not None else None) or ""
    except Exception as error:
        raise BackendError(
            f"The kubeconfig {files} can't be read: {error}", hint="`kubectl config view` shows what is wrong with it."
        ) from error
