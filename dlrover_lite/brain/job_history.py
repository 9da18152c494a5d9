"""What jobs that have ended tell of those to come: stored when one ends, read when one begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.brain.models.throughput import Fit, fit
from dlrover_lite.brain.planning.observed_job import chosen_windows, trained_windows
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.planning.prescale import PastJob, PastMemory
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.history import Rows
from dlrover_lite.brain.store.records import FIT_KINDS, FitRecord
from dlrover_lite.core.decoding import convert
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.profiles import observe

if TYPE_CHECKING:
    from dlrover_lite.brain.job_tracker import RegisteredJob
    from dlrover_lite.brain.store.database import ConfigStore

__all__ = ["past_jobs", "remember"]

_KIND, _MEMORY, _PLAN = FIT_KINDS
_MOST = 200
"""The most past jobs that are remembered, the newest: what is older tells little of today's."""


def remember(store: ConfigStore, known: RegisteredJob, outcome: JobOutcome, at: float) -> None:
    """Add to the store what can be learnt of the job; the caller commits."""
    trained = trained_windows(known.profiles)
    chosen = chosen_windows(trained).profiles  # what its work was before it changed tells nothing of other jobs
    seen = [one for profile in chosen if (one := observe(profile, trained.speeds)) is not None]
    if not seen:
        return
    fitted = fit(seen, prior=known.prior)
    store.add_fit(
        FitRecord(
            job=known.job,
            at=at,
            kind=_KIND,
            error=fitted.relative_error,
            windows=fitted.observations,
            data=msgspec.to_builtins(fitted),
        )
    )
    store.add_fit(
        FitRecord(
            job=known.job,
            at=at,
            kind=_PLAN,
            error=0.0,
            windows=len(trained.plans),
            data=msgspec.to_builtins(trained.plans[-1]),
        )
    )
    if (memory := _memory(known, outcome)) is not None:
        store.add_fit(
            FitRecord(
                job=known.job,
                at=at,
                kind=_MEMORY,
                error=0.0,
                windows=len(memory.samples),
                data=msgspec.to_builtins(memory),
            )
        )


def _memory(known: RegisteredJob, outcome: JobOutcome) -> PastMemory | None:
    profiles, last = known.profiles, known.profiles[-1].ps
    rows, worker = sum(use.rows for use in last), known.worker_peak or outcome.peak_memory.get("worker", 0)
    if not rows or not worker:
        return None
    points = [(float(p.samples_so_far), float(sum(use.rows for use in p.ps))) for p in profiles if p.ps]
    rising = [
        point
        for i, point in enumerate(points)
        if i == 0 or (point[0] > points[i - 1][0] and point[1] >= points[i - 1][1])
    ]
    return PastMemory(
        samples=tuple(samples for samples, _ in rising),
        rows=tuple(count for _, count in rising),
        bytes_per_row=sum(use.row_bytes for use in last) / rows,
        base=max(max(0, use.used_bytes - use.row_bytes) for use in last),
        worker=worker,
    )


def past_jobs(history: Rows, *, at: float, without: str = "", by_then: bool = False) -> list[PastJob]:
    """List the past jobs that something was learnt of, the oldest first. ``by_then``: only those that had ended by the time ``at``. What
    can't be read any more is left out. Raises HistoryError."""
    memories = {entry.id: record for entry, record in queries.fitted_jobs(history, _MEMORY, newest=_MOST)}
    plans = {entry.id: record for entry, record in queries.fitted_jobs(history, _PLAN, newest=_MOST)}
    found = []
    for entry, record in queries.fitted_jobs(history, _KIND, newest=_MOST):
        if entry.id == without or entry.ended_at is None or (by_then and entry.ended_at > at):
            continue
        try:
            memory, plan = memories.get(entry.id), plans.get(entry.id)
            found.append(
                PastJob(
                    job=entry.id,
                    features=convert(entry.features, JobFeatures),
                    fit=convert(record.data, Fit),
                    age_seconds=max(0.0, at - entry.ended_at),
                    memory=None if memory is None else convert(memory.data, PastMemory),
                    plan=None if plan is None else convert(plan.data, Candidate),
                )
            )
        except msgspec.ValidationError:  # stored by another version
            continue
    return found[::-1]
