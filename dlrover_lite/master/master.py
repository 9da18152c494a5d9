"""A job's master as one object that is driven from outside: it is given the time and what has been asked, and says what to answer and
when it is to be woken. It waits for its first plan, runs one generation of the job after the other, writes the result, and tells the brain.

What it stands on is handed in: the backend, the brain's line, clocks, the disk. Nothing here knows a socket, a signal or a thread.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import InitVar, dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.jobs.profiles import ProfileLog
from dlrover_lite.jobs.store import Beginning, EndState, Job, Result
from dlrover_lite.master.autoscale.autoscaler import Autoscaler
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.autoscale.first_plan import FirstPlan, first_plan, next_plan
from dlrover_lite.master.checkpoints.restore import (
    GoingBack,
    begin_generation,
    end_generation,
    is_to_begin,
    waiting,
)
from dlrover_lite.master.edge import Edge
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.full_disk import FullDisk, serve_meanwhile
from dlrover_lite.master.generation_run import GenerationRun
from dlrover_lite.master.job_state_store import FLEET
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.outcome import Outcome
from dlrover_lite.master.phases import Outbox, Phase, StepClock
from dlrover_lite.master.queued_job import QueuedJob, without_nodes
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.shard_plan import JobData
from dlrover_lite.master.work.shards import SLOW_START_MINIBATCHES, ShardService
from dlrover_lite.protocol.brain_messages import EndJob
from dlrover_lite.protocol.demands import autoscale_of
from dlrover_lite.protocol.hosts import total_of
from dlrover_lite.protocol.nodes import Backend
from dlrover_lite.protocol.outcomes import outcome_of
from dlrover_lite.protocol.plans import initial_plan
from dlrover_lite.protocol.questions import (
    Status,
    StatusRequest,
    StopRequest,
    StoryRequest,
    status_of,
    to_builtins,
)
from dlrover_lite.transport.frames import Request

__all__ = ["Master", "Step"]


class Step(NamedTuple):
    """What has come of a step."""

    outbox: list[tuple[Request, msgspec.Struct]]
    """Answers to send now, in their order."""
    wake_at: float
    """Time on the master's steady clock when the next step is due, though nobody asks for anything; infinite once all is over."""


@dataclass(eq=False)
class Master:
    """The master of one job. ``step`` is to be called whenever somebody asks for something, and when it is to be woken.

    ``checkpoints``: where they are kept, a directory or URL; empty: nowhere. ``now``: seconds of a steady clock, when it begins."""

    job: Job
    data: JobData
    backend: Backend
    edge: Edge
    story: EventLog
    brain: BrainLink | None
    now: InitVar[float]
    checkpoints: str = ""

    def __post_init__(self, now: float) -> None:
        self.outcome: Outcome | None = None
        """How the job has ended; None: it hasn't."""
        self.awaits_brain = False
        """Nothing goes on before the brain has answered."""
        self._recipe = self.job.recipe
        self._clock = StepClock(now)
        self._outbox = Outbox()
        self._disk = FullDisk(clock=self._clock, free=self.edge.free, tell=self._tell)
        self._stop_request: StopRequest | None = None
        """Request to end the job that came while no generation ran; None: none did."""
        plan = self.data.plan
        self._queued_job = self._queued(
            Status(self.job.id, "starting", epochs=plan.epochs, total_samples=plan.samples * plan.epochs)
        )
        self._phases = self._live()
        self._wake_at = next(self._phases)

    def step(self, now: float, inbox: list[Request]) -> Step:
        """Take these requests, and do what is due ``now``. Raises DlroverLiteError, the job's end, for what no result is written for."""
        self._clock.now = now
        try:
            self._wake_at = self._phases.send(inbox)
        except StopIteration as over:
            self.outcome, self._wake_at = over.value, float("inf")
        return Step(self._outbox.take(), self._wake_at)

    def close(self) -> None:
        """End here and now, with nothing said: as when the process is killed, another master goes on from what is durable."""
        self._phases.close()

    # --- phases -----------------------------------------------------------------------------------------------------------

    def _live(self) -> Phase[Outcome]:
        """Wait for a plan, and run one generation after the other until the job has ended."""
        yield self._clock()  # the first step is the driver's
        job, began = self.job, self._has_begun()
        self.awaits_brain = True
        nodes = FirstPlan(initial_plan(self._recipe.resources, self.backend.capacity()))
        if not began:
            nodes = yield from first_plan(
                self._recipe, self.backend, self.brain, self._queued_job, clock=self._clock, say=self._tell_decision
            )
        self.awaits_brain = False
        if not began:
            if self._queued_job.is_over():
                return (yield from self._stopped())
            self._tell_decision(nodes.words)
            for line in self.data.ids.warnings:
                self._tell(line)
        while True:
            decision = 0
            if (noted := waiting(job)) is not None:
                nodes = yield from self._wait_for_plan(noted, nodes)
                if self._queued_job.is_over():
                    return (yield from self._stopped())
                decision = nodes.number
            if not (yield from self._begin(nodes, decision)) or (opened := (yield from self._opened(nodes))) is None:
                return (yield from self._stopped_on_a_full_disk())
            store, run = opened
            with store:
                outcome = yield from run.steps()
                if outcome is not None:
                    return (yield from self._ended(run, outcome))
                self._show(run.status())  # how it stands while it waits, if it does

    def _has_begun(self) -> bool:
        """Say whether an earlier master has noted which nodes the job is to have: one that was killed as it made the ledger has noted none,
        and the plan that it knew is lost with it."""
        path = self.job.ledger()
        if not path.exists():
            return False
        try:
            with LedgerStore(path, is_synced=self.edge.is_synced) as store:
                return store.fact(FLEET.name) is not None
        except JobError:
            return True  # what is wrong with it is said once it is to be used

    def _wait_for_plan(self, noted: Beginning, nodes: FirstPlan) -> Phase[FirstPlan]:
        """Wait for the plan that a job which has given way, or was resumed, goes on with."""
        known = self.job.status()
        status = status_of(known) if known is not None else self._queued_job.status
        self._queued_job = self._queued(without_nodes(status, noted.why or "waits for the plan that it goes on with"))
        fleet = yield from end_generation(self.job, self.backend, self._clock, self._queued_job.serve)
        before = fleet.plan if fleet is not None else nodes.plan
        assert noted.waits_since is not None
        self.awaits_brain = True
        found = yield from next_plan(
            self._recipe,
            before,
            self.backend,
            self.brain,
            self._queued_job,
            since=noted.waits_since,
            after=noted.decision,
            say=self._tell_decision,
        )
        self.awaits_brain = False
        if not self._queued_job.is_over():
            self._tell_decision(found.words)
        return found

    def _begin(self, nodes: FirstPlan, decision: int) -> Phase[bool]:
        """Begin the generation that is noted, if one is. Return False where that has no room on the disk, and the job is to end."""
        if not is_to_begin(self.job):
            return True
        yield from end_generation(self.job, self.backend, self._clock, self._queued_job.serve)
        begin = partial(
            begin_generation,
            self.job,
            self.data.plan,
            nodes.plan,
            total_of(self.backend.capacity()),
            self.story,
            decision=decision,
            began=nodes.words if decision else "",
            prediction=nodes.prediction if decision else None,
            placement=nodes.placement if decision else (),
            wall_clock=self.edge.wall_clock,
            clock=self._clock,
        )
        if not (yield from self._disk.insist(begin, self._serve_while_disk_is_full)):
            return False
        self._stop_request = self._stop_request or self._queued_job.stop_request
        return True

    def _opened(self, nodes: FirstPlan) -> Phase[tuple[LedgerStore, GenerationRun] | None]:
        """Open the generation's ledger, and prepare what runs over it; None where that has no room on the disk, and the job is to end."""
        found: list[tuple[LedgerStore, GenerationRun]] = []

        def open_ledger() -> None:
            store = LedgerStore(self.job.ledger(), is_synced=self.edge.is_synced)
            try:
                found.append((store, self._run_over(store, nodes)))
            except BaseException:
                store.close()
                raise

        is_open = yield from self._disk.insist(open_ledger, self._serve_while_disk_is_full)
        return found[0] if is_open else None

    def _run_over(self, store: LedgerStore, nodes: FirstPlan) -> GenerationRun:
        job, brain = self.job, self.brain
        shards = ShardService(
            store,
            self.data.plan,
            policy=self.edge.cadence.leases,
            wait_seconds=self.edge.cadence.wait_seconds,
            slow_start_minibatches=SLOW_START_MINIBATCHES,
            story=self.story,
            id_kinds=self.data.ids.kinds,
        )
        return GenerationRun(
            job.id,
            self._recipe,
            shards,
            self.backend,
            Fleet(nodes.plan, total_of(self.backend.capacity()), placement=nodes.placement),
            self.edge,
            outbox=self._outbox,
            disk=self._disk,
            clock=self._clock,
            export_directory=job.export,
            checkpoints=self.checkpoints,
            story=self.story,
            stop_request=self._stop_request,
            stop_reason=self._stop_reason,
            go_back=GoingBack(job),
            brain=brain,
            autoscaler=Autoscaler(
                job=job.id,
                mode=autoscale_of(self._recipe),
                heard=nodes.number,
                began=nodes.words,
                prediction=nodes.prediction,
            ),
            show=self._show,
            profiles=[ProfileLog(job.directory), *([brain] if brain is not None else [])],
        )

    # --- the end ------------------------------------------------------------------------------------------------------------

    def _ended(self, run: GenerationRun, outcome: Outcome) -> Phase[Outcome]:
        """Write the job's result, and tell the brain."""
        result = Result(
            state=self._end_state(outcome),
            ended_at=self.edge.wall_clock(),
            message=outcome.message,
            hint=outcome.hint,
            traceback=outcome.traceback,
            export=str(self.job.export) if run.exporting.exported is not None else None,
            status=to_builtins(run.status()),
        )
        yield from self._tell_brain(self._written(result), run.fleet)
        return outcome

    def _stopped_on_a_full_disk(self) -> Phase[Outcome]:
        """End a job that was stopped while there was no room for what this master was to begin with, with the nodes that an earlier one has
        left: a last checkpoint of them can't be taken, as it isn't known what they have done since the ledger was written."""
        self._queued_job.stop_request = self._stop_request
        yield from end_generation(self.job, self.backend, self._clock, self._queued_job.serve)
        return (yield from self._stopped())

    def _stopped(self) -> Phase[Outcome]:
        """Write the result of a job that was stopped while it waited, without a node."""
        asked = self._queued_job.stop_request
        outcome = Outcome("stopped", self._stop_reason() if asked is None else asked.reason)
        state = self._end_state(outcome)
        status = msgspec.structs.replace(self._queued_job.status, state=state, message=outcome.message)
        result = Result(state, self.edge.wall_clock(), outcome.message, status=to_builtins(status))
        try:
            self.story.close()
        except DlroverLiteError as error:
            print(error, flush=True)
        yield from self._tell_brain(self._written(result), None)
        return outcome

    def _end_state(self, outcome: Outcome) -> EndState:
        """Return the state of a job that has ended so: one that is to go on later is suspended, however it was stopped."""
        return "suspended" if outcome.state == "stopped" and self.job.record().suspends else outcome.state

    def _written(self, result: Result) -> Result:
        """Write the job's result, and return it as it stands then: another's word may have been first."""
        return result if self.job.write_result(result) else self.job.result() or result

    def _tell_brain(self, result: Result, fleet: Fleet | None) -> Phase[None]:
        """Tell how the job has ended. Nothing is waited for that isn't there: the brain finds the result in the job's files, too."""
        if self.brain is None:
            return
        status = result.status or {}
        end = EndJob(
            self.job.id,
            result.state,
            result.ended_at,
            samples=status.get("samples") or self.brain.samples,
            message=result.message,
            outcome=outcome_of(status),
        )
        self.awaits_brain = True
        yield from self.brain.end(end, fleet, lambda _: None)
        self.awaits_brain = False

    # --- while no generation runs -----------------------------------------------------------------------------------------

    def _queued(self, status: Status) -> QueuedJob:
        mode = autoscale_of(self._recipe)
        return QueuedJob(self._outbox, self.story, status, mode=mode, stop=self.edge.stop, show=self._show)

    def _serve_while_disk_is_full(self, requests: list[Request]) -> bool:
        asked = serve_meanwhile(requests, self._outbox, self._answer_while_disk_is_full, self._disk.waits)
        self._stop_request = asked or self._stop_request
        return self._stop_request is not None or self.edge.stop()

    def _answer_while_disk_is_full(self, request: Request) -> msgspec.Struct | None:
        match request.body:
            case StatusRequest():
                return msgspec.structs.replace(
                    self._queued_job.status, message=self._disk.waits, waits=self._disk.waits
                )
            case StoryRequest(subject):
                return self.story.answer(subject, [node.id for node in self._queued_job.status.nodes])
            case _:
                return None

    def _stop_reason(self) -> str:
        return self.job.record().stop_reason or "stopped by request"

    def _tell(self, line: str) -> None:
        self.story.node("master", line)

    def _tell_decision(self, line: str) -> None:
        self.story.node("master", line, "decision")

    def _show(self, status: Status) -> None:
        with suppress(JobError):  # on a full disk the job goes on
            self.job.write_status(to_builtins(status))
