"""WebSockets to the API server, by which pods are reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kubernetes.stream import ws_client

from dlrover_lite.backends.k8s.api.calls import KINDS
from dlrover_lite.backends.k8s.api.connection import Connection

__all__ = ["open_websocket"]


def open_websocket(
    connection: Connection, pod: str, subresource: str, query: Sequence[tuple[str, str]], *, protocol: str = ""
) -> Any:
    """Open the WebSocket of a pod's subresource, ``exec`` or ``portforward``. ``protocol``: empty for the client's choice. Raises what the
    client raises."""
    api = connection.client
    headers = {"sec-websocket-protocol": protocol} if protocol else {}
    asked = list(query)
    api.update_params_for_auth(headers, asked, ["BearerToken"])
    path = KINDS["Pod"].path(connection.namespace, pod, subresource)
    url = ws_client.get_websocket_url(f"{connection.server}{path}", asked)
    return ws_client.create_websocket(api.configuration, url, headers)
