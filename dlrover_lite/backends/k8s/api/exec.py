"""What a command prints that is run in a container, by the API server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec
from kubernetes.client.exceptions import ApiException
from websocket import ABNF, WebSocketBadStatusException, WebSocketConnectionClosedException, WebSocketException

from dlrover_lite.backends.k8s.api.connection import Connection
from dlrover_lite.backends.k8s.api.problems import Unreachable, explained
from dlrover_lite.backends.k8s.api.websocket import open_websocket
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import BackendError

__all__ = ["read_by_exec"]

_PROTOCOL = "v4.channel.k8s.io"
"""The later one only adds an end of what is written to a command, and nothing is."""
_STDOUT, _STDERR, _STATUS = 1, 2, 3
"""Channels: the first byte of each message."""


class _Status(msgspec.Struct):
    """How a command has ended."""

    status: str = ""
    message: str = ""


def read_by_exec(
    connection: Connection, pod: str, container: str, command: Sequence[str], *, timeout_seconds: float
) -> bytes:
    """Run a command in a pod's container; return what it has written to stdout.

    Raises ApiProblem for what the cluster refuses, Unreachable where no answer comes, BackendError for a command that fails.
    """
    doing = f"run {command[0]} in the pod {pod}"
    query = [("container", container), *(("command", word) for word in command), ("stdout", "true"), ("stderr", "true")]
    try:
        socket = open_websocket(connection, pod, "exec", query, protocol=_PROTOCOL)
        try:
            socket.settimeout(timeout_seconds)
            channels = {_STDOUT: b"", _STDERR: b"", _STATUS: b""}
            with suppress(WebSocketConnectionClosedException):  # some proxies don't say that it is over
                while (message := socket.recv_data())[0] != ABNF.OPCODE_CLOSE:
                    if (data := message[1]) and data[0] in channels:
                        channels[data[0]] += data[1:]
        finally:
            socket.close()
    except WebSocketBadStatusException as error:
        refusal = ApiException(status=error.status_code, reason=str(error))
        refusal.body = error.resp_body or None
        raise explained(refusal, doing, connection.server) from error
    except (WebSocketException, ApiException, OSError) as error:
        raise explained(error, doing, connection.server) from error
    _check(channels[_STATUS], channels[_STDERR], doing, connection.server)
    return channels[_STDOUT]


def _check(told: bytes, said: bytes, doing: str, server: str) -> None:
    """Check how the command has ended. Raises Unreachable where nobody says."""
    if not told:
        raise Unreachable(
            f"The API server {server} has hung up: couldn't {doing}",
            hint="The pod may have ended meanwhile: try again.",
        )
    try:
        status = from_json(told, _Status)
    except msgspec.DecodeError:
        status = _Status(message=told.decode("utf-8", "replace"))
    if status.status != "Success":
        why = said.decode("utf-8", "replace").strip() or status.message
        raise BackendError(f"Couldn't {doing}: {why}", hint="Was the image made by `dlrover-lite k8s image build`?")
