"""A job that runs as far as one can tell from outside: its directory, and a master in a thread that answers as told."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import zmq

from dlrover_lite.backends.local.jobs.local_jobs import create_job
from dlrover_lite.core.processes.identity import identify
from dlrover_lite.jobs import final_status
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.messages import MasterRequests
from dlrover_lite.protocol.questions import NodeStatus, Status, StatusRequest, StopRequest
from dlrover_lite.recipe.schema import Model, Recipe, ResourceLimits, RoleResources, SyntheticData
from dlrover_lite.transport.endpoints import MASTER_SOCKET
from dlrover_lite.transport.frames import Failure
from dlrover_lite.transport.server import Server

__all__ = ["make_job", "running_job", "status_of"]

Answer = Callable[[msgspec.Struct], msgspec.Struct]

NODES = [
    NodeStatus("ps-0", "ps", "up", 0.5, 1 << 30, 0.0, 4.0, 300 << 20, 0.25, 400 << 20),
    NodeStatus("worker-0", "worker", "up", 0.75, 1 << 30, 52_000.0, 7.5, 512 << 20, 5.0, 612 << 20),
]


def make_job(name: str = "told", *, fixed: bool = True) -> Job:
    """A job directory, as the launching command makes it."""
    role = RoleResources(count=1, cores=0.5, memory=1 << 30)
    resources = ResourceLimits(ps=role, worker=role) if fixed else ResourceLimits()
    recipe = Recipe(
        version=1, name=name, model=Model(use="wide_deep"), data=SyntheticData(samples=1), resources=resources
    )
    return create_job(recipe)


def status_of(job: Job, **changes: object) -> Status:
    known = final_status.starting(job)
    settings = {"state": "training", "nodes": NODES, "elapsed_seconds": 10.0, **changes}
    return msgspec.structs.replace(known, **settings)


@contextmanager
def running_job(answer: Answer, *, fixed: bool = True, status: Callable[[Job], Status] | None = None) -> Iterator[Job]:
    """``answer`` may give a Failure; ``status`` tells how the job is, by default the same always."""
    job = make_job(fixed=fixed)
    runtime = Path(tempfile.mkdtemp(prefix="dlt-"))
    keeper = identify(os.getpid())
    job.write_record(
        msgspec.structs.replace(
            job.record(), state="running", keeper=keeper, runtime_directory=str(runtime), started_at=time.time()
        )
    )
    stop = threading.Event()
    with zmq.Context() as context:
        server = Server(f"ipc://{runtime}/{MASTER_SOCKET}", MasterRequests, context=context)
        thread = threading.Thread(target=_serve, args=(job, server, answer, status or status_of, stop))
        thread.start()
        try:
            yield job
        finally:
            stop.set()
            thread.join()
            server.close()
            shutil.rmtree(runtime)
            job.write_record(msgspec.structs.replace(job.record(), state="ended", keeper=None, ended_at=time.time()))


def _serve(job: Job, server: Server, answer: Answer, status: Callable[[Job], Status], stop: threading.Event) -> None:
    while not stop.is_set():
        for request in server.receive(0.02):
            assert not isinstance(request.body, StopRequest)
            reply = status(job) if isinstance(request.body, StatusRequest) else answer(request.body)
            if isinstance(reply, Failure):
                server.fail(request, reply.code, reply.message, reply.hint)
            else:
                server.reply(request, reply)
