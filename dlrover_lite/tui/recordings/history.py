"""A job's history as a recording: what a screen would have shown of it at each moment, as far as the brain's database keeps that."""

from __future__ import annotations

import heapq
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO

import msgspec

from dlrover_lite.brain.store.decision_news import CHANGING, choice_of, listed
from dlrover_lite.brain.store.timeline import Known, Measured, Timeline, Used
from dlrover_lite.core.expected_end import (
    ExpectedEnd,
    PlanIntervals,
    PlanShape,
    PredictedRate,
    TrainedInterval,
    expected_end,
)
from dlrover_lite.protocol.news import Chosen, JobNews, NodeNews, PlanNews, RateNews, WatchedJobs
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.tui.model import OVER, Explanation, HostRow, JobDetail, JobRow, JobsView, NodeRow, Rate
from dlrover_lite.tui.recordings.recorded import Explain, Recording
from dlrover_lite.tui.recordings.recorder import Output, Recorder
from dlrover_lite.tui.view_state import JobsFold, LocalNode, LocalStatus

__all__ = ["MISSING", "recorded", "write", "write_all"]

MISSING = "the brain's database keeps no shards, slots, checkpoints and losses, and no memory of workers: recordings have them"
_MOST_MOMENTS = 20_000
"""Number that a history's time is divided by: what happens closer together than that is told at once."""

_NO_NODES = PlanShape((), ())
_News = Measured | PlanNews | Known | NodeNews | JobNews


def recorded(past: Timeline) -> Recording:
    """Make a recording of a job's history, to be played; without explanations, which are many."""
    file = io.BytesIO()
    write(past, file)
    return Recording(file.getvalue(), past.job.id)


def write(past: Timeline, file: IO[bytes], explain: Explain | None = None, *, hidden: Iterable[Path] = ()) -> None:
    """Write a job's history as a recording. With ``explain``, the explanation of each decision too, as it was when that was made and when
    it was known what it brought. ``hidden``: as of ``Recorder``."""
    job = _Past(past)
    recorder = Recorder(job, file, clock=lambda: job.at, hidden=hidden, explains=False, grain_seconds=0.0)
    for at, news in _moments(past):
        job.take(at, news)
        recorder.jobs()
        recorder.job(past.job.id)
        for one in news:
            if explain is not None and isinstance(one, Known):
                found = explain(past.job.id, one.decision.number, at)
                if found is not None:
                    recorder.put_explained(found)


def write_all(
    pasts: Sequence[Timeline],
    file: Output,
    explain: Explain,
    *,
    brain: str,
    hosts: tuple[HostRow, ...],
    step_seconds: float,
) -> None:
    """Write the histories of many jobs as one recording: what happens within so many seconds is told at once. ``brain`` and ``hosts``:
    what the list of jobs says. Decisions that changed something are explained, as of the end of the step in which they were made, or in
    which it was known what they brought."""
    jobs = _Pasts(pasts, brain, hosts)
    happened = heapq.merge(*map(_moments_of, pasts), key=lambda one: one[0])
    begin = jobs.at
    recorder = Recorder(jobs, file, clock=lambda: jobs.at, explains=False, grain_seconds=0.0)
    for _, step in groupby(happened, key=lambda one: (one[0] - begin) // step_seconds):
        happened_now = list(step)
        jobs.take(happened_now)
        recorder.jobs()
        for detail in jobs.changed():
            recorder.told(detail)
        for job, number in dict.fromkeys(_changes_in(happened_now)):
            if (found := explain(job, number, jobs.at)) is not None:
                recorder.put_explained(found)


def _changes_in(happened: Iterable[tuple[float, str, list[_News]]]) -> Iterator[tuple[str, int]]:
    """Yield the decisions that changed something, of which something has become known."""
    for _, job, news in happened:
        for one in news:
            if isinstance(one, Known) and one.decision.action in CHANGING:
                yield job, one.decision.number


def _moments_of(past: Timeline) -> Iterator[tuple[float, str, list[_News]]]:
    """Yield what has happened to a job, with its id."""
    for at, news in _moments(past):
        yield at, past.job.id, news


def _moments(past: Timeline) -> Iterator[tuple[float, list[_News]]]:
    """Yield what has happened, in order of times; what has at the same time, together."""
    job = past.job
    begun = msgspec.structs.replace(
        job, state="starting", started_at=None, ended_at=None, samples=0, message="", outcome=JobOutcome()
    )
    known: tuple[Measured | PlanNews | Known | NodeNews, ...] = (
        *past.nodes,
        *past.plans,
        *past.measured,
        *past.decisions,
    )
    happened: list[tuple[float, _News]] = [(one.at, one) for one in known]
    news: list[tuple[float, _News]] = [(min([job.created_at, *(at for at, _ in happened)]), begun)]
    if job.started_at is not None:
        news.append((job.started_at, msgspec.structs.replace(begun, state="running", started_at=job.started_at)))
    news += happened
    if job.state in OVER:
        news.append((max(at for at, _ in news) if job.ended_at is None else job.ended_at, job))
    news.sort(key=lambda pair: pair[0])
    apart = (news[-1][0] - news[0][0]) / _MOST_MOMENTS
    together: list[_News] = []
    since = news[0][0]
    for number, (at, one) in enumerate(news):
        together.append(one)
        following = news[number + 1][0] if number + 1 < len(news) else None
        if following is None or (following > at and following - since > apart):
            yield at, together
            together, since = [], following or at


class _Past:
    """A job as it was at the moment that it was told of last: a source for a recorder."""

    def __init__(self, past: Timeline) -> None:
        self.at = past.job.created_at
        self._job = past.job.id
        self._total = past.total_samples or 0
        self._fold = JobsFold()
        self._nodes: dict[str, NodeRow] = {}
        self._decisions: dict[int, Chosen] = {}
        self._rates: list[Rate] = []
        self._intervals = PlanIntervals()
        self._shape = _NO_NODES
        self._planned: PlanNews | None = None
        """Plan that the job was given last."""
        self._predicted: dict[str, PredictedRate] = {}
        """Newest prediction for each choice."""
        self._samples, self._rate, self._waits = 0, 0.0, ""
        self._elapsed, self._cpu, self._used = 0.0, 0.0, 0.0
        """Seconds since something was measured first, CPU seconds in them, cores used now."""
        self._auc: float | None = None
        self._view = JobsView()
        self._detail: JobDetail | None = None

    # --- as a source ------------------------------------------------------------------------------------------------

    def jobs(self) -> JobsView:
        return self._view

    def job(self, job: str) -> JobDetail | None:
        return self._detail

    def explain(self, job: str, number: int) -> Explanation | None:
        return None

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass

    # --- what has happened ------------------------------------------------------------------------------------------

    def take(self, at: float, news: list[_News]) -> None:
        since, self.at = max(0.0, at - self.at), at
        for one in news:
            match one:
                case JobNews():
                    self._fold.put(one)
                    self._auc = one.outcome.auc
                case PlanNews():
                    self._fold.take(WatchedJobs(plans=(one,)))
                    self._planned, self._shape = one, _shape_of(one)
                case Measured():
                    self._measure(one, since)
                    since = 0.0
                case Known():
                    self._decide(one.decision)
                case NodeNews():
                    self._happen(one)
        if self._elapsed:
            self._elapsed += since
            self._cpu += self._used * since
        self._fold.hear(self._job, self._status(), at)
        self._show()

    def _measure(self, one: Measured, since: float) -> None:
        self._rate = one.samples_per_second
        self._samples = one.samples_so_far if one.samples_so_far is not None else self._samples
        self._rates.append(Rate(one.at, one.samples_per_second, one.seconds))
        self._fold.take(WatchedJobs(rates=(RateNews(self._job, one.at, one.seconds, one.samples_per_second),)))
        if not one.seconds:
            return
        self._shape = PlanShape.of_nodes((use.cores for use in one.workers), (use.cores for use in one.ps))
        self._intervals.add(self._shape, TrainedInterval(one.seconds, one.seconds * one.samples_per_second))
        uses = [*one.ps, *one.workers]
        self._used = sum(use.cpu_seconds for use in uses) / one.seconds
        seconds = since if self._elapsed else one.seconds
        self._elapsed += seconds
        self._cpu += self._used * seconds
        minibatches = sum(use.minibatches for use in one.workers)
        for use in uses:
            self._use(use, one, minibatches, "ps" if use in one.ps else "worker")

    def _use(self, use: Used, one: Measured, minibatches: int, role: str) -> None:
        node = self._nodes.get(use.node) or NodeRow(id=use.node, role=role, state="up", cores=use.cores, memory=0)
        at_work = [*one.workers, *one.ps] if one.shared_cores else [use]
        ready = use.throttled_seconds + sum(each.cpu_seconds for each in at_work)
        self._nodes[use.node] = msgspec.structs.replace(
            node,
            cores=use.cores,
            used_cores=round(use.cpu_seconds / one.seconds, 2),
            used_memory=use.used_bytes,
            peak_memory=max(node.peak_memory, use.peak_bytes),
            rate=round(use.minibatches * one.batch_size / one.seconds, 1) if role == "worker" else 0.0,
            share=round(use.minibatches / minibatches, 3) if role == "worker" and minibatches else None,
            throttled=round(use.throttled_seconds / ready, 3) if ready else None,
            shared_cores=one.shared_cores,
        )

    def _decide(self, one: Chosen) -> None:
        if one.number not in self._decisions:
            self._fold.take(WatchedJobs(decisions=(listed(self._job, one),)))
            self._waits = one.reason if one.action in ("queue", "preempt") else ""
            if one.choice and one.predicted is not None:
                self._predicted[one.choice] = PredictedRate(one.predicted, one.lower or 0.0, one.upper or 0.0)
        self._decisions[one.number] = one

    def _happen(self, one: NodeNews) -> None:
        node = self._nodes.get(one.node)
        if one.event == "launched" or node is None:
            before = self._nodes.get(one.follows)
            node = NodeRow(
                id=one.node,
                role=one.role or one.node.partition("-")[0],
                state="launched",
                cores=one.cores or 0.0,
                memory=one.memory or 0,
                restarts=before.restarts + 1 if before else 0,
            )
        if one.event == "up":
            node = msgspec.structs.replace(node, state="up")
        elif one.event == "resized":
            node = msgspec.structs.replace(node, cores=one.cores or node.cores, memory=one.memory or node.memory)
        elif one.event == "ended":
            node = msgspec.structs.replace(
                node, state=f"ended ({one.reason})", used_cores=None, used_memory=0, rate=0.0, share=None
            )
        self._nodes[one.node] = node

    # --- what there is ----------------------------------------------------------------------------------------------

    def _status(self) -> LocalStatus:
        """Return what the job's master might have said. CPU seconds are known of all its nodes together: one has them. The job's memory
        isn't."""
        alive = [node for node in self._nodes.values() if node.alive]
        trains = any(node.role == "worker" and node.state == "up" for node in alive)
        trains = trains or (not self._nodes and bool(self._rates))  # what happened to nodes is forgotten sooner
        state = "training" if trains else "starting"
        if not alive and self._waits:
            state = "queued"
        nodes = [
            LocalNode(node.role, node.state, node.cores, node.memory, 0.0 if number else self._cpu)
            for number, node in enumerate(alive)
        ]
        return LocalStatus(
            state=state,
            samples=self._samples,
            total_samples=self._total,
            samples_per_second=self._rate if alive or not self._nodes else 0.0,
            elapsed_seconds=self._elapsed,
            nodes=tuple(nodes),
            message=self._waits if state == "queued" else "",
            expected_end=self._expected_end() if state == "training" else None,
        )

    def _expected_end(self) -> ExpectedEnd | None:
        planned = self._planned
        predicted = None
        if planned is not None and _shape_of(planned) == self._shape:
            predicted = self._predicted.get(choice_of(planned.plan))
        left = self._total - self._samples
        return expected_end(self.at, left, self._intervals.since(self._shape), predicted=predicted)

    def _show(self) -> None:
        rows = self._fold.rows(0.0)  # as if it were long ago: its master isn't silent
        if rows is not self._view.jobs:
            self._view = JobsView(rows)
        self._detail = JobDetail(
            row=rows[self._job],
            rates=tuple(self._rates),
            decisions=tuple(self._decisions.values()),
            nodes=tuple(sorted(self._nodes.values(), key=lambda node: (not node.alive, node.role != "ps"))),
            auc=self._auc,
            missing=MISSING,
        )


class _Pasts:
    """Many jobs as they were: a source for a recorder."""

    def __init__(self, pasts: Sequence[Timeline], brain: str, hosts: tuple[HostRow, ...]) -> None:
        self.at = min((past.job.created_at for past in pasts), default=0.0)
        self._pasts = {past.job.id: _Past(past) for past in pasts}
        self._told: list[str] = []
        self._rows: dict[str, JobRow] = {}
        self._view = JobsView({}, brain, None, hosts)

    def take(self, happened: Sequence[tuple[float, str, list[_News]]]) -> None:
        """Take what has happened, in order of times: it is told as of the last of these."""
        self.at = at = happened[-1][0]
        news: dict[str, list[_News]] = {}
        for _, job, its in happened:
            news.setdefault(job, []).extend(its)
        for job, its in news.items():
            self._pasts[job].take(at, its)
            self._rows |= self._pasts[job].jobs().jobs
        self._told = list(news)
        order = sorted(self._rows, key=lambda job: (-self._rows[job].created_at, job))
        self._view = msgspec.structs.replace(self._view, jobs={job: self._rows[job] for job in order})

    def changed(self) -> list[JobDetail]:
        """Return the jobs of which something was told last."""
        return [detail for job in self._told if (detail := self._pasts[job].job(job)) is not None]

    def jobs(self) -> JobsView:
        return self._view

    def job(self, job: str) -> JobDetail | None:
        return self._pasts[job].job(job)

    def explain(self, job: str, number: int) -> Explanation | None:
        return None

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


def _shape_of(given: PlanNews) -> PlanShape:
    worker, ps = given.plan.worker, given.plan.ps
    return PlanShape.of_roles(worker.count, worker.each.cores, ps.count, ps.each.cores)
