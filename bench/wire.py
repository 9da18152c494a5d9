"""What encryption costs: a round trip between two processes over TCP with the job's key (CURVE), without, and over a unix socket.

A trip is as large as a minibatch's: 1.7 MB each way, in frames as of a push (ids, gradients, dense gradients) and of the answer to a
pull. A client asks, and a server, a process of its own, answers out of memory. ``wire.curve_ratio``: with CURVE over without.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import zmq
from common import Figure, arguments, emit, line_of, medians, start_process

from dlrover_lite.protocol.messages import Ack, MasterReplies, MasterRequests
from dlrover_lite.protocol.questions import StatusRequest, StopRequest
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.curve import JobKey
from dlrover_lite.transport.server import Server

FRAMES = [np.zeros(size, np.uint8) for size in (180_000, 1_300_000, 220_000, 64)]
KINDS = {"ipc": ("ipc", False), "tcp": ("tcp", False), "curve": ("tcp", True)}
"""Of each: the transport, and whether there is a key."""


def serve(endpoint: str) -> None:
    """Answers every request with as much as it brought. On stdin comes the job's key or an empty line; it prints where it listens."""
    text = sys.stdin.readline().strip()
    with zmq.Context() as context:
        server = Server(endpoint, MasterRequests, context=context, key=JobKey.parse(text) if text else None)
        print(server.endpoint, flush=True)
        ended = False
        while not ended:
            for request in server.receive(None):
                ended = isinstance(request.body, StopRequest)
                server.reply(request, Ack(), [] if ended else FRAMES)
        server.close()


@contextmanager
def connected(endpoint: str, key: JobKey | None, context: zmq.Context[Any]) -> Iterator[Client]:
    """A client of a server that was started for it, and ends with it."""
    with start_process(__file__, "serve", endpoint) as server:
        try:
            assert server.stdin is not None
            server.stdin.write(f"{key.text() if key else ''}\n")
            server.stdin.flush()
            client = Client(line_of(server), MasterReplies, context=context, key=key)
            client.call(StatusRequest(), FRAMES)
            yield client
            client.call(StopRequest())
            client.close()
        finally:
            server.terminate()


def seconds_per_trip(client: Client, trips: int) -> Callable[[], float]:
    def measure() -> float:
        started = time.perf_counter()
        for _ in range(trips):
            reply = client.call(StatusRequest(), FRAMES)
        seconds = (time.perf_counter() - started) / trips
        if sum(len(reply.buffer(i)) for i in range(len(FRAMES))) != sum(frame.nbytes for frame in FRAMES):
            raise SystemExit("the server's answer has another size")
        return seconds

    return measure


def main() -> None:
    options = arguments("A round trip over TCP with CURVE and without, and over a unix socket.")
    key = JobKey.generate()
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-bench-") as directory, ExitStack() as stack:
        context: zmq.Context[Any] = stack.enter_context(zmq.Context())
        where = {"ipc": f"ipc://{directory}/wire.sock", "tcp": "tcp://127.0.0.1:*"}
        subjects = {
            kind: seconds_per_trip(
                stack.enter_context(connected(where[transport], key if guarded else None, context)),
                trips=20 if options.quick else 40,
            )
            for kind, (transport, guarded) in KINDS.items()
        }
        taken = medians(subjects, rounds=7 if options.quick else 21)
    figures = [Figure("wire.curve_ratio", taken["curve"] / taken["tcp"], "x", baseline=taken["tcp"])]
    figures += [Figure(f"wire.{kind}_ms", seconds * 1000, "ms") for kind, seconds in taken.items()]
    emit(options, figures)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", endpoint]:
            serve(endpoint)
        case _:
            main()
