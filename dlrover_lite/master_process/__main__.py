"""The master's process: ``python -m dlrover_lite.master_process JOBDIR``."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from dlrover_lite.backends.local.client import LocalBackend
from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.core.files.durable import write_whole
from dlrover_lite.core.files.log_stream import pass_over_full_disk
from dlrover_lite.core.process_limits import exhausted
from dlrover_lite.core.process_log import log
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs import events as stories
from dlrover_lite.jobs.checkpoint_location import destination
from dlrover_lite.jobs.profiles import ProfileLog
from dlrover_lite.jobs.store import Beginning, Job, JobRecord, Result
from dlrover_lite.master.autoscale.autoscaler import Autoscaler
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.autoscale.first_plan import FirstPlan, first_plan, next_plan
from dlrover_lite.master.checkpoints.restore import GoingBack, begin_generation, end_generation, waiting
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.full_disk import FullDisk, serve_meanwhile
from dlrover_lite.master.loop import Master, Outcome
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.queued_job import QueuedJob, blank, without_nodes
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.shard_plan import JobData, ShardPlan, look_at_data
from dlrover_lite.master.work.shards import SLOW_START_MINIBATCHES, ShardService
from dlrover_lite.master_process.brain_start import linked, tell_end
from dlrover_lite.protocol.brain_mode import BRAIN_VARIABLE, brain_mode
from dlrover_lite.protocol.demands import autoscale_of, demand_of
from dlrover_lite.protocol.hosts import total_of
from dlrover_lite.protocol.messages import MasterRequests, Status, StatusRequest, StoryRequest, to_builtins
from dlrover_lite.protocol.nodes import Backend
from dlrover_lite.protocol.questions import status_of
from dlrover_lite.recipe.schema import Checkpoint
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.endpoints import ANY_PORT, MASTER_ENDPOINT_FILE
from dlrover_lite.transport.frames import Request
from dlrover_lite.transport.server import Server


class _Stop:
    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)

    def _request(self, _signal: int, _frame: object) -> None:
        self.requested = True

    def __call__(self) -> bool:
        return self.requested


def run(job: Job) -> Outcome:
    """Run the job to its end and write its result."""
    stop = _Stop()
    connector = Connector.of_this_process()
    record = job.record()
    server = _listen(record, connector)
    backend = LocalBackend(record.keeper_endpoint, connector=connector)
    try:
        return _run(job, server, backend, stop, connector)
    finally:
        server.close()
        backend.close()
        connector.close(linger_seconds=1.0)


def _listen(record: JobRecord, connector: Connector) -> Server:
    """Listen where the job's nodes and clients look for its master: over TCP, where the master before this one did."""
    if record.transport == "unix":
        return connector.server(record.master_endpoint, MasterRequests, remember_replies=True)
    known = record.master_endpoint if record.has_master else ANY_PORT
    server = connector.server(known, MasterRequests, remember_replies=True)
    write_whole(Path(record.runtime_directory, MASTER_ENDPOINT_FILE), server.endpoint.encode("ascii"))
    return server


def _run(job: Job, server: Server, backend: Backend, stop: _Stop, connector: Connector) -> Outcome:
    recipe = job.recipe
    hosts = backend.capacity()
    data = look_at_data(recipe)
    plan = data.plan
    cuts = destination(recipe, job.id, job.directory) if isinstance(recipe.checkpoint, Checkpoint) else ""
    before = stories.read(job.directory, on_damage=print).entries
    story = EventLog(lambda entries: stories.append(job.directory, entries), time.time, before, say=log)
    mode = brain_mode() if os.environ.get(BRAIN_VARIABLE) else "off"

    def tell(line: str) -> None:
        story.node("master", line)

    demand = demand_of(recipe, hosts, samples=plan.samples)
    with linked(job, mode, rows=plan.samples, demand=demand, connector=connector, say=tell, log=log) as brain:
        began = job.ledger().exists()
        status = blank(job.id, epochs=recipe.training.epochs, total_samples=plan.samples * recipe.training.epochs)
        room = QueuedJob(server, story, status, mode=autoscale_of(recipe), stop=stop, show=lambda now: _show(job, now))
        nodes = first_plan(recipe, hosts, None if began else brain, room, say=tell)
        if not began and room.is_over():
            return _stopped(job, room, brain, story)
        if not began:
            tell(nodes.words)
            for warning in data.ids.warnings:
                tell(warning)
        disk = _disk(story, server, room, stop)
        return _generations(job, server, backend, stop, nodes, total_of(hosts), data, cuts, story, brain, disk)


def _disk(story: EventLog, server: Server, room: QueuedJob, stop: Callable[[], bool]) -> FullDisk:
    """Create what waits for room on the disk before there is a ``Master`` to answer."""

    def answer(request: Request) -> msgspec.Struct | None:
        match request.body:
            case StatusRequest():
                return msgspec.structs.replace(room.status, message=disk.waits, waits=disk.waits)
            case StoryRequest(subject):
                return story.answer(subject, [node.id for node in room.status.nodes])
            case _:
                return None

    def meanwhile(seconds: float) -> bool:
        disk.asked_to_stop = serve_meanwhile(server, seconds, answer, disk.waits) or disk.asked_to_stop
        return disk.asked_to_stop is not None or stop()

    disk = FullDisk(
        clock=time.monotonic,
        free=lambda directory: shutil.disk_usage(directory).free,
        tell=lambda line: story.node("master", line),
        meanwhile=meanwhile,
    )
    return disk


def _opened(job: Job, disk: FullDisk) -> LedgerStore:
    """Open the job's ledger. Raises JobError, also when the job is to end before there is room for it."""
    found: list[LedgerStore] = []
    if not disk.insist(lambda: found.append(LedgerStore(job.ledger()))):
        raise JobError(f"The disk of {job.directory} is full: the job was stopped before it could begin")
    return found[0]


def _stopped(job: Job, room: QueuedJob, brain: BrainLink | None, story: EventLog) -> Outcome:
    """Write the result of a job that was stopped while it waited, without a node."""
    outcome = Outcome("stopped", room.stopped or job.record().stop_reason or "stopped by request")
    status = msgspec.structs.replace(room.status, state="stopped", message=outcome.message)
    result = Result(outcome.state, time.time(), outcome.message, status=to_builtins(status))
    story.close()
    if not job.write_result(result):
        result = job.result() or result
    if brain is not None:
        tell_end(brain, job, result, None)
    return outcome


def _waited(
    job: Job, noted: Beginning, backend: Backend, brain: BrainLink | None, room: QueuedJob, nodes: FirstPlan
) -> FirstPlan:
    """Wait for the plan that a job which has given way, or was resumed, goes on with."""
    fleet = end_generation(job, backend, time.monotonic)
    before = fleet.plan if fleet is not None else nodes.plan
    assert noted.waits_since is not None

    def tell(line: str) -> None:
        room.story.node("master", line)

    found = next_plan(job.recipe, before, brain, room, since=noted.waits_since, after=noted.decision, say=tell)
    if not room.is_over():
        tell(found.words)
    return found


def _generations(
    job: Job,
    server: Server,
    backend: Backend,
    stop: _Stop,
    nodes: FirstPlan,
    capacity: Resources,
    data: JobData,
    cuts: str,
    story: EventLog,
    brain: BrainLink | None,
    disk: FullDisk,
) -> Outcome:
    """Run one generation after the other, until the job has ended."""
    recipe, plan = job.recipe, data.plan
    decision = 0
    while True:
        if (noted := waiting(job)) is not None:
            room = _room(job, noted, plan, server, story, stop)
            nodes = _waited(job, noted, backend, brain, room, nodes)
            if room.is_over():
                return _stopped(job, room, brain, story)
            decision = nodes.number
        begin = partial(
            begin_generation,
            job,
            plan,
            nodes.plan,
            capacity,
            backend,
            story,
            decision=decision,
            began=nodes.words if decision else "",
            prediction=nodes.prediction if decision else None,
            wall_clock=time.time,
            clock=time.monotonic,
        )
        if not disk.insist(begin):
            raise JobError(f"The disk of {job.directory} is full: the job was stopped before it could go on")
        decision = 0
        with _opened(job, disk) as store:
            shards = ShardService(
                store,
                plan,
                slow_start_minibatches=SLOW_START_MINIBATCHES,
                story=story,
                id_kinds=data.ids.kinds,
                insist=disk.insist,
            )
            master = Master(
                job.id,
                recipe,
                shards,
                server,
                backend,
                Fleet(nodes.plan, capacity),
                export_directory=job.export,
                checkpoints=cuts,
                disk=disk,
                story=story,
                stop=stop,
                show=lambda status: _show(job, status),
                stop_reason=lambda: job.record().stop_reason or "stopped by request",
                go_back=GoingBack(job, disk.insist),
                profiles=[ProfileLog(job.directory), *([brain] if brain is not None else [])],
                brain=brain,
                autoscaler=Autoscaler(
                    job=job.id,
                    mode=autoscale_of(recipe),
                    heard=nodes.number,
                    began=nodes.words,
                    prediction=nodes.prediction,
                ),
            )
            outcome = master.run()
            if outcome is None:
                _show(job, master.status())  # how it stands while it waits, if it does
            else:
                result = _write_result(job, master, outcome)
                if brain is not None:
                    tell_end(brain, job, result, master.fleet)
                return outcome


def _room(
    job: Job, noted: Beginning, plan: ShardPlan, server: Server, story: EventLog, stop: Callable[[], bool]
) -> QueuedJob:
    """Create the room of a job that has given way, or was resumed: its status is as it was then."""
    known = job.status()
    status = blank(job.id, epochs=plan.epochs, total_samples=plan.samples * plan.epochs)
    if known is not None:
        status = status_of(known)
    status = without_nodes(status, noted.why or "waits for the plan that it goes on with")
    return QueuedJob(server, story, status, mode=autoscale_of(job.recipe), stop=stop, show=lambda now: _show(job, now))


def _write_result(job: Job, master: Master, outcome: Outcome) -> Result:
    """Write the job's result, and return it as it stands then: another's word may have been first."""
    result = Result(
        state=outcome.state,
        ended_at=time.time(),
        message=outcome.message,
        hint=outcome.hint,
        traceback=outcome.traceback,
        export=str(job.export) if master.exporting.exported is not None else None,
        status=to_builtins(master.status()),
    )
    written = job.write_result(result)
    return result if written else job.result() or result


def _show(job: Job, status: Status) -> None:
    with suppress(JobError):  # on a full disk the job goes on
        job.write_status(to_builtins(status))


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
