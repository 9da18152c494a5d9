"""The parameter server's process: one loop that answers pulls and pushes in the order they come."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from dlrover_lite.backends.base import NodeSpec
from dlrover_lite.errors import DlroverLiteError
from dlrover_lite.ps.engine import Engine
from dlrover_lite.wire import listen_endpoint
from dlrover_lite.wire.client import Client
from dlrover_lite.wire.frames import Request
from dlrover_lite.wire.messages import (
    Ack,
    Configure,
    Hello,
    MasterReplies,
    PsReport,
    PsRequests,
    Pull,
    Pulled,
    Push,
    Pushed,
    Rows,
    Scan,
)
from dlrover_lite.wire.server import Server

__all__ = ["answer", "main"]

REPORT_SECONDS = 0.5
HEARTBEAT_SECONDS = 2.0
"""Between reports that say nothing new."""


def answer(engine: Engine, server: Server, request: Request) -> None:
    """Do what ``request`` asks and reply; a request that can't be done is answered with the reason."""
    try:
        body, frames = _handle(engine, request)
    except DlroverLiteError as error:
        server.fail(request, "refused", error.message, error.hint)
    except (ValueError, IndexError, OverflowError) as error:
        # frames of the wrong number or length: the header was ours, the rest was not
        server.fail(request, "bad-request", f"{type(request.body).__name__}: {error}")
    else:
        server.reply(request, body, frames)


def _handle(engine: Engine, request: Request) -> tuple[Any, list[Any]]:
    match request.body:
        case Pull(counts, dense):
            found: list[Any] = [engine.pull_dense()] if dense else []
            for g, group_counts in enumerate(counts):
                found.append(engine.pull_rows(g, _array(request, g, np.uint64), group_counts))
            return Pulled(engine.version), found
        case Push(epoch, k, factor, counts):
            groups = []
            for g, group_counts in enumerate(counts):
                keys = _array(request, 1 + 2 * g, np.uint64)
                grads = _array(request, 2 + 2 * g, np.float32).reshape(len(keys), engine.groups[g].dim)
                groups.append((keys, group_counts, grads))
            result = engine.push(epoch, k, factor, _array(request, 0, np.float32), groups)
            return Pushed(result.version, result.applied), []
        case Scan(group, start, limit):
            total = engine.groups[group].rows
            ids, tables, values = engine.groups[group].scan(start, limit)
            stop = start + len(ids)
            return Rows(stop if stop < total else None, total), [ids, tables, values]
        case Configure() as configuration:
            engine.configure(configuration, _array(request, 0, np.float32))
            return Ack(), []
        case other:
            raise ValueError(f"{type(other).__name__} is not for a parameter server")


def _array(request: Request, frame: int, kind: Any) -> NDArray[Any]:
    return np.frombuffer(request.buffer(frame), kind)


def _terminate(_signal: int, _frame: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)  # who has asked, the backend knows


def main(spec: NodeSpec, _job_directory: Path) -> int:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, _terminate)
    context: zmq.Context[Any] = zmq.Context()
    engine = Engine()
    server = Server(listen_endpoint(spec.master_endpoint, spec.id), PsRequests, context=context)
    master = Client(spec.master_endpoint, MasterReplies, context=context, peer="the master")
    try:
        master.call(Hello(spec.id, "ps", server.endpoint))
        next_report = next_heartbeat = 0.0
        reported = -1
        while True:
            for request in server.receive(REPORT_SECONDS, limit=16):
                answer(engine, server, request)
            now = time.monotonic()
            if now >= (next_report if engine.version != reported else next_heartbeat):
                # an answer isn't waited for: the next report says it all again
                master.send(PsReport(spec.id, engine.rows, engine.bytes, engine.version))
                while master.receive(0) is not None:
                    pass
                next_report, next_heartbeat, reported = now + REPORT_SECONDS, now + HEARTBEAT_SECONDS, engine.version
    finally:
        server.close()
        master.close()
        context.term()
