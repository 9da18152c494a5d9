"""Waiting for what must come, and servers in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import zmq

from dlrover_lite.protocol.messages import Ack, MasterRequests
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.curve import JobKey
from dlrover_lite.transport.frames import Reply, Request
from dlrover_lite.transport.server import Server

PATIENCE = 60.0


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


@contextmanager
def answering(server: Server) -> Iterator[list[Any]]:
    """The server acknowledges whatever it gets, in a thread; here is what that was."""
    got: list[Any] = []
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            for request in server.receive(0.02):
                got.append(request.body)
                server.reply(request, Ack())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield got
    finally:
        ended.set()
        thread.join()


@contextmanager
def serving(endpoint: str, key: JobKey | None = None) -> Iterator[tuple[str, list[Any]]]:
    """A server of its own, gone without trace at the end: its endpoint, and what it got. ZeroMQ closes in the background, and removes a
    unix socket's file then, even when another one listens there by now; only with its context all of that has ended."""
    with zmq.Context() as context:
        server = Server(endpoint, MasterRequests, context=context, remember_replies=True, key=key)
        with answering(server) as got:
            yield server.endpoint, got
        server.close()
