"""Waiting for what must come, and servers in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dlrover_lite.wire.client import Client
from dlrover_lite.wire.frames import Reply, Request
from dlrover_lite.wire.server import Server

PATIENCE = 20.0


def one(server: Server) -> Request:
    (request,) = server.receive(PATIENCE)
    return request


def in_background(server: Server, handle: Callable[[Request], None], requests: int = 1) -> threading.Thread:
    """Receives so many requests in a thread. The server must be used nowhere else meanwhile."""

    def serve() -> None:
        left = requests
        while left:
            for request in server.receive(PATIENCE):
                handle(request)
                left -= 1

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def taken(client: Client) -> Reply:
    reply = client.receive(PATIENCE)
    assert reply is not None
    return reply
