"""One generation of a job: take requests, decide, commit once, do what follows, reply; between, reconcile the nodes with the backend."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from dlrover_lite.core.errors import BackendError, DiskFull, DlroverLiteError, JobError, ModelError
from dlrover_lite.data.index_store import index_piece
from dlrover_lite.jobs.store import Beginning
from dlrover_lite.master.answer_points import AnswerPoints
from dlrover_lite.master.autoscale.autoscaler import Autoscaler
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.autoscale.executor import executor_of
from dlrover_lite.master.cadence import pause_seconds
from dlrover_lite.master.checkpoints.checkpoints import OFF, checkpoints_of
from dlrover_lite.master.checkpoints.restore import POLL_SECONDS, GoingBack
from dlrover_lite.master.edge import Edge
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.full_disk import FullDisk, serve_meanwhile, tellable
from dlrover_lite.master.job_state_store import (
    FAILING,
    FLEET,
    OUTCOME,
    PROGRESS,
    SLOTS,
    STOPPING,
    JobStateStore,
)
from dlrover_lite.master.nodes.fleet import FailJob, Fleet
from dlrover_lite.master.nodes.reconciler import END_SECONDS, FAILED_GRACE_SECONDS, GRACE_SECONDS, Reconciler
from dlrover_lite.master.nodes.unknown_nodes import UnknownNodes
from dlrover_lite.master.outcome import Outcome, answer_in_between, answer_late, failed_by, stopped_amid
from dlrover_lite.master.phases import Outbox, Phase
from dlrover_lite.master.profiling.host_speeds import HostSpeeds
from dlrover_lite.master.profiling.job_end import EvaluationPauses, PlanRates, note_evaluations
from dlrover_lite.master.profiling.profile_intervals import Profiling, Sink
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.master.slots.slot_control import SlotControl
from dlrover_lite.master.slots.topology_requests import TopologyRequests
from dlrover_lite.master.status import describe
from dlrover_lite.master.transaction import Transaction
from dlrover_lite.master.work.evaluation_rounds import OpenRounds
from dlrover_lite.master.work.exporting import Exporting
from dlrover_lite.master.work.lease_requests import LeaseRequests
from dlrover_lite.master.work.progress import Evaluations, Progress
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.protocol.messages import (
    Ack,
    Exported,
    ExportFailed,
    Heartbeat,
    Hello,
    IndexPiece,
    IndexRequest,
    Lease,
    LeaseRequest,
    NodeFailed,
    PsOrders,
    PsReport,
    TopologyRequest,
    Welcome,
)
from dlrover_lite.protocol.nodes import Backend
from dlrover_lite.protocol.questions import (
    AutoscaleRequest,
    CheckpointRequest,
    SlotsRequest,
    Status,
    StatusRequest,
    StopRequest,
    StoryRequest,
    Wish,
)
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.frames import NOT_UNDERSTOOD, Failure, Request

__all__ = ["GenerationRun", "Outcome"]

_BY_REQUEST = "stopped by request"


class GenerationRun:
    """A generation of one job, over an open shard service and a backend: it never waits, but yields (``steps``)."""

    def __init__(
        self,
        job: str,
        recipe: Recipe,
        shards: ShardService,
        backend: Backend,
        fleet: Fleet,
        edge: Edge,
        *,
        outbox: Outbox,
        disk: FullDisk,
        clock: Callable[[], float],
        export_directory: Path,
        checkpoints: str = "",
        story: EventLog,
        stop_request: StopRequest | None = None,
        stop_reason: Callable[[], str] = lambda: _BY_REQUEST,
        go_back: GoingBack,
        autoscaler: Autoscaler,
        brain: BrainLink | None = None,
        show: Callable[[Status], None] = lambda _: None,
        profiles: list[Sink] | None = None,
    ) -> None:
        """Prepare the generation. Raises DiskFull: nothing is done then.

        ``fleet`` is the plan to launch; what an earlier master of the job has left in the ledger goes before it. ``clock``: the time of the
        step, in seconds. ``checkpoints``: where they are kept, a directory or URL; empty: nowhere. ``stop_request`` came before;
        ``stop_reason`` is asked once ``edge.stop`` says so. ``show`` is given the status now and then, ``profiles`` what is measured.
        ``go_back`` notes with which checkpoint the job goes on when parameters are lost, or raises JobError."""
        self.job, self.recipe, self.shards, self.story = job, recipe, shards, story
        self.brain, self.go_back, self.disk = brain, go_back, disk
        self.outcome: Outcome | None = None
        self.beginning: Beginning | None = None
        """Beginning of another generation, in which the job goes on from another checkpoint; this one ends."""
        self.enforcement = backend.enforcement()
        self.wall_now = wall_clock = edge.wall_clock
        self._edge, self._outbox, self.now = edge, outbox, clock
        self._stop_reason, self._show = stop_reason, show
        self._strangers = UnknownNodes(story)
        now = clock()
        self._reconcile_at = self._remember_at = self._show_at = now
        self._reconciled_at = -math.inf
        self._put_off = False
        """A reconciliation was due in the last step, and gave way to requests."""
        self._answered: AnswerPoints | None = None
        """What there was among the answers that the last step has sent."""
        window = max(20_000, shards.plan.samples * shards.plan.epochs // 20)
        bad_share = getattr(recipe.data, "max_bad_share", 0.0)
        self.progress = Progress(window_samples=window, max_bad_share=bad_share, began=now)
        self.facts = JobStateStore(shards.store, wall_clock)
        self.evaluations = Evaluations(None if self.facts.generation.only_parameters else shards.plan.samples)
        self.rounds = OpenRounds(shards, self.evaluations, say=lambda line: story.node("master", line))
        self.servers = ParameterServers(self.facts, shards, story, wall_clock, url_for_nodes=edge.url_for_nodes)
        self._transaction = Transaction(
            self.facts, disk, serve=self._serve_while_disk_is_full, on_error=self._fail_at_once
        )
        self._asked_to_stop = stop_request
        """Request to end the job that came before, or while the disk was full, and nobody has taken up yet; None: none did."""
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
            url_for_nodes=edge.url_for_nodes,
        )
        self.reconciler = self._reconciler(backend, fleet)
        speeds = HostSpeeds()
        self.slots = SlotControl(self.servers, self.reconciler, shards, recipe.resources.total, self.facts, speeds)
        self.checkpoints = checkpoints_of(self, checkpoints, edge.io, outbox.reply)
        self.executor = executor_of(self, autoscaler, wall_clock)
        self.stopping = self.facts.get(STOPPING) or ""
        """Why the job is to stop, while it takes a last checkpoint."""
        if self.stopping:
            self.reconciler.finish()
        self.failing = self.facts.get(FAILING)
        """How the job is going to fail, while it takes a last checkpoint."""
        self._samples_at_start = shards.consumed_samples
        self.plan_rates, self.evaluation_pauses = PlanRates(), EvaluationPauses()
        sinks = [*(profiles or []), self.plan_rates, speeds]
        self.profiling = Profiling(
            job, recipe, shards, sinks, clock=clock, wall_clock=wall_clock, pace=edge.pace, enforcement=self.enforcement
        )
        self._topology = TopologyRequests(self.servers, outbox.reply, clock=clock)
        self._leases = LeaseRequests(
            shards, self.progress, self.evaluations, self.rounds, self.profiling, self.exporting, clock=clock
        )
        self._remember()

    def _reconciler(self, backend: Backend, fleet: Fleet) -> Reconciler:
        return Reconciler(
            self.facts.get(FLEET) or fleet,
            backend,
            endpoint=self._edge.endpoint,
            health=self.recipe.health,
            story=self.story,
            servers=self.servers,
            facts=self.facts,
            on_gone=self._worker_gone,
            on_failure=self._node_has_failed_the_job,
            on_refusal=self._launch_refused,
            work_is_left=lambda: not self.shards.finished,
            clock=self.now,
            cadence=self._edge.cadence,
        )

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
        self.facts.restore_progress(self.progress, now=self.now())
        self.rounds.open = self.shards.restore_evaluations(self.evaluations)
        for node in self.fleet.by_id.values():
            if node.role == "worker" and node.state == "ended":
                self.shards.worker_died(node.id)
        self.outcome = self.facts.get(OUTCOME)

    # --- its phases -----------------------------------------------------------------------------------------------------

    def steps(self) -> Phase[Outcome | None]:
        """Run until the job has ended, or (None) is to go on as another generation, which is noted; and no node runs any more."""
        if self.outcome is None:
            self._guarded(self.reconciler.begin)
            yield from self._transaction.settle()
        while self.outcome is None and self.beginning is None:
            yield from self._turn((yield self._wakes_at()))
        if self.outcome is None:
            yield from self._end_nodes()
        if self.outcome is None:
            return None
        yield from self._wind_down()
        return self.outcome

    def _wakes_at(self) -> float:
        """Return when there is something to do, though nobody asks for anything."""
        self._reconcile_at = self._reconciled_at + pause_seconds(self, self._edge.cadence)
        return self.now() if self._has_news() else self._reconcile_at

    def _has_news(self) -> bool:
        return self.checkpoints is not None and self.checkpoints.has_news

    def _turn(self, requests: list[Request]) -> Phase[None]:
        """Handle requests. What else is due gives way to them once: who asks is answered first."""
        if self._answered is not None:
            self._answered.answered()
            self._answered = None
        is_due = self.now() >= self._reconcile_at or self._has_news()
        if requests:
            yield from self._handle_all(requests)
        if is_due and self.beginning is None and (not requests or self._put_off):
            is_due = False
            if self.now() >= self._reconcile_at:
                self._reconciled_at = self.now()
                self._guarded(self._reconcile)
            else:
                self._guarded(self._take_cuts)
            yield from self._transaction.settle()
        self._put_off = is_due
        self._heed_stop()
        self._guarded(self._stop_in_time)
        yield from self._transaction.settle()

    def _handle_all(self, requests: list[Request]) -> Phase[None]:
        owners = self.servers.state.owners
        try:
            answers = [(request, self._try(request)) for request in requests]
        except DlroverLiteError as error:
            self._fail_at_once(error)
            return
        points = AnswerPoints(
            leases=any(isinstance(body, Lease) for _, body in answers),
            moved=bool(owners) and self.servers.state.owners != owners,
        )
        points.decided()
        is_written = yield from self._transaction.settle()
        if not is_written and self.outcome is not None:
            return
        points.committed()
        map_is_written = self.facts.is_written(SLOTS)
        for request, body in answers:
            if is_written and isinstance(body, PsOrders):
                self.servers.are_written(body)
            told = body if is_written else tellable(request, body, self.servers.as_written, map_is_written)
            if told is not None:
                self._outbox.reply(request, told)
        self._answered = points
        if map_is_written:
            self._topology.answer_waiting(self.fleet)
        self.rounds.close()

    def _serve_while_disk_is_full(self, requests: list[Request]) -> bool:
        """Serve requests while the disk is full. Return whether the job is to end."""
        asked = serve_meanwhile(requests, self._outbox, self._try, self.disk.waits)
        self._asked_to_stop = asked or self._asked_to_stop
        self._show_in_time()
        return self._asked_to_stop is not None or self._edge.stop()

    def _heed_stop(self) -> None:
        """Begin to stop, if somebody has asked for it otherwise than by a request that is answered at once."""
        if self._asked_to_stop is not None:
            asked, self._asked_to_stop = self._asked_to_stop, None
            self._stop_for(asked)
        if self._edge.stop() and self.outcome is None and not self.stopping:
            self._begin_to_stop(self._stop_reason())

    def _end_nodes(self) -> Phase[None]:
        """End all nodes of the generation: nothing of it may reach the next one."""
        if self.checkpoints is not None:
            self.checkpoints.end()
        self.reconciler.end_all()
        yield from self._transaction.settle()
        until = self.now() + END_SECONDS
        while self.outcome is None and (left := self.fleet.running):
            self._answer_in_between((yield self.now() + POLL_SECONDS))
            self._guarded(self.reconciler.observe)
            yield from self._transaction.settle()
            if self.now() > until:
                names = ", ".join(node.id for node in left)
                self._end(Outcome("failed", f"{names} can't be ended, and nothing may begin beside them"))
        if self.checkpoints is not None:
            self.checkpoints.close()
        yield from self._transaction.insist(self.story.flush)

    def _answer_in_between(self, requests: list[Request]) -> None:
        for request in requests:
            if isinstance(request.body, StopRequest):
                self._end(Outcome("stopped", request.body.reason))
            if (body := answer_in_between(request, self._try)) is not None:
                self._outbox.reply(request, body)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do something; an error that nobody else takes ends the job."""
        try:
            action()
        except DlroverLiteError as error:
            self._fail_at_once(error)

    def _fail_at_once(self, error: DlroverLiteError) -> None:
        if self.outcome is not None:  # it must not take the job's result with it
            print(error, flush=True)
        self._end(Outcome("failed", error.message, error.hint))

    # --- requests -------------------------------------------------------------------------------------------------------

    def _try(self, request: Request) -> msgspec.Struct | None:
        return self._edge.attempt(request, self._handle)

    def _handle(self, request: Request) -> msgspec.Struct | None:
        """Handle a request. Return the reply, to be sent after the commit; None when there is none yet."""
        if (refused := self._strangers.refuse(request.body, self.fleet)) is not None:
            return None if isinstance(request.body, Heartbeat) else refused
        match request.body:
            case LeaseRequest() as body:
                self.reconciler.alive(body.node)
                return self._leases.answer(body, self.fleet)
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
                self.reconciler.alive(node)  # one that waits for servers to find room may have nothing else to say
                return self._topology.answer(node, request, self.fleet)
            case IndexRequest(_, index, offset):
                return IndexPiece(*index_piece(index, offset))
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
        if isinstance(answer, PsOrders) and self.checkpoints is not None:
            self.checkpoints.heard(report, request)
        return answer

    def _node_failed(self, failed: NodeFailed) -> None:
        if self.outcome is not None or self.beginning is not None:
            return
        if failed.because and self.stopping:
            self._end(stopped_amid(failed, self.stopping))
        elif failed.because:
            self.facts.after_commit(partial(self._begin_anew, failed))
        else:
            print(f"{failed.node}: {failed.traceback}", flush=True)
            self._fail(failed_by(failed, self.job))

    def _begin_anew(self, failed: NodeFailed) -> None:
        """Go back to a checkpoint, or end the job if there is none. Raises DiskFull: it may be called again."""
        if self.outcome is not None or self.beginning is not None:
            return
        try:
            self.beginning, said = self.go_back(failed, self.facts.generation)
        except DiskFull:
            raise
        except JobError as error:
            self._fail_at_once(error)
        else:
            for line in [*said, f"goes back to {self.beginning.point}: {self.beginning.why}"]:
                self.story.node("master", line)

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
        self.facts.after_commit(self.story.flush)
        if (now := self.now()) >= self._remember_at:
            self._remember_at = now + self._edge.cadence.remember_seconds
            self.facts.keep(PROGRESS, self.progress.counters())
        self._show_in_time()

    def _show_in_time(self) -> None:
        if (now := self.now()) >= self._show_at:
            self._show_at = now + self._edge.cadence.show_seconds
            self._show(self.status())

    def _take_cuts(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.turn(self.fleet)

    def _worker_gone(self, node: str) -> None:
        self.shards.worker_died(node)
        self.progress.forget(node)
        self.exporting.gone(node)

    def _node_has_failed_the_job(self, failure: FailJob) -> None:
        story = "".join(f"\n  {line}" for line in self.story.last_words(failure.nodes))
        message = failure.message + (f"\nIts story:{story}" if story else "")
        self._fail(Outcome("failed", message, failure.hint.replace("JOB", self.job)))

    def _launch_refused(self, error: BackendError) -> None:
        if not self._edge.stop():
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
            self.facts.keep(FAILING, outcome)
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
            self.story.node("master", f"the job is to end: {reason.partition(chr(10))[0]}")
            self.facts.keep(STOPPING, reason)
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
            self.facts.keep(OUTCOME, outcome)
            self.reconciler.finish()

    def _wind_down(self) -> Phase[None]:
        """End all nodes. Workers first: they give their leases back. Then the parameter servers."""
        self.reconciler.finish()
        failed = self.outcome is not None and self.outcome.state == "failed"
        grace = FAILED_GRACE_SECONDS if failed else GRACE_SECONDS
        roles: tuple[Literal["worker", "ps"], ...] = ("worker", "ps")
        for role in roles:
            self.reconciler.end_role(role, grace)
            yield from self._transaction.settle()
            end = self.now() + grace + 5
            while any(node.role == role for node in self.fleet.running) and self.now() < end:
                yield from self._answer_all_late((yield self.now() + POLL_SECONDS))
                self._guarded(self.reconciler.observe)
        yield from self._transaction.settle()
        if self.checkpoints is not None:
            self.checkpoints.close()
        try:
            self.story.close()
        except DlroverLiteError as error:
            print(error, flush=True)

    def _answer_all_late(self, requests: list[Request]) -> Phase[None]:
        answers = [(request, answer_late(request, self._try)) for request in requests]
        yield from self._transaction.settle()
        for request, body in answers:
            if body is not None:
                self._outbox.reply(request, body)

    def status(self) -> Status:
        return describe(self)
