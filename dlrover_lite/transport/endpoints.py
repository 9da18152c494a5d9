"""Addresses at which the processes of a job listen."""

from __future__ import annotations

import os
import re
from typing import Literal

__all__ = [
    "ANY_PORT",
    "KEEPER_SOCKET",
    "MASTER_ENDPOINT_FILE",
    "MASTER_SOCKET",
    "TransportKind",
    "listen_endpoint",
    "may_be_ipv6",
    "tcp_address",
]

KEEPER_SOCKET = "keeper.sock"
MASTER_SOCKET = "master.sock"
MASTER_ENDPOINT_FILE = "master.endpoint"
"""In a job's runtime directory: where its master listens, if that is over TCP."""
ANY_PORT = "tcp://127.0.0.1:*"

TransportKind = Literal["unix", "tcp"]
"""Unix sockets in a directory of the user's own; TCP on this machine, with the job's key."""


def listen_endpoint(master_endpoint: str, node: str) -> str:
    """Say where ``node`` should listen so that the other nodes of its job reach it: beside the master's socket, or on any TCP port."""
    if master_endpoint.startswith("ipc://"):
        return f"ipc://{os.path.dirname(master_endpoint.removeprefix('ipc://'))}/{node}.sock"  # noqa: PTH120
    host = master_endpoint.removeprefix("tcp://").rpartition(":")[0]
    return f"tcp://{host}:*"


def tcp_address(host: str) -> str:
    """Return the endpoint of a host, given by name or IP of either kind, up to its port; ``*``: all addresses."""
    return f"tcp://[{host}]" if ":" in host else f"tcp://{host}"


def may_be_ipv6(endpoint: str) -> bool:
    """Say whether IPv6 has to be on for ``endpoint``: for an address of it, for a name, which may stand for one, and for all addresses."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    return endpoint.startswith("tcp://") and not re.fullmatch(r"[\d.]+", host)
