"""The master's loop: drain requests, apply them, commit once, reply; and between, reconcile the nodes with the backend."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dlrover_lite.core.errors import BackendError, DlroverLiteError, JobError, ModelError
from dlrover_lite.core.metrics import BinaryMetrics
from dlrover_lite.jobs.store import Beginning
from dlrover_lite.master.answer_points import AnswerPoints
from dlrover_lite.master.autoscale.autoscaler import Autoscaler
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.autoscale.executor import executor_of
from dlrover_lite.master.checkpoints.checkpoint_orders import CheckpointOrders, checkpoints_of
from dlrover_lite.master.checkpoints.checkpoints import OFF
from dlrover_lite.master.checkpoints.restore import GoingBack
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.full_disk import FullDisk, serve_meanwhile
from dlrover_lite.master.job_state_store import JobStateStore
from dlrover_lite.master.nodes.fleet import FailJob, Fleet
from dlrover_lite.master.nodes.reconciler import Reconciler
from dlrover_lite.master.nodes.unknown_nodes import UnknownNodes
from dlrover_lite.master.outcome import Outcome, answer_in_between, answer_late, failed_by, stopped_amid
from dlrover_lite.master.profiling.job_end import EvaluationPauses, PlanRates, note_evaluations
from dlrover_lite.master.profiling.profile_intervals import Profiling, Sink
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.master.slots.slot_control import SlotControl, Wish
from dlrover_lite.master.status import describe
from dlrover_lite.master.work.evaluation_rounds import OpenRounds
from dlrover_lite.master.work.exporting import Exporting
from dlrover_lite.master.work.progress import Evaluations, Progress, metrics_of
from dlrover_lite.master.work.shards import Answer, ShardService
from dlrover_lite.protocol.messages import (
    Ack,
    AutoscaleRequest,
    CheckpointRequest,
    Exported,
    ExportFailed,
    Finished,
    Heartbeat,
    Hello,
    Lease,
    LeaseRequest,
    NodeFailed,
    PsOrders,
    PsReport,
    SlotsRequest,
    Status,
    StatusRequest,
    StopRequest,
    StoryRequest,
    TopologyRequest,
    Wait,
    Welcome,
)
from dlrover_lite.protocol.nodes import Backend
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.frames import NOT_UNDERSTOOD, Failure, Request
from dlrover_lite.transport.server import Server

__all__ = ["Master", "Outcome"]

RECONCILE_SECONDS = 0.1
REMEMBER_SECONDS = 1.0
SHOW_SECONDS = 2.0
"""Seconds between two writings of the status for those who can't ask any more."""
STILL_READING_SECONDS = 10.0
"""Seconds after which a worker that waits for parameter servers is told that they read a checkpoint."""
_BY_REQUEST = "stopped by request"


class Master:
    """One job's master, over an open shard service, server and backend."""

    def __init__(
        self,
        job: str,
        recipe: Recipe,
        shards: ShardService,
        server: Server,
        backend: Backend,
        fleet: Fleet,
        *,
        export_directory: Path,
        checkpoints: str = "",
        disk: FullDisk | None = None,
        story: EventLog,
        stop: Callable[[], bool],
        stop_reason: Callable[[], str] = lambda: _BY_REQUEST,
        go_back: GoingBack | None = None,
        brain: BrainLink | None = None,
        autoscaler: Autoscaler | None = None,
        show: Callable[[Status], None] = lambda _: None,
        profiles: list[Sink] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the master. ``fleet`` is the plan to launch; what an earlier master of the job has left in the ledger goes before it.
        ``checkpoints``: where they are kept, a directory or URL; empty: nowhere. ``stop_reason`` is asked once ``stop`` says so; ``show``
        is given the status now and then, ``profiles`` what is measured. ``go_back`` notes with which checkpoint the job goes on when
        parameters are lost, or raises JobError. ``autoscaler``: None: it is off. ``disk``: what ``shards`` insist by."""
        self.job = job
        self.recipe = recipe
        self.shards = shards
        self.outcome: Outcome | None = None
        self.beginning: Beginning | None = None
        """Beginning of another generation, in which the job goes on from another checkpoint; this one ends."""
        self.story = story
        self.enforcement = backend.enforcement()
        self._server = server
        self._stop = stop
        self._stop_reason = stop_reason
        self._show = show
        self._clock, self.wall_now = clock, wall_clock
        """Seconds since the epoch."""
        self.go_back = go_back
        self.brain = brain
        self._waiting: dict[int, Request] = {}
        self._waits_since: dict[str, float] = {}
        self._strangers = UnknownNodes(story)
        now = clock()
        self._reconcile_at = self._remember_at = self._show_at = now
        window = max(20_000, shards.plan.samples * shards.plan.epochs // 20)
        bad_share = getattr(recipe.data, "max_bad_share", 0.0)
        self.progress = Progress(window_samples=window, max_bad_share=bad_share, began=now)
        self.facts = JobStateStore(shards, wall_clock)
        self.evaluations = Evaluations(None if self.facts.generation.only_parameters else shards.plan.samples)
        self.rounds = OpenRounds(shards, self.evaluations, say=lambda line: story.node("master", line))
        self.servers = ParameterServers(
            self.facts.slots(),
            shards,
            story,
            keep=self.facts.keep_slots,
            wall_clock=wall_clock,
            restore=self.facts.restore(),
            keep_restore=self.facts.keep_restore,
        )
        self.disk = disk or FullDisk(
            clock=clock,
            free=lambda _: 0,
            tell=lambda line: story.node("master", line),
            meanwhile=self._while_disk_is_full,
        )
        self.exporting = Exporting(
            recipe,
            str(export_directory),
            shards,
            self.servers,
            self.facts,
            self.evaluations,
            clock=clock,
            wall_clock=wall_clock,
            free=self.disk.free,
        )
        self.reconciler = Reconciler(
            self.facts.fleet() or fleet,
            backend,
            endpoint=server.endpoint,
            health=recipe.health,
            story=story,
            servers=self.servers,
            keep=self.facts.keep_fleet,
            on_gone=self._worker_gone,
            on_failure=self._node_has_failed_the_job,
            on_refusal=self._launch_refused,
            work_is_left=lambda: not shards.finished,
            clock=clock,
        )
        self.slots = SlotControl(self.servers, self.reconciler, shards, total=recipe.resources.total)
        self.executor = executor_of(self, autoscaler, wall_clock)
        self.stopping = self.facts.stopping()
        """Why the job is to stop, while it takes a last checkpoint."""
        if self.stopping:
            self.reconciler.finish()
        self.failing = self.facts.failing(Outcome)
        """How the job is going to fail, while it takes a last checkpoint."""
        self._samples_at_start = shards.consumed_samples
        self.checkpoints = checkpoints_of(self, checkpoints, clock, wall_clock)
        self._prompting: CheckpointOrders | None = None
        if self.checkpoints is not None:
            self._prompting = CheckpointOrders(self.checkpoints, self.servers, server, shards.commit)
        self.plan_rates, self.evaluation_pauses = PlanRates(), EvaluationPauses()
        sinks = [*(profiles or []), self.plan_rates]
        self.profiling = Profiling(job, recipe, shards, sinks, clock=clock, wall_clock=wall_clock)
        self._remember()
        self.disk.meanwhile = self._while_disk_is_full

    @property
    def fleet(self) -> Fleet:
        return self.reconciler.fleet

    def _remember(self) -> None:
        """Restore what an earlier master of this job knew."""
        if not self.facts.taken_over and not self.facts.generation.number:
            return
        if self.facts.taken_over:
            self.profiling.taken_over("the master was killed")
            self.story.node("master", f"was killed and is started again (restart {self.facts.restarts})")
        self.exporting.remember()
        self.facts.restore_progress(self.progress, now=self._clock())
        self.rounds.open = self.shards.restore_evaluations(self.evaluations)
        for node in self.fleet.by_id.values():
            if node.role == "worker" and node.state == "ended":
                self.shards.worker_died(node.id)
        self.outcome = self.facts.outcome(Outcome)

    def now(self) -> float:
        return self._clock()

    def run(self) -> Outcome | None:
        """Run until the job has ended, or (None) is to go on as another generation, which is noted; and no node runs any more."""
        if self.outcome is None:
            self._guarded(self.reconciler.begin)
        while self.outcome is None and self.beginning is None:
            self._turn()
            if (asked := self.disk.asked_to_stop) is not None:
                self.disk.asked_to_stop = None
                self._stop_for(asked)
            if self._stop() and self.outcome is None and not self.stopping:
                self._begin_to_stop(self._stop_reason())
            self._guarded(self._stop_in_time)
        if self.outcome is None:
            self._guarded(self._end_generation)
        if self.outcome is None:
            return None
        self._wind_down()
        return self.outcome

    def _end_generation(self) -> None:
        """End all nodes of the generation: nothing of it may reach the next one."""
        if self.checkpoints is not None:
            self.checkpoints.end()
        self.reconciler.end_all(meanwhile=self._answer_in_between)
        if self._prompting is not None:
            self._prompting.close()
        self._answer_in_between()
        self.disk.insist(self.story.flush)

    def _answer_in_between(self) -> None:
        for request in self._server.receive(0.0):
            if isinstance(request.body, StopRequest):
                self._end(Outcome("stopped", request.body.reason))
            if (body := answer_in_between(request, self._try)) is not None:
                self._server.reply(request, body)

    def _while_disk_is_full(self, seconds: float) -> bool:
        """Serve requests while the disk is full. Return whether the job is to end."""
        asked = serve_meanwhile(self._server, seconds, self._try, self.disk.waits)
        self.disk.asked_to_stop = asked or self.disk.asked_to_stop
        self._show_in_time()
        return self.disk.asked_to_stop is not None or self._stop()

    def _turn(self) -> None:
        requests = self._server.receive(RECONCILE_SECONDS)
        try:
            owners = self.servers.state.owners
            answers = [(request, self._try(request)) for request in requests]
            points = AnswerPoints(
                leases=any(isinstance(body, Lease) for _, body in answers),
                moved=bool(owners) and self.servers.state.owners != owners,
            )
            points.decided()
            self.shards.commit()
            points.committed()
        except DlroverLiteError as error:
            self._end(Outcome("failed", error.message, error.hint))
            return
        for request, body in answers:
            if body is not None:
                self._server.reply(request, body)
        points.answered()
        self._answer_waiting()
        self.rounds.close()
        if self.beginning is None:
            if (now := self._clock()) >= self._reconcile_at:
                self._reconcile_at = now + RECONCILE_SECONDS
                self._guarded(self._reconcile)
            elif self.checkpoints is not None and self.checkpoints.has_news:
                self._guarded(self._take_cuts)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do something; an error that nobody else takes ends the job."""
        try:
            action()
        except DlroverLiteError as error:
            self._end(Outcome("failed", error.message, error.hint))

    # --- requests -------------------------------------------------------------------------------------------------------

    def _try(self, request: Request) -> msgspec.Struct | None:
        return self._server.attempt(request, self._handle)

    def _handle(self, request: Request) -> msgspec.Struct | None:
        """Handle a request. Return the reply, to be sent after the commit; None when there is none yet."""
        if (refused := self._strangers.refuse(request.body, self.fleet)) is not None:
            return None if isinstance(request.body, Heartbeat) else refused
        match request.body:
            case LeaseRequest() as body:
                return self._lease(body)
            case StatusRequest():
                return self.status()
            case PsReport() as report:
                return self._report(report, request)
            case Heartbeat(node, doing, seconds, exported_rows):
                self.reconciler.heard(node, doing, seconds)
                self.exporting.heard(node, exported_rows)
                return None
            case Hello(node, role, endpoint):
                self.reconciler.hello(node, endpoint)
                if role == "worker":
                    self.shards.worker_joined(node)
                self.servers.begin(self.fleet)
                return Welcome(self.job, self.recipe)
            case TopologyRequest(node):
                if (topology := self.servers.topology(self.fleet)) is None:
                    return self._have_wait(node, request)
                return topology
            case NodeFailed() as failed:
                self._node_failed(failed)
                return Ack()
            case Exported() as exported:
                self.exporting.take(exported)
                return Ack()
            case wish if isinstance(wish, Wish):
                return self.executor.by_hand(wish)
            case AutoscaleRequest() as asked:
                return self.executor.answer(asked)
            case SlotsRequest(hottest):
                return self.servers.slots(hottest, self.fleet)
            case StoryRequest(subject):
                return self.story.answer(subject, self.fleet.by_id)
            case CheckpointRequest():
                return self.checkpoints.request() if self.checkpoints else OFF
            case ExportFailed() as failed:
                self._export_failed(failed)
                return Ack()
            case StopRequest() as asked:
                self._stop_for(asked)
                return Ack()
            case other:
                return Failure(NOT_UNDERSTOOD, f"no answer is known to {type(other).__name__}")

    def _stop_for(self, asked: StopRequest) -> None:
        self._judge_failure()
        if asked.now:
            self._end(Outcome("stopped", asked.reason))
        else:
            self._begin_to_stop(asked.reason)

    def _export_failed(self, failed: ExportFailed) -> None:
        """Try the export again, and save what was trained meanwhile, if that can be. Once it is saved, only a full disk is waited for."""
        if self.exporting.failed(failed):
            self.story.node("master", self.exporting.waits)
        if self.checkpoints is None:
            return
        if self.checkpoints.misses(0):
            self.checkpoints.request()
        elif not failed.disk_is_full:
            self._fail(Outcome("failed", failed.message, failed.hint))

    def _report(self, report: PsReport, request: Request) -> msgspec.Struct:
        self.reconciler.heard(report.node)
        self.profiling.served(report)
        answer = self.servers.report(report, self.fleet)
        if isinstance(answer, PsOrders) and self._prompting is not None:
            self._prompting.heard(report, request)
        return answer

    def _lease(self, request: LeaseRequest) -> msgspec.Struct:
        metrics = metrics_of(request.report)
        failed = None if request.failed is None else (request.failed, request.error)
        samples_before = self.shards.consumed_samples
        answer = self.shards.report_and_lease(
            request.node,
            request.token,
            request.consumed,
            failed,
            give_back=request.give_back,
            want=request.want,
            holding=request.holding,
            now=self._clock(),
        )
        self._take_report(request, metrics, answer)
        self.profiling.worked(request, answer, samples=self.shards.consumed_samples - samples_before)
        work = answer.work
        if isinstance(work, Lease) and (node := self.fleet.by_id.get(request.node)) is not None:
            work = msgspec.structs.replace(work, cores=node.resources.cores)
        if isinstance(work, Lease) and work.kind == "eval":
            self.rounds.opened(work.index)
        if isinstance(work, Finished):
            self.rounds.close()  # by this report: the export says what the last evaluation has found
            # who doesn't ask is not sent away: it will ask, and may be needed for the export
            return (self.exporting.task(request.node) or work) if request.want else Ack()
        return work

    def _take_report(self, request: LeaseRequest, metrics: BinaryMetrics | None, answer: Answer) -> None:
        report, result = request.report, answer.consumed
        if report is None:
            return
        self.progress.add_lines(report)
        whole = result.accepted and result.newly == sum(stop - start for start, stop in request.consumed)
        if result.of is not None and result.of.kind == "eval":
            if whole and request.consumed:
                state = self.evaluations.add(result.of.index, metrics, report.unknown_ids)
                self.shards.put_metrics(result.of, state)
        elif result.of is not None and whole:
            self.progress.add(request.node, report, metrics, now=self._clock())

    def _node_failed(self, failed: NodeFailed) -> None:
        if self.outcome is not None or self.beginning is not None:
            return
        if failed.because and self.stopping:
            self._end(stopped_amid(failed, self.stopping))
        elif failed.because and self.go_back is not None:
            self._begin_anew(failed, self.go_back)
        else:
            print(f"{failed.node}: {failed.traceback}", flush=True)
            self._fail(failed_by(failed, self.job))

    def _begin_anew(self, failed: NodeFailed, go_back: GoingBack) -> None:
        """Go back to a checkpoint, or end the job if there is none."""
        try:
            self.beginning, said = go_back(failed, self.facts.generation)
        except JobError as error:
            self._end(Outcome("failed", error.message, error.hint))
        else:
            for line in [*said, f"goes back to checkpoint {self.beginning.cut}: {self.beginning.why}"]:
                self.story.node("master", line)

    def _have_wait(self, node: str, request: Request) -> Wait | None:
        """Let a worker wait until there is a slot map. While a checkpoint is read, which may take longer than a worker waits in vain, it is
        told so now and then."""
        now = self._clock()
        if self.servers.restore is not None and now - self._waits_since.setdefault(node, now) >= STILL_READING_SECONDS:
            self._waits_since[node] = now
            self._waiting.pop(request.session, None)
            return Wait(0.0)
        self._waiting[request.session] = request
        return None

    def _answer_waiting(self) -> None:
        """Answer those who wait for the map that has been committed."""
        if self._waiting and (topology := self.servers.topology(self.fleet)) is not None:
            for request in self._waiting.values():
                self._server.reply(request, topology)
            self._waiting.clear()

    # --- nodes ----------------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        self.reconciler.turn()
        if self.outcome is None:
            self.slots.turn()
            self.executor.turn()
            self._take_cuts()
        self.profiling.turn(self)
        self.disk.interrupted = False
        note_evaluations(self)
        if self.brain is not None:
            self.brain.keep_level(self.profiling.level(self))
            self.brain.turn(self.fleet, self.shards.consumed_samples)
        self._judge()
        self.disk.insist(self.story.flush)
        if (now := self._clock()) >= self._remember_at:
            self._remember_at = now + REMEMBER_SECONDS
            self.facts.keep_progress(self.progress)
            self.shards.commit()
        self._show_in_time()

    def _show_in_time(self) -> None:
        if (now := self._clock()) >= self._show_at:
            self._show_at = now + SHOW_SECONDS
            self._show(self.status())

    def _take_cuts(self) -> None:
        if self._prompting is not None:
            self._prompting.turn(self.fleet)

    def _worker_gone(self, node: str) -> None:
        self.shards.worker_died(node)
        self.shards.commit()
        self.progress.forget(node)
        self.exporting.gone(node)

    def _node_has_failed_the_job(self, failure: FailJob) -> None:
        story = "".join(f"\n  {line}" for line in self.story.last_words(failure.nodes))
        message = failure.message + (f"\nIts story:{story}" if story else "")
        self._fail(Outcome("failed", message, failure.hint.replace("JOB", self.job)))

    def _launch_refused(self, error: BackendError) -> None:
        if not self._stop():
            raise error
        self._begin_to_stop(self._stop_reason())  # the backend has been told before us

    # --- the end --------------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Judge whether the job has ended."""
        self._judge_failure()
        if self.outcome is not None:
            return
        if self.failing is None and self.shards.finished and self.exporting.done:
            self._end(Outcome("succeeded"))
        elif not self.stopping and not any(node.role == "worker" for node in self.fleet.running):
            # all have left as if there were nothing to do: the last one was to export
            self.reconciler.one_more_worker()

    def _judge_failure(self) -> None:
        """Fail the job if it can't succeed any more."""
        failure = self.shards.failure or self.progress.judge_bad_lines(at_end=self.shards.finished)
        if failure is not None:
            trace = failure.user_traceback if isinstance(failure, ModelError) else ""
            outcome = Outcome("failed", failure.message, failure.hint, trace)
            self._fail(outcome, keep=not self.shards.suspects_parameters)

    def _fail(self, outcome: Outcome, *, keep: bool = True) -> None:
        """Fail the job: after a last checkpoint if there is something to ``keep``, so that what was trained isn't lost with it."""
        if self.outcome is not None or self.failing is not None:
            return
        self.failing = outcome
        if keep and self.checkpoints is not None and self.checkpoints.misses(self._samples_at_start):
            self.facts.keep_failing(outcome)
            self._begin_to_stop(outcome.message)
        else:
            self._end(self._failed())

    def _failed(self) -> Outcome:
        """Return how the job fails, with what is missing."""
        assert self.failing is not None
        missing = self.checkpoints.missing() if self.checkpoints is not None else ""
        missing = f"The job has ended {missing}." if missing else ""
        return msgspec.structs.replace(self.failing, hint="\n".join(filter(None, (self.failing.hint, missing))))

    def _begin_to_stop(self, reason: str) -> None:
        """Begin to stop: what runs goes on until a last checkpoint is complete; nothing is started any more."""
        if not self.stopping and self.outcome is None:
            self.stopping = reason
            self.facts.keep_stopping(reason)
            self.reconciler.finish()

    def _stop_in_time(self) -> None:
        if not self.stopping or self.outcome is not None:
            return
        missing = ""
        if self.checkpoints is not None:
            self.checkpoints.stop()
            if not self.checkpoints.may_stop(self.fleet):
                return
            missing = self.checkpoints.missing()
        if self.failing is not None:
            self._end(self._failed())
            return
        self._end(Outcome("stopped", self.stopping + (f", {missing}" if missing else "")))

    def _end(self, outcome: Outcome) -> None:
        """End the job; the first word counts."""
        if self.outcome is None:
            if self.failing is not None and outcome.state == "stopped":
                outcome = self._failed()  # before its last checkpoint was complete
            self.outcome = outcome
            self.disk.given_up = True  # its result doesn't wait for room
            if self.checkpoints is not None:
                self.checkpoints.end()
            self.facts.keep_outcome(outcome)
            self.reconciler.finish()

    def _wind_down(self) -> None:
        self.reconciler.finish()
        failed = self.outcome is not None and self.outcome.state == "failed"
        self.reconciler.wind_down(failed=failed, meanwhile=self._answer_all_late)
        self._commit_late()
        if self._prompting is not None:
            self._prompting.close()
        try:
            self.story.close()
        except DlroverLiteError as error:
            print(error, flush=True)

    def _answer_all_late(self) -> None:
        for request in self._server.receive(0.0):
            if (body := answer_late(request, self._try)) is not None:
                self._commit_late()
                self._server.reply(request, body)

    def _commit_late(self) -> None:
        """Commit after the end; a ledger that can't be written must not take the job's result with it."""
        try:
            self.shards.commit()
        except DlroverLiteError as error:
            print(error, flush=True)

    def status(self) -> Status:
        return describe(self)
