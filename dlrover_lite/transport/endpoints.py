"""Addresses at which the processes of a job listen."""

from __future__ import annotations

import os

MAX_SOCKET_PATH_BYTES = 107
KEEPER_SOCKET = "keeper.sock"
MASTER_SOCKET = "master.sock"


def listen_endpoint(master_endpoint: str, node: str) -> str:
    """Where ``node`` should listen so that the other nodes of its job reach it: beside the master's socket, or on any TCP port."""
    if master_endpoint.startswith("ipc://"):
        return f"ipc://{os.path.dirname(master_endpoint.removeprefix('ipc://'))}/{node}.sock"  # noqa: PTH120
    host = master_endpoint.removeprefix("tcp://").rpartition(":")[0]
    return f"tcp://{host}:*"
