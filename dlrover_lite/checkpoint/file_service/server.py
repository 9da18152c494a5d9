"""The process that serves a job's files, with the job's key as the environment names it. Until SIGTERM.

``python -P -m dlrover_lite.checkpoint.file_service.server ROOT ENDPOINT``
"""

from __future__ import annotations

import signal
import sys
import time

from dlrover_lite.checkpoint.file_service.service import FileService, failure_of
from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.core.process_log import log
from dlrover_lite.protocol.file_messages import FileRequests
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Failure, Request
from dlrover_lite.transport.server import Server

__all__ = ["main", "serve"]

_LOOK_SECONDS = 60.0


def serve(server: Server, service: FileService, *, timeout_seconds: float) -> None:
    """Answer what is here, or comes in time."""
    for request in server.receive(timeout_seconds, limit=1):
        _answer(server, service, request)


def _answer(server: Server, service: FileService, request: Request) -> None:
    try:
        answer = server.attempt(request, service.answer)
    except JobError as error:
        server.fail(request, failure_of(error), error.message, error.hint)
        return
    if isinstance(answer, Failure):
        server.reply(request, answer)
    elif answer is not None:
        server.reply(request, *answer)


def main(arguments: list[str]) -> int:
    root, endpoint = arguments
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    connector = Connector.of_this_process()
    service = FileService(root, clock=time.monotonic)
    try:
        server = connector.server(endpoint, FileRequests)
        log(f"serves files of {root} at {server.endpoint}")
        looked_at = time.monotonic()
        while True:
            serve(server, service, timeout_seconds=_LOOK_SECONDS)
            if time.monotonic() - looked_at > _LOOK_SECONDS:
                looked_at = time.monotonic()
                for name in service.give_up_idle():
                    log(f"gives {name} up: nobody has added to it for long")
    except DlroverLiteError as error:
        log(str(error))
        return 1
    finally:
        service.close()
        connector.close(linger_seconds=1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
