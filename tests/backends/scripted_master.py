"""A master for tests: ``python scripted_master.py WHAT… JOBDIR``.

WHAT is ``idle`` (end on SIGTERM), ``deaf`` (ignore it), ``exit CODE``, ``result STATE`` (write a result and end),
``nodes N`` (launch N nodes that stay, then idle) or ``listen`` (tell everybody that the job is starting).
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.endpoints import MASTER_ENDPOINT_FILE

if TYPE_CHECKING:
    from dlrover_lite.protocol.nodes import NodeSpec


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
    from dlrover_lite.protocol.questions import AutoscaleRequest, AutoscaleStatus

    with Connector.of_this_process() as connector:
        record = job.record()
        server = connector.server(record.listen or record.master_endpoint, MasterRequests)
        if record.listen:
            Path(record.runtime_directory, MASTER_ENDPOINT_FILE).write_text(server.endpoint)
        while True:
            for request in server.receive(1.0):
                asks_plan = isinstance(request.body, AutoscaleRequest)
                server.reply(request, AutoscaleStatus("off") if asks_plan else starting(job))


def _launch(job: Job, count: int) -> None:
    from dlrover_lite.backends.keeper.client import KeeperClient
    from dlrover_lite.core.units import Resources
    from dlrover_lite.protocol.nodes import NodeSpec

    specs = [
        NodeSpec(f"worker-{i}", "worker", Resources(1, 1 << 28), "children" if i == 0 else "stay") for i in range(count)
    ]
    if job.recipe.kubernetes is not None:
        _launch_pods(job, specs)
    with Connector() as connector:
        backend = KeeperClient(job.record().keeper_endpoint, connector=connector)
        for spec in specs:
            backend.launch(spec)
        backend.close()


def _launch_pods(job: Job, specs: list[NodeSpec]) -> NoReturn:
    """Launch nodes in pods, and look after them: who has launched them asks their agents."""
    from dlrover_lite.backends.k8s.jobs.master_backend import start_backend

    with Connector.of_this_process() as connector:
        backend = start_backend(job, connector=connector, say=print)
        for spec in specs:
            backend.launch(spec)
        while True:
            signal.pause()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
