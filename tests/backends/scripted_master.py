"""A master for tests: ``python scripted_master.py WHAT… JOBDIR``.

WHAT is ``idle`` (end on SIGTERM), ``deaf`` (ignore it), ``exit CODE``, ``result STATE`` (write a result and end),
``nodes N`` (launch N nodes that stay, then idle) or ``listen`` (tell everybody that the job is starting).
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.transport.connector import Connector


def main(what: str, *arguments: str) -> int:
    job = Job(Path(arguments[-1]))
    if what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("master is up", flush=True)
    match what:
        case "exit":
            print("last words", flush=True)
            return int(arguments[0])
        case "result":
            job.write_result(Result(arguments[0], time.time(), "as told"))  # type: ignore[arg-type]
            return 0
        case "nodes":
            _launch(job, int(arguments[0]))
        case "listen":
            _listen(job)
    while True:
        signal.pause()


def _listen(job: Job) -> None:
    from dlrover_lite.jobs.final_status import starting
    from dlrover_lite.protocol.messages import MasterRequests

    with Connector.of_this_process() as connector:
        server = connector.server(job.record().master_endpoint, MasterRequests)
        while True:
            for request in server.receive(1.0):
                server.reply(request, starting(job))


def _launch(job: Job, count: int) -> None:
    import zmq

    from dlrover_lite.backends.keeper.client import KeeperClient
    from dlrover_lite.core.units import Resources
    from dlrover_lite.protocol.nodes import NodeSpec

    with zmq.Context() as context:
        backend = KeeperClient(job.record().keeper_endpoint, connector=Connector(context=context))
        for i in range(count):
            backend.launch(NodeSpec(f"worker-{i}", "worker", Resources(1, 1 << 28), "children" if i == 0 else "stay"))
        backend.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
