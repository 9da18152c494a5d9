"""The parameter server's process: one loop that answers requests in the order they come, and works a little between them."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from dlrover_lite.backends.base import NodeSpec
from dlrover_lite.ps.engine import Engine
from dlrover_lite.ps.service import PsService
from dlrover_lite.wire import listen_endpoint
from dlrover_lite.wire.client import Client
from dlrover_lite.wire.messages import Hello, MasterReplies, PsOrders
from dlrover_lite.wire.ps_messages import PsReplies, PsRequests
from dlrover_lite.wire.server import Server

__all__ = ["main"]


def _terminate(_signal: int, _frame: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)  # who has asked, the backend knows


def main(spec: NodeSpec, _job_directory: Path) -> int:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, _terminate)
    context: zmq.Context[Any] = zmq.Context()
    server = Server(listen_endpoint(spec.master_endpoint, spec.id), PsRequests, context=context)
    master = Client(spec.master_endpoint, MasterReplies, context=context, peer="the master")

    def connect(endpoint: str, peer: str) -> Client:
        return Client(endpoint, PsReplies, context=context, peer=peer)

    service = PsService(spec.id, Engine(), server, connect, say=_log)
    try:
        master.call(Hello(spec.id, "ps", server.endpoint))
        while True:
            _turn(service, server, master)
    finally:
        service.close()
        server.close()
        master.close()
        context.term()


def _turn(service: PsService, server: Server, master: Client) -> None:
    while (reply := master.receive(0)) is not None:
        if isinstance(reply.body, PsOrders):
            service.follow(reply.body)
    wait_seconds = service.work()
    if not service.report_in:
        # an answer isn't waited for: the next report says it all again
        master.send(service.report())
        wait_seconds = min(wait_seconds, service.report_in)
    sockets = [server.socket, master.socket, *service.sockets]
    if wait_seconds:
        zmq.zmq_poll([(socket, zmq.POLLIN) for socket in sockets], max(1, int(wait_seconds * 1000)))
    for request in server.receive(0, limit=16):
        service.answer(request)


def _log(line: str) -> None:
    """A full disk must not end a parameter server."""
    with suppress(OSError):
        print(time.strftime("%Y-%m-%d %H:%M:%S"), line, flush=True)
