"""Processes of ``bench/migrate.py``: a parameter server as it is, and the two ends of the limit it is measured against.

The limit moves the same bytes, in chunks of the same size with as many under way, and does nothing else with them: rows are gathered from
arrays, sent over an ipc socket, and put into arrays of the other process. No index, no slots, no marks.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

DIM = 16
CHUNK_BYTES = 2 << 20
ROW_BYTES = 8 + 16 + 4 * DIM * 2


def columns(rows: int) -> list[NDArray[Any]]:
    """Of a table with Adagrad's state: keys, tables, counts, ages, values, state. Every page is there already."""
    random = np.random.default_rng(0)
    kinds = (np.uint16, np.uint32, np.uint32)
    return [
        random.integers(1 << 62, size=rows).astype(np.uint64),
        *(np.ones(rows, kind) for kind in kinds),
        np.ones((rows, DIM), np.float32),
        np.ones((rows, DIM), np.float32),
    ]


def limit_source(endpoint: str, rows: int) -> None:
    """Gathers every second of ``rows`` rows, a chunk a request."""
    arrays = columns(rows)
    wanted = np.arange(0, rows, 2)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(endpoint)
        step = CHUNK_BYTES // ROW_BYTES
        for start in range(0, len(wanted), step):
            peer, _ = socket.recv_multipart()
            chunk = wanted[start : start + step]
            parts: list[Any] = [peer, *(array[chunk] for array in arrays)]
            socket.send_multipart(parts, copy=False)
        socket.recv_multipart()  # the target has all of it


def limit_target(endpoint: str, rows: int) -> None:
    """Prints the seconds from the first request until the last row is in place."""
    arrays = columns(rows)
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
            frames = socket.recv_multipart(copy=False)
            here = places[start : start + step]
            for array, frame in zip(arrays, frames, strict=True):
                array[here] = np.frombuffer(frame.buffer, array.dtype).reshape(len(here), *array.shape[1:])
        print(time.perf_counter() - began, flush=True)
        socket.send(b"")


def parameter_server(master_endpoint: str, node: str) -> int:
    from dlrover_lite.backends.base import NodeSpec
    from dlrover_lite.ps.main import main
    from dlrover_lite.units import GIB, Resources
    from dlrover_lite.worker.warm import compile_kernels

    compile_kernels()  # nodes are forked from a template that has done so
    return main(NodeSpec(node, "ps", Resources(1.0, 4 * GIB), master_endpoint), Path())


if __name__ == "__main__":
    what, where, argument = sys.argv[1:]
    if what == "ps":
        sys.exit(parameter_server(where, argument))
    {"source": limit_source, "target": limit_target}[what](where, int(argument))
