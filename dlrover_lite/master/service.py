"""The master's loop: drain requests, apply them, commit once, reply; and between, reconcile the nodes with the backend."""

from __future__ import annotations

import array
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from dlrover_lite.backends.base import Backend, NodeSpec
from dlrover_lite.errors import BackendError, DlroverLiteError, JobError, ModelError
from dlrover_lite.intervals import Range
from dlrover_lite.master import lifecycle
from dlrover_lite.master.ledger_data import Pass
from dlrover_lite.master.progress import Evaluations, Progress
from dlrover_lite.master.shards import Answer, ShardService
from dlrover_lite.master.status import describe
from dlrover_lite.metrics import BinaryMetrics
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.wire.frames import MalformedMessage, Request
from dlrover_lite.wire.messages import (
    Ack,
    Export,
    Exported,
    Finished,
    Hello,
    Lease,
    LeaseRequest,
    NodeFailed,
    PsReport,
    Status,
    StatusRequest,
    StopRequest,
    Topology,
    TopologyRequest,
    Welcome,
    WorkReport,
)
from dlrover_lite.wire.server import Server

__all__ = ["Master", "Outcome"]

RECONCILE_SECONDS = 0.1
USAGE_SECONDS = 1.0
GRACE_SECONDS = 10.0
FAILED_GRACE_SECONDS = 1.0
"""Nodes of a failed job have nothing to hand over, and may wait for a server that is no more."""
SLOTS = 4096


class Outcome(msgspec.Struct, frozen=True):
    """How the job ended."""

    state: Literal["succeeded", "failed", "stopped"]
    message: str = ""
    hint: str = ""
    traceback: str = ""


class Master:
    """One job's master, over an open shard service, server and backend."""

    def __init__(
        self,
        job: str,
        recipe: Recipe,
        shards: ShardService,
        server: Server,
        backend: Backend,
        nodes: lifecycle.Nodes,
        *,
        export_directory: Path,
        stop: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self.recipe = recipe
        self.shards = shards
        self.nodes = nodes
        self.outcome: Outcome | None = None
        self.exporting = False
        self.exported: Exported | None = None
        self.evaluations = Evaluations()
        self.ps_reports: dict[str, PsReport] = {}
        self.cpu_seconds: dict[str, float] = {}
        self.used_memory: dict[str, int] = {}
        self._server = server
        self._backend = backend
        self._export_directory = export_directory
        self._stop = stop
        self._clock = clock
        self._exporter = ""
        self._events_seen = 0
        self._waiting: dict[int, Request] = {}
        self._open_rounds: list[Pass] = []
        now = clock()
        self._reconcile_at, self._usage_at = now, now
        window = max(20_000, shards.plan.samples * shards.plan.epochs // 20)
        bad_share = getattr(recipe.data, "max_bad_share", 0.0)
        self.progress = Progress(window_samples=window, max_bad_share=bad_share, began=now)

    def now(self) -> float:
        return self._clock()

    def run(self) -> Outcome:
        """Until the job has ended and no node runs any more."""
        self.nodes, instructions = self.nodes.begin()
        self._follow(instructions)
        while self.outcome is None:
            self._turn()
            if self._stop() and self.outcome is None:
                self._end(Outcome("stopped", "stopped by request"))
        self._wind_down()
        return self.outcome

    def _turn(self) -> None:
        requests = self._server.receive(RECONCILE_SECONDS)
        try:
            answers = [(request, self._try(request)) for request in requests]
            self.shards.commit()
        except DlroverLiteError as error:
            self._end(Outcome("failed", error.message, error.hint))
            return
        for request, body in answers:
            if body is not None:
                self._server.reply(request, body)
        self._close_rounds()
        now = self._clock()
        if now >= self._reconcile_at:
            self._reconcile_at = now + RECONCILE_SECONDS
            self._reconcile()
            self._judge()

    # --- requests -------------------------------------------------------------------------------------------------------

    def _try(self, request: Request) -> msgspec.Struct | None:
        try:
            return self._handle(request)
        except MalformedMessage:
            self._server.malformed += 1
            return None

    def _handle(self, request: Request) -> msgspec.Struct | None:
        """The reply, to be sent after the commit; None when there is none yet."""
        match request.body:
            case LeaseRequest() as body:
                return self._lease(body)
            case StatusRequest():
                return self.status()
            case PsReport() as report:
                self.ps_reports[report.node] = report
                return Ack()
            case Hello(node, role, endpoint):
                self.nodes = self.nodes.hello(node, endpoint)
                if role == "worker":
                    self.shards.worker_joined(node)
                self._answer_waiting()
                return Welcome(self.job, self.recipe)
            case TopologyRequest():
                if self.nodes.all_ps_up:
                    return self._topology()
                self._waiting[request.session] = request
                return None
            case NodeFailed() as failed:
                self._node_failed(failed)
                return Ack()
            case Exported() as exported:
                self.exported = exported
                return Ack()
            case StopRequest(reason):
                self._end(Outcome("stopped", reason))
                return Ack()
            case other:
                raise JobError(f"no answer is known to {type(other).__name__}")

    def _lease(self, request: LeaseRequest) -> msgspec.Struct:
        metrics = _metrics_of(request.report)
        failed = None if request.failed is None else (request.failed, request.error)
        answer = self.shards.report_and_lease(
            request.node,
            request.token,
            request.consumed,
            failed,
            give_back=request.give_back,
            want=request.want,
            now=self._clock(),
        )
        self._take_report(request, metrics, answer)
        work = answer.work
        if isinstance(work, Lease) and work.kind == "eval":
            self._remember_round(work.index)
        if isinstance(work, Finished):
            # who doesn't ask is not sent away: it will ask, and may be needed for the export
            return (self._export_task(request.node) or work) if request.want else Ack()
        return work

    def _export_task(self, node: str) -> Export | None:
        """The first worker to find nothing left writes the model; should it die, the next one."""
        wanted = self.recipe.export.format
        if wanted == "none" or self.shards.failure or not self.shards.finished or self.exported is not None:
            return None
        if self._exporter and self._exporter != node:
            return None
        self._exporter = node
        self.exporting = True
        return Export(str(self._export_directory), wanted)

    def _take_report(self, request: LeaseRequest, metrics: BinaryMetrics | None, answer: Answer) -> None:
        report, result = request.report, answer.consumed
        if report is None:
            return
        self.progress.add_lines(report)
        whole = result.accepted and result.newly == _count(request.consumed)
        if result.of is not None and result.of.kind == "eval":
            if whole and request.consumed:
                state = self.evaluations.add(result.of.index, metrics)
                self.shards.put_metrics(result.of, state)
        elif result.of is not None and whole:
            self.progress.add(request.node, report, metrics, now=self._clock())

    def _remember_round(self, index: int) -> None:
        if all(of.index != index for of in self._open_rounds):
            found = [of for of in self.shards.ledger.passes() if of.kind == "eval" and of.index == index]
            self._open_rounds += found

    def _close_rounds(self) -> None:
        """In their order: the final one may be through before the one in front of it."""
        while self._open_rounds and self.shards.ledger.finished(self._open_rounds[0]):
            of = self._open_rounds.pop(0)
            self.evaluations.close(of.index, at_samples=self.shards.round_began_at(of.index))

    def _node_failed(self, failed: NodeFailed) -> None:
        if failed.user_error:
            message, _, hint = failed.message.partition("\n")
            self._end(Outcome("failed", message, hint, failed.traceback))
        else:
            print(f"{failed.node}: {failed.traceback}", flush=True)
            message, _, hint = failed.message.partition("\n")
            hint = hint or f"Its log: dlrover-lite logs {self.job} --node {failed.node}"
            self._end(Outcome("failed", f"{failed.node}: {message}", hint))

    def _topology(self) -> Topology:
        servers = [(node.id, node.endpoint) for node in self.nodes.of("ps")]
        owners = array.array("H", [slot * len(servers) // SLOTS for slot in range(SLOTS)])
        return Topology(1, servers, owners.tobytes())

    def _answer_waiting(self) -> None:
        if self.nodes.all_ps_up:
            for request in self._waiting.values():
                self._server.reply(request, self._topology())
            self._waiting.clear()

    # --- nodes ----------------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        try:
            for event in self._backend.events(self._events_seen):
                self._events_seen = event.number
                self.nodes, instructions = self.nodes.event(event)
                self._follow(instructions)
            if self._clock() >= self._usage_at:
                self._usage_at = self._clock() + USAGE_SECONDS
                self._read_usage()
        except DlroverLiteError as error:
            self._end(Outcome("failed", error.message, error.hint))

    def _read_usage(self) -> None:
        for node in self.nodes.running:
            if usage := self._backend.usage(node.id):
                self.cpu_seconds[node.id] = usage.cpu_seconds
                self.used_memory[node.id] = usage.memory

    def _follow(self, instructions: list[lifecycle.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case lifecycle.Launch(node):
                    self._launch(node)
                case lifecycle.WorkerGone(node):
                    self.shards.worker_died(node)
                    self.shards.commit()
                    self.progress.forget(node)
                    if self._exporter == node:
                        self._exporter = ""
                case lifecycle.FailJob(message, hint):
                    self._end(Outcome("failed", message, hint.replace("JOB", self.job)))

    def _launch(self, node: lifecycle.Node) -> None:
        try:
            self._backend.launch(NodeSpec(node.id, node.role, node.resources, self._server.endpoint))
        except BackendError:
            if not self._stop():
                raise
            self._end(Outcome("stopped", "stopped by request"))  # the backend has been told before us
            self.nodes = self.nodes.refused(node.id)

    # --- the end --------------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Whether the job has ended."""
        if self.outcome is not None:
            return
        failure = self.shards.failure or self.progress.judge_bad_lines(at_end=self.shards.finished)
        if failure is not None:
            trace = failure.user_traceback if isinstance(failure, ModelError) else ""
            self._end(Outcome("failed", failure.message, failure.hint, trace))
        elif self.shards.finished and (self.exported is not None or self.recipe.export.format == "none"):
            self._end(Outcome("succeeded"))
        elif not any(node.role == "worker" for node in self.nodes.running):
            # all have left as if there were nothing to do: someone asked them to end, or the last one was to export
            self.nodes, instructions = self.nodes.one_more_worker()
            self._follow(instructions)

    def _end(self, outcome: Outcome) -> None:
        """The first word counts."""
        if self.outcome is None:
            self.outcome = outcome
            self.nodes = self.nodes.finished()

    def _wind_down(self) -> None:
        """Workers first: they give their leases back. Then the parameter servers."""
        failed = self.outcome is not None and self.outcome.state == "failed"
        grace = FAILED_GRACE_SECONDS if failed else GRACE_SECONDS
        for role in ("worker", "ps"):
            for node in self.nodes.running:
                if node.role == role:
                    self._backend.terminate(node.id, grace_seconds=grace)
            end = self._clock() + grace + 5
            while any(node.role == role for node in self.nodes.running) and self._clock() < end:
                for request in self._server.receive(0.0):
                    self._answer_late(request)
                for event in self._backend.events(self._events_seen, timeout_seconds=0.1):
                    self._events_seen = event.number
                    self.nodes, _ = self.nodes.event(event)
        self._commit_late()

    def _commit_late(self) -> None:
        """A ledger that can't be written must not take the job's result with it."""
        try:
            self.shards.commit()
        except DlroverLiteError as error:
            print(error, flush=True)

    def _answer_late(self, request: Request) -> None:
        """Of requests that come after the job's end only reports and questions still count."""
        if isinstance(request.body, StatusRequest):
            self._server.reply(request, self.status())
            return
        if isinstance(request.body, LeaseRequest):
            self._try(request)
            self._commit_late()
        self._server.reply(request, Finished() if isinstance(request.body, LeaseRequest) else Ack())

    def status(self) -> Status:
        return describe(self)


def _metrics_of(report: WorkReport | None) -> BinaryMetrics | None:
    """Raises MalformedMessage: nothing of the report has been applied then."""
    try:
        return BinaryMetrics.from_bytes(report.metrics) if report and report.metrics else None
    except ValueError as error:
        raise MalformedMessage(str(error)) from error


def _count(ranges: list[Range]) -> int:
    return sum(stop - start for start, stop in ranges)
