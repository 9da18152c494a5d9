"""The master's process: ``python -m dlrover_lite.master_process JOBDIR``."""

from __future__ import annotations

import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dlrover_lite.backends.keeper.client import KeeperClient
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.files.durable import write_whole
from dlrover_lite.core.files.log_stream import pass_over_full_disk
from dlrover_lite.core.processes.limits import exhausted
from dlrover_lite.core.processes.log import log
from dlrover_lite.core.processes.this_process import StopSignals
from dlrover_lite.jobs import events as stories
from dlrover_lite.jobs.checkpoint_location import destination
from dlrover_lite.jobs.store import Job, JobRecord, Result
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.edge import Edge, as_the_master
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.master import Master
from dlrover_lite.master.outcome import Outcome
from dlrover_lite.master.profiling.profiler import Pace
from dlrover_lite.master.work.shard_plan import look_at_data
from dlrover_lite.master_process.brain_start import linked
from dlrover_lite.master_process.io_thread import IoThread
from dlrover_lite.protocol.brain_mode import BRAIN_VARIABLE, brain_mode
from dlrover_lite.protocol.demands import demand_of
from dlrover_lite.protocol.messages import MasterRequests
from dlrover_lite.protocol.nodes import Backend
from dlrover_lite.protocol.questions import StoryEntry
from dlrover_lite.recipe.schema import Checkpoint
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.endpoints import ANY_PORT, MASTER_ENDPOINT_FILE
from dlrover_lite.transport.frames import Request
from dlrover_lite.transport.interface import MessageClient
from dlrover_lite.transport.polling import Source, wait_for_messages
from dlrover_lite.transport.server import Server

if TYPE_CHECKING:
    from dlrover_lite.backends.k8s.nodes.backend import KubeBackend

PACE_VARIABLE = "DLROVER_LITE_PROFILE_SECONDS"
"""Environment variable with the length of intervals in seconds. By shorter ones the brain decides sooner, and by less."""


def run(job: Job) -> Outcome:
    """Run the job to its end and write its result."""
    stop = StopSignals()
    connector = Connector.of_this_process()
    record = job.record()
    server = _listen(record, connector)
    backend = _backend(job, record, connector)
    try:
        return _run(job, server, backend, stop, connector)
    finally:
        server.close()
        backend.close()
        connector.close(linger_seconds=1.0)


def _backend(job: Job, record: JobRecord, connector: Connector) -> KeeperClient | KubeBackend:
    """Return what runs the job's nodes: the keeper of this machine, or the cluster that this pod is in."""
    if job.recipe.kubernetes is None:
        return KeeperClient(record.keeper_endpoint, connector=connector)
    from dlrover_lite.backends.k8s.jobs.master_backend import start_backend

    return start_backend(job, connector=connector, say=log)


def _url_for_nodes(job: Job) -> Callable[[str], str]:
    if job.recipe.kubernetes is None:
        return as_the_master
    from dlrover_lite.backends.k8s.jobs.master_backend import url_for_nodes

    return url_for_nodes(job)


def _tell_cluster(job: Job, backend: Backend) -> Callable[[list[StoryEntry]], None]:
    """Return what shows the master's own entries where the cluster shows what has happened to a job."""
    if job.recipe.kubernetes is None:
        return lambda _: None
    from dlrover_lite.backends.k8s.nodes.backend import KubeBackend

    assert isinstance(backend, KubeBackend)

    def tell(entries: list[StoryEntry]) -> None:
        for entry in entries:
            if entry.subject == "master":
                backend.tell(entry.text, entry.about)

    return tell


def _listen(record: JobRecord, connector: Connector) -> Server:
    """Listen where the job's nodes and clients look for its master: over TCP where it is told to, or the master before this one did."""
    if record.transport == "unix":
        return connector.server(record.master_endpoint, MasterRequests, remember_replies=True)
    known = record.listen or (record.master_endpoint if record.has_master else ANY_PORT)
    server = connector.server(known, MasterRequests, remember_replies=True)
    write_whole(Path(record.runtime_directory, MASTER_ENDPOINT_FILE), server.endpoint.encode("ascii"))
    return server


def _run(job: Job, server: Server, backend: Backend, stop: StopSignals, connector: Connector) -> Outcome:
    recipe = job.recipe
    hosts = backend.capacity()
    data = look_at_data(recipe)
    cuts = destination(recipe, job.id, job.directory) if isinstance(recipe.checkpoint, Checkpoint) else ""
    before = stories.read(job.directory, on_damage=print).entries
    tell_cluster = _tell_cluster(job, backend)

    def write(entries: list[StoryEntry]) -> None:
        stories.append(job.directory, entries)
        tell_cluster(entries)

    story = EventLog(write, time.time, before, say=log)
    mode = brain_mode() if os.environ.get(BRAIN_VARIABLE) else "off"
    io = _IoThreads()
    edge = Edge(
        endpoint=job.record().advertised or server.endpoint,
        attempt=server.attempt,
        io=io.another,
        stop=stop,
        wall_clock=time.time,
        free=lambda directory: shutil.disk_usage(directory).free,
        pace=_pace(),
        url_for_nodes=_url_for_nodes(job),
    )
    demand = demand_of(
        recipe,
        hosts,
        samples=data.plan.samples,
        shared=backend.shared_room(),
        shared_cores=backend.enforcement().shared_cores,
    )

    def tell(line: str) -> None:
        story.node("master", line)

    with linked(job, mode, rows=data.plan.samples, demand=demand, connector=connector, say=tell, log=log) as brain:
        master = Master(
            job,
            data,
            backend,
            edge,
            story=story,
            brain=brain,
            checkpoints=cuts,
            now=time.monotonic(),
        )
        return _drive(master, server, brain, io)


def _drive(master: Master, server: Server, brain: BrainLink | None, io: _IoThreads) -> Outcome:
    """Step the master until the job has ended."""
    requests: list[Request] = []
    while True:
        outbox, wake_at = master.step(time.monotonic(), requests)
        for request, body in outbox:
            server.answer(request, body)
        if master.outcome is not None:
            return master.outcome
        seconds = wake_at - time.monotonic()
        if seconds > 0:
            awaited = brain.client if brain is not None and master.awaits_brain else None
            wait_for_messages([*server.sockets, *io.descriptors(), *_sockets(awaited)], seconds)
            io.silence()
        requests = server.receive(0.0)


def _sockets(client: MessageClient | None) -> list[Source]:
    return [client.socket] if isinstance(client, Client) else []


class _IoThreads:
    """The threads that are at work for a master: one for each of its generations that take checkpoints."""

    def __init__(self) -> None:
        self._threads: list[IoThread] = []

    def another(self) -> IoThread:
        self._threads.append(IoThread("checkpoints"))
        return self._threads[-1]

    def descriptors(self) -> list[Source]:
        """Return descriptors that become readable when there is something to take up."""
        self._threads = [thread for thread in self._threads if thread.is_open]
        return [thread.fileno() for thread in self._threads]

    def silence(self) -> None:
        for thread in self._threads:
            thread.silence()


def _pace() -> Pace | None:
    """Return the pace that the environment asks for; what makes no sense there is passed over."""
    with suppress(ValueError):
        seconds = float(os.environ.get(PACE_VARIABLE, ""))
        if 0.1 <= seconds <= 3600.0:
            return Pace.of(seconds)
    return None


def main(arguments: list[str]) -> int:
    job = Job(Path(arguments[0]))
    pass_over_full_disk()
    try:
        outcome = run(job)
    except DlroverLiteError as error:
        print(error)
        job.write_result(Result("failed", time.time(), error.message, error.hint))
        return 1
    except Exception as error:  # noqa: BLE001 - the outermost frame: the result must say that this is a bug of ours
        trace = traceback.format_exc()
        print(trace)
        why, hint = exhausted(error) or (
            repr(error),
            f"This is a bug in dlrover-lite; the traceback is in {job.log('master')}",
        )
        job.write_result(Result("failed", time.time(), f"The job's master failed: {why}", hint))
        return 1
    print(f"{outcome.state} {outcome.message}")
    return 0 if outcome.state == "succeeded" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
