"""What workers report about their leases, and the leases, or the model to write, that they get for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from dlrover_lite.core.metrics import BinaryMetrics
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.profiling.profile_intervals import Profiling
from dlrover_lite.master.work.evaluation_rounds import OpenRounds
from dlrover_lite.master.work.exporting import Exporting
from dlrover_lite.master.work.progress import Evaluations, Progress, metrics_of
from dlrover_lite.master.work.shards import Answer, ShardService
from dlrover_lite.protocol.messages import Ack, Finished, Lease, LeaseRequest

__all__ = ["LeaseRequests"]


@dataclass(eq=False)
class LeaseRequests:
    """Takes reports into the ledger, the metrics and the profile, and grants leases."""

    shards: ShardService
    progress: Progress
    evaluations: Evaluations
    rounds: OpenRounds
    profiling: Profiling
    exporting: Exporting
    clock: Callable[[], float]

    def answer(self, request: LeaseRequest, fleet: Fleet) -> msgspec.Struct:
        """Take a worker's report, and give it a lease if it wants one. Raises MalformedMessage."""
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
            now=self.clock(),
        )
        self._take_report(request, metrics, answer)
        self.profiling.worked(request, answer, samples=self.shards.consumed_samples - samples_before)
        work = answer.work
        if isinstance(work, Lease) and (node := fleet.by_id.get(request.node)) is not None:
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
                self.shards.store.put_metrics(result.of, state)
        elif result.of is not None and whole:
            self.progress.add(request.node, report, metrics, now=self.clock())
