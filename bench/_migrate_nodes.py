"""Processes of ``bench/migrate.py``: a parameter server as it is, and the two ends of the limit it is measured against.

The limit moves the same bytes, in chunks of the same size with as many under way, and does nothing else with them: records are gathered
from an array, sent over an ipc socket, and put into an array of the other process. No index, no slots, no marks.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from dlrover_lite.core.records import RecordShape
from dlrover_lite.transport.endpoints import listen_endpoint

DIM = 16
CHUNK_BYTES = 2 << 20
SHAPE = RecordShape(DIM, DIM, False)
ROW_BYTES = SHAPE.bytes


def records_of(rows: int) -> NDArray[np.uint32]:
    """Make records of a table with Adagrad's state. Every page is there already."""
    return np.ones((rows, SHAPE.words), np.uint32)


def limit_source(endpoint: str, rows: int) -> None:
    """Gathers every second of ``rows`` rows, a chunk a request."""
    records = records_of(rows)
    wanted = np.arange(0, rows, 2)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(endpoint)
        step = CHUNK_BYTES // ROW_BYTES
        for start in range(0, len(wanted), step):
            peer, _ = socket.recv_multipart()
            parts: list[Any] = [peer, records.take(wanted[start : start + step], 0)]
            socket.send_multipart(parts, copy=False)
        socket.recv_multipart()  # the target has all of it


def limit_target(endpoint: str, rows: int) -> None:
    """Prints the seconds from the first request until the last row is in place."""
    records = records_of(rows)
    places = np.arange(1, rows, 2)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(endpoint)
        step = CHUNK_BYTES // ROW_BYTES
        began, asked = time.perf_counter(), 0
        for start in range(0, rows // 2, step):
            while asked < min(start // step + 2, -(-rows // 2 // step)):
                socket.send(b"")
                asked += 1
            frame = socket.recv(copy=False)
            here = places[start : start + step]
            records[here] = np.frombuffer(frame.buffer, np.uint32).reshape(len(here), SHAPE.words)
        print(time.perf_counter() - began, flush=True)
        socket.send(b"")


def parameter_server(master_endpoint: str, node: str) -> int:
    from dlrover_lite.core.units import GIB, Resources
    from dlrover_lite.protocol.nodes import NodeSpec
    from dlrover_lite.ps.server.compile_kernels import compile_kernels
    from dlrover_lite.ps.server.main import main

    compile_kernels()  # nodes are forked from a template that has done so
    listen = listen_endpoint(master_endpoint, node)
    return main(NodeSpec(node, "ps", Resources(1.0, 4 * GIB), master_endpoint, listen=listen), Path())


if __name__ == "__main__":
    what, where, argument = sys.argv[1:]
    if what == "ps":
        sys.exit(parameter_server(where, argument))
    {"source": limit_source, "target": limit_target}[what](where, int(argument))
