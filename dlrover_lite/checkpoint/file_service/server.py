"""The process that serves a job's files, with the job's key as the environment names it. Until SIGTERM, or until nobody has asked for long.

``python -P -m dlrover_lite.checkpoint.file_service.server ROOT ENDPOINT [--writable DIRECTORY …] [--idle-seconds SECONDS]``
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from dlrover_lite.checkpoint.file_service.service import FileService, failure_of
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.processes.log import log
from dlrover_lite.protocol.file_messages import FileRequests
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Failure, Request
from dlrover_lite.transport.server import Server

__all__ = ["Questions", "main", "serve"]

_LOOK_SECONDS = 60.0
_WAIT_SECONDS = 1.0
"""Longest wait for a request: a signal that comes just before the wait is noticed after it."""


class Questions(NamedTuple):
    """Requests of another kind that are answered beside those about files."""

    kind: Any
    """Type of the requests: a union."""
    answer: Callable[[Any], msgspec.Struct]
    """Returns the answer. Raises DlroverLiteError."""


def serve(server: Server, service: FileService, *, timeout_seconds: float, also: Questions | None = None) -> bool:
    """Answer what is here, or comes in time; return whether there was something."""
    asked = False
    for request in server.receive(timeout_seconds, limit=1):
        asked = True
        _answer(server, service, request, also)
    return asked


def _answer(server: Server, service: FileService, request: Request, also: Questions | None) -> None:
    answer: Any
    try:
        if also is not None and isinstance(request.body, also.kind):
            answer = server.attempt(request, lambda one: (also.answer(one.body), []))
        else:
            answer = server.attempt(request, service.answer)
    except DlroverLiteError as error:
        server.fail(request, failure_of(error), error.message, error.hint)
        return
    if isinstance(answer, Failure):
        server.reply(request, answer)
    elif answer is not None:
        server.reply(request, *answer)


def main(arguments: list[str], *, also: Questions | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dlrover-lite file service")
    parser.add_argument("root")
    parser.add_argument("endpoint")
    parser.add_argument("--writable", nargs="*", default=[], help="directories in ROOT that others may write to")
    parser.add_argument(
        "--idle-seconds", type=float, default=float("inf"), help="end when nobody has asked for so long"
    )
    parsed = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    connector = Connector.of_this_process()
    service = FileService(parsed.root, writable=parsed.writable, clock=time.monotonic)
    try:
        server = connector.server(parsed.endpoint, FileRequests if also is None else FileRequests | also.kind)
        log(f"serves files of {parsed.root} at {server.endpoint}")
        looked_at = asked_at = time.monotonic()
        while (now := time.monotonic()) - asked_at < parsed.idle_seconds:
            if serve(server, service, timeout_seconds=min(_WAIT_SECONDS, parsed.idle_seconds), also=also):
                asked_at = now
            if now - looked_at > _LOOK_SECONDS:
                looked_at = now
                for name in service.give_up_idle():
                    log(f"gives {name} up: nobody has added to it for long")
    except DlroverLiteError as error:
        log(str(error))
        return 1
    finally:
        service.close()
        connector.close(linger_seconds=1.0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
