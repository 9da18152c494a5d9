"""The history of clusters' jobs, copied into this machine's: what explains them, and what the next job like them begins with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.client import job_sources
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.core.words import plural
from dlrover_lite.protocol.outcomes import JobOutcome, outcome_of

if TYPE_CHECKING:
    from dlrover_lite.brain.store.database import ConfigStore
    from dlrover_lite.jobs.backend import JobSummary

__all__ = ["bring", "copy", "merge", "opened_store", "settle", "settle_all"]

_UNENDED = "starting,running,queued"


def merge(handle: JobHandle, say: Callable[[str], None]) -> None:
    """Copy the history of a job, if it has one of its own. ``say`` is told where that can't be done."""
    try:
        copy(handle)
    except DlroverLiteError as error:
        say(f"What is new of {handle.id} isn't known: {error.message.partition(chr(10))[0]}")


def copy(handle: JobHandle) -> None:
    """Copy the history of a job, if it has one of its own. Raises DlroverLiteError where that can't be done."""
    history = handle.backend.history(handle.id)
    if history is None:
        return
    from dlrover_lite.brain.store.merge import JobMerge

    try:
        with opened_store() as store:
            JobMerge(history, handle.id, handle.source).look(store)
    finally:
        history.close()


def opened_store() -> ConfigStore:
    """Open this machine's history to be written; it is made if there is none. Raises HistoryError, BrainError."""
    from dlrover_lite.brain.store.database import ConfigStore

    files = BrainFiles()
    files.make()
    return ConfigStore(files.database)


def bring(reference: str, say: Callable[[str], None]) -> None:
    """Copy the history of the job that is meant, before it is looked for in this machine's history. One that is in no cluster is left to
    whoever looks."""
    if not job_sources.has_clusters():
        return
    try:
        handle = JobHandle.find(reference)
    except JobError:
        return
    merge(handle, say)


def settle(store: ConfigStore, source: str, summaries: Sequence[JobSummary]) -> list[str]:
    """Note how jobs of a cluster have ended that this machine's history has as unended; return the ids of those that it hasn't at all."""
    from dlrover_lite.brain.store import queries

    known = set(queries.job_ids(store))
    listed = {one.id: one for one in summaries}
    for entry in queries.jobs(store, queries.JobsQuestion(state=_UNENDED)):
        if entry.source != source:
            continue
        if (one := listed.get(entry.id)) is None:
            at = max(entry.created_at, entry.started_at or 0.0)
            message = f"it isn't in {source} any more"
            store.end_job(entry.id, "lost", at=at, samples=0, message=message, outcome=JobOutcome())
        elif one.over:
            result = one.result
            status = (result.status if result else None) or {}
            samples = status.get("samples")
            store.end_job(
                entry.id,
                one.state,
                at=one.ended_at or one.created_at,
                samples=samples if isinstance(samples, int) else 0,
                message=result.message if result else "",
                outcome=outcome_of(status) if status else JobOutcome(),
            )
    store.commit()
    return [job for job in listed if job not in known]


def settle_all(say: Callable[[str], None]) -> None:
    """Settle the jobs of all clusters that are known here. ``say`` is told what isn't known of them."""
    if not job_sources.has_clusters():
        return
    with opened_store() as store:
        for backend, summaries in job_sources.listings(say):
            missing = settle(store, backend.source, summaries)
            if missing:
                say(
                    f"The history of {plural(len(missing), 'job')} of {backend.source} isn't here so far. To have that of one: "
                    f"dlrover-lite history {missing[-1]}"
                )
