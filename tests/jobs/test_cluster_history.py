"""What lists of a cluster's jobs tell this machine's history of those that it has copied."""

from __future__ import annotations

from pathlib import Path

from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry
from dlrover_lite.client.job_history import settle
from dlrover_lite.jobs.backend import JobSummary
from dlrover_lite.jobs.store import Result

SOURCE = "prod/ads"


def test_jobs_that_have_ended_or_are_gone_are_noted_and_others_left(tmp_path: Path) -> None:
    ended = Result("succeeded", 90.0, status={"samples": 70, "elapsed_seconds": 7.0})
    summaries = [
        JobSummary("ended", "succeeded", True, 1.0, 2.0, 90.0, ended),
        JobSummary("runs", "running", False, 1.0, 2.0),
        JobSummary("unknown", "running", False, 1.0, 2.0),
    ]
    with ConfigStore(tmp_path / "brain.sqlite") as store:
        for job, source in [("ended", SOURCE), ("runs", SOURCE), ("gone", SOURCE), ("ours", ""), ("other", "test/x")]:
            store.put_job(JobEntry(id=job, name=job, state="running", created_at=1.0, source=source))
        store.commit()
        assert settle(store, SOURCE, summaries) == ["unknown"]
        found = {one.id: one for one in queries.jobs(store)}
    assert {job: one.state for job, one in found.items()} == {
        "ended": "succeeded",
        "runs": "running",
        "gone": "lost",
        "ours": "running",
        "other": "running",
    }
    assert (found["ended"].samples, found["ended"].ended_at) == (70, 90.0)
    assert SOURCE in found["gone"].message
