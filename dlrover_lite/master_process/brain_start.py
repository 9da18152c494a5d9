"""Which brain a job's master talks to, and what it says of itself first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.core.errors import BrainError
from dlrover_lite.core.processes.identity import is_foreign
from dlrover_lite.core.processes.this_process import user_name
from dlrover_lite.jobs.store import Job
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master_process.brain_restart import BrainRestart, start_process
from dlrover_lite.master_process.embedded_brain import EmbeddedBrain
from dlrover_lite.master_process.remote_brain import RemoteBrain
from dlrover_lite.protocol.brain_messages import RegisterJob
from dlrover_lite.protocol.brain_mode import BrainMode
from dlrover_lite.protocol.demands import Demand
from dlrover_lite.protocol.features import features_of
from dlrover_lite.transport.connector import Connector

__all__ = ["find_daemon", "linked"]


@contextmanager
def linked(
    job: Job,
    mode: BrainMode,
    *,
    rows: int,
    demand: Demand | None = None,
    connector: Connector,
    say: Callable[[str], None],
    log: Callable[[str], None],
) -> Iterator[BrainLink | None]:
    """Yield the link for as long as the job runs; None with ``off``. ``rows``: training samples. ``say`` is for the job's story, ``log``
    for what an embedded brain has to say."""
    if mode == "off":
        yield None
        return
    told = registration(job, rows, demand)
    embedded = EmbeddedBrain(connector, say=log) if mode == "embedded" else None
    remote = RemoteBrain.of_this_process() if mode == "daemon" else None
    restart = BrainRestart(BrainFiles(), find_daemon, start=start_process, say=say, clock=time.monotonic)
    if remote is not None:
        told = msgspec.structs.replace(told, directory="")  # it is where that brain can't look
    link = BrainLink(
        told,
        (embedded or remote or restart).find,
        connector=remote or connector,
        say=say,
        clock=time.monotonic,
        wall_clock=time.time,
    )
    try:
        yield link
    finally:
        link.close()
        for one in (embedded, remote):
            if one is not None:
                one.close()


def find_daemon(files: BrainFiles | None = None) -> str:
    """Return where the user's brain listens. Raises BrainError when there is none that can be reached from here."""
    files = files or BrainFiles()
    record = files.record() if files.lives() else None
    if record is None:
        raise BrainError("none runs")
    if is_foreign(record.process):
        raise BrainError("it runs in another container")
    if record.endpoint.startswith("tcp://"):
        raise BrainError("it serves jobs of a cluster alone")
    return record.endpoint


def registration(job: Job, rows: int, demand: Demand | None = None) -> RegisterJob:
    record = job.record()
    features = features_of(job.recipe, rows=rows, owner=user_name())
    return RegisterJob(
        job=job.id,
        name=features.name,
        owner=features.owner,
        model=features.model,
        directory=str(job.directory),
        created_at=record.created_at,
        started_at=record.started_at,
        features=msgspec.to_builtins(features),
        demand=demand,
        priority=job.recipe.priority,
    )
