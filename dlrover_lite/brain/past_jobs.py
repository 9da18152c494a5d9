"""What one brain knows of past jobs like a new one, packed so that another brain begins with it: in a cluster, say, where a job has a brain
of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dlrover_lite.brain.models.similarity import THRESHOLD, distance
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.history import Rows
from dlrover_lite.brain.store.merge import ADD_FIT
from dlrover_lite.brain.store.records import FIT_KINDS
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.history_messages import FittedJobsQuestion, KeptFit, KeptFittedJob, KeptJob

__all__ = ["add_similar_jobs", "similar_jobs"]

MOST_JOBS = 16
"""The most jobs that are packed: a first plan goes by the eight nearest."""
MOST_BYTES = 64 << 10
"""The most bytes of all of them."""
_NEWEST = 200
"""Number of the newest past jobs that are compared with the new one."""
_ADD_JOB = (
    "insert or ignore into jobs (id, name, owner, model, state, priority, created_at, started_at, ended_at, samples, message, "
    "directory, source, outcome, features) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?)"
)
_HAS_SOURCE = "select 1 from jobs where id = ? and source = ?"


class _Past(msgspec.Struct, frozen=True):
    """A past job, with what its end told of jobs to come."""

    job: KeptJob
    fits: tuple[KeptFit, ...]


def similar_jobs(history: Rows, features: JobFeatures, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Pack what is known of the past jobs that are most like one of these features, the nearest first, as far as ``most_bytes`` go.
    Nothing: there are none. Raises HistoryError.

    Whose a job was isn't packed: the new one's owner may be called otherwise where it runs. A model's file counts without its directory.
    """
    near = sorted(
        ((distance(features, its), -number, past) for number, (its, past) in enumerate(_comparable(history))),
        key=lambda one: one[:2],
    )
    parts: list[bytes] = []
    left = most_bytes - 2
    for far, _, past in near[:MOST_JOBS]:
        part = msgspec.json.encode(past)
        left -= len(part) + 1
        if far > THRESHOLD or left < 0:
            break
        parts.append(part)
    return b"[" + b",".join(parts) + b"]" if parts else b""


def _comparable(history: Rows) -> Iterable[tuple[JobFeatures, _Past]]:
    """List the past jobs that something was learnt of, the oldest first. What another version has stored in another way is left out."""
    kinds: list[dict[str, KeptFittedJob]] = []
    for kind in FIT_KINDS:
        rows = queries.kept(history, FittedJobsQuestion(kind, most=_NEWEST), KeptFittedJob)
        kinds.append({row.job.id: row for row in rows})
    for name, row in reversed(kinds[0].items()):
        if row.job.ended_at is None:
            continue
        try:
            features = _without_place(from_json(row.job.features, JobFeatures))
        except msgspec.MsgspecError:
            continue
        job = msgspec.structs.replace(
            row.job, owner="", directory="", plan=None, features=msgspec.json.encode(features).decode()
        )
        yield features, _Past(job, tuple(found[name].fit for found in kinds if name in found))


def _without_place(features: JobFeatures) -> JobFeatures:
    """Return features without what says where the job was, and whose."""
    return msgspec.structs.replace(features, owner="", model=features.model.rpartition("/")[2])


def add_similar_jobs(store: ConfigStore, packed: bytes, source: str) -> int:
    """Add jobs that ``similar_jobs`` has packed, of a history that is called ``source`` here; return their number. A job that is known here
    stays as it is; to add them twice changes nothing. Raises HistoryError."""
    try:
        found: tuple[_Past, ...] = from_json(packed, tuple[_Past, ...])
    except msgspec.DecodeError as error:
        raise HistoryError(
            f"What came along of past jobs can't be read: {error}",
            hint="Submit jobs with the version of dlrover-lite that their image has.",
        ) from error
    with store.errors(), store.transaction():
        for past in found:
            _add(store, past, source)
    return len(found)


def _add(store: ConfigStore, past: _Past, source: str) -> None:
    execute, job = store.db.conn.execute, past.job
    execute(
        _ADD_JOB,
        (
            *(job.id, job.name, job.owner, job.model, job.state, job.priority, job.created_at, job.started_at),
            *(job.ended_at, job.samples, job.message, source, job.outcome, job.features),
        ),
    )
    if execute(_HAS_SOURCE, (job.id, source)).fetchone():
        rows: Sequence[KeptFit] = past.fits
        store.db.conn.executemany(
            ADD_FIT, [(job.id, one.at, one.kind, one.error, one.windows, one.data) for one in rows]
        )
