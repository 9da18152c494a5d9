"""Jobs of this machine: from the database and from files, whoever of those that write them is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlrover_lite.backends.local.jobs.local_jobs import create_job
from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.history import FileHistory
from dlrover_lite.brain.store.records import JobEntry, ProfileRecord
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.brain_server.history_client import BrainHistory
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs.final_status import starting
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.protocol.questions import EvaluationResult, NodeStatus, ShardsStatus, to_builtins
from dlrover_lite.tui.model import Rate
from dlrover_lite.tui.pages.once import frame
from dlrover_lite.tui.sources.live import LiveSource
from tests.backends.support import recipe
from tests.brain.asked import WAYS, answering, never
from tests.brain.models import load, view

NOW = 2_000_000_000.0


@pytest.fixture(params=WAYS)
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrainFiles]:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path))
    found = BrainFiles()
    found.make()
    if request.param == "files":
        yield found
    else:
        with answering(found):
            yield found


def _asked(files: BrainFiles) -> BrainHistory:
    """The brain is asked where it lives, and its files are read only where it doesn't."""
    return BrainHistory(files, read=never if files.lives() else FileHistory)


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(files: BrainFiles, clock: Clock):  # type: ignore[no-untyped-def]
    one = LiveSource(files, history=_asked, clock=clock)
    yield one
    one.close()


def _commit(files: BrainFiles, *what: JobEntry | ProfileRecord) -> None:
    with ConfigStore(files.database) as store:
        for one in what:
            if isinstance(one, JobEntry):
                store.put_job(one)
            else:
                store.add_profile(one)
        store.commit()


def _entry(job: Job, state: str = "running", **fields: Any) -> JobEntry:
    return JobEntry(
        id=job.id, name="scripted", state=state, created_at=NOW - 100, directory=str(job.directory), **fields
    )


def _write_status(job: Job, **fields: Any) -> None:
    plain = to_builtins(starting(job))
    node = to_builtins(NodeStatus("worker-0", "worker", "up", 1.0, 1 << 30, 50.0, 7.0, 1 << 29))
    job.write_status({**plain, "state": "training", "samples": 10, "total_samples": 100, "nodes": [node], **fields})


def test_without_jobs_the_source_is_empty(source: LiveSource) -> None:
    view = source.jobs()
    assert view.jobs == {}
    assert source.jobs() is view
    assert source.job("none") is None


def test_a_job_is_known_by_the_brain_and_by_its_files(source: LiveSource, files: BrainFiles) -> None:
    job = create_job(recipe())
    _write_status(job)
    profile = ProfileRecord(job=job.id, at=NOW - 5, seconds=10.0, samples_per_second=9.0, workers=1, servers=1)
    _commit(files, _entry(job, owner="me"), profile)
    row = source.jobs().jobs[job.id]
    assert (row.state, row.owner, row.samples, row.total_samples, row.rates) == ("training", "me", 10, 100, (9.0,))
    assert (row.workers, row.cores, row.used_memory) == (1, 1.0, 1 << 29)
    view = source.jobs()
    assert source.jobs() is view
    _write_status(job, samples=20)
    assert source.jobs().jobs[job.id].samples == 20


def test_a_job_unknown_to_the_brain_is_shown_until_it_ends(source: LiveSource, clock: Clock) -> None:
    job = create_job(recipe())
    row = source.jobs().jobs[job.id]
    assert (row.name, row.state, row.model) == ("scripted", "starting", "wide_deep")
    assert source.job(job.id) is not None
    job.write_result(Result("failed", NOW, "why"))
    clock.now += 10
    row = source.jobs().jobs[job.id]
    assert (row.state, row.message, row.ended_at) == ("failed", "why", NOW)
    detail = source.job(job.id)
    assert detail is not None
    assert detail.row.state == "failed"


def test_a_job_seen_before_the_brain_knew_it_is_known_by_the_brain_from_then_on(
    source: LiveSource, files: BrainFiles, clock: Clock
) -> None:
    _commit(files, _entry(create_job(recipe())))
    job = create_job(recipe())
    _write_status(job, samples=100)
    source.jobs()
    _commit(files, _entry(job, samples=150))
    assert source.jobs().jobs[job.id].samples == 150
    clock.now += 60.0  # all jobs of this machine are looked at again
    assert source.jobs().jobs[job.id].samples == 150


def test_a_job_whose_end_the_brain_missed_is_shown_as_ended(
    source: LiveSource, files: BrainFiles, clock: Clock
) -> None:
    job = create_job(recipe())
    _write_status(job)
    _commit(files, _entry(job))
    clock.now = job.directory.joinpath("status.json").stat().st_mtime + 60
    assert source.jobs().jobs[job.id].silent_since is not None
    job.write_result(Result("stopped", clock.now, "by hand"))
    clock.now += 10
    row = source.jobs().jobs[job.id]
    assert (row.state, row.message, row.silent_since) == ("stopped", "by hand", None)


def _is_killed(job: Job) -> None:
    """With its keeper, and without a word."""
    record = json.loads((job.directory / "job.json").read_text())
    record["launcher"]["pid"] = 2**22 + 1
    (job.directory / "job.json").write_text(json.dumps(record))


@pytest.mark.parametrize("how", ["stopped", "lost"])
def test_first_look_shows_ends_of_jobs_that_the_brain_missed(source: LiveSource, files: BrainFiles, how: str) -> None:
    """As ``tui --once`` has no other. Its files tell the truth, to the last sample."""
    job = create_job(recipe())
    _write_status(job, samples=40 if how == "stopped" else 70)
    _commit(files, _entry(job, samples=20))
    if how == "stopped":
        job.write_result(Result("stopped", NOW, "by hand", status={**(job.status() or {}), "samples": 70}))
    else:
        _is_killed(job)
    row = source.jobs().jobs[job.id]
    assert (row.state, row.samples, row.total_samples) == (how, 70, 100)
    assert how in frame(source, job=None, width=120, now=NOW)


def test_a_job_with_a_result_is_shown_as_ended_at_once(source: LiveSource, files: BrainFiles, clock: Clock) -> None:
    """Without having been silent for a while."""
    job = create_job(recipe())
    _write_status(job)
    clock.now = job.directory.joinpath("status.json").stat().st_mtime
    _commit(files, _entry(job))
    assert source.jobs().jobs[job.id].state == "training"
    job.write_result(Result("stopped", clock.now + 1, "by hand"))
    clock.now += 3
    assert source.jobs().jobs[job.id].state == "stopped"


def test_an_ended_job_unknown_to_the_brain_has_its_samples(source: LiveSource) -> None:
    job = create_job(recipe())
    assert source.jobs().jobs[job.id].state == "starting"
    status = {**to_builtins(starting(job)), "state": "succeeded", "samples": 100, "total_samples": 100}
    job.write_result(Result("succeeded", NOW, status=status))
    row = LiveSource(source._files, clock=lambda: NOW).jobs().jobs[job.id]
    assert (row.state, row.samples, row.total_samples) == ("succeeded", 100, 100)


def test_a_job_without_files_is_shown_from_the_brains_history(source: LiveSource, files: BrainFiles) -> None:
    entry = JobEntry(id="far-1", name="far", state="succeeded", created_at=NOW - 9, ended_at=NOW, directory="/nowhere")
    profile = ProfileRecord(job="far-1", at=NOW - 5, seconds=10.0, samples_per_second=9.0, workers=1, servers=1)
    _commit(files, entry, profile)
    detail = source.job("far-1")
    assert detail is not None
    assert (detail.row.state, detail.rates, detail.nodes) == ("succeeded", (Rate(NOW - 5, 9.0, 10.0),), ())
    assert source.job("far-1") is detail


def test_an_ended_job_is_shown_by_its_last_status(source: LiveSource, files: BrainFiles) -> None:
    job = create_job(recipe())
    shards = to_builtins(ShardsStatus(7, 0, 0, 1))
    _write_status(job, shards=shards, elapsed_seconds=10.0)
    status = job.status()
    job.write_result(Result("succeeded", NOW, status=status))
    _commit(files, _entry(job, "succeeded", ended_at=NOW))
    detail = source.job(job.id)
    assert detail is not None
    assert [node.id for node in detail.nodes] == ["worker-0"]
    assert detail.shards is not None
    assert (detail.shards.done, detail.shards.quarantined) == (7, 1)
    assert detail.checkpoints is None


def test_an_unreachable_master_is_a_problem_beside_the_rest_of_the_job(
    source: LiveSource, files: BrainFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.core.errors import JobError

    def silent(_: JobHandle) -> None:
        raise JobError("The master did not answer\nat all")

    job = create_job(recipe())
    _commit(files, _entry(job))
    monkeypatch.setattr(JobHandle, "status", silent)
    detail = source.job(job.id)
    assert detail is not None
    assert detail.problem is not None
    assert detail.problem.why == "The master did not answer"
    assert detail.row.id == job.id


def test_jobs_can_be_looked_at_in_turn_and_forgotten(source: LiveSource, files: BrainFiles) -> None:
    one, two = create_job(recipe()), create_job(recipe())
    _commit(files, _entry(one), _entry(two))
    for job in (one, two, one):
        detail = source.job(job.id)
        assert detail is not None
        assert detail.row.id == job.id
    source.forget()
    assert source.job("none") is None


def test_a_decision_is_explained_as_it_was_stored(source: LiveSource, files: BrainFiles) -> None:
    assert source.explain("one", 1) is None
    _commit(files, JobEntry(id="one", name="one", state="running", created_at=NOW))
    with ConfigStore(files.database) as store:
        decided = decide(RoundInputs(at=NOW, capacity=Resources(16.0, 64 << 30), jobs=(view("one"),)), load)
        number = store.add_round(decided, ["one"])["one"]
    found = source.explain("one", number)
    assert found is not None
    assert found.text[0].startswith("one: start. It starts with")
    (chosen,) = [plan for plan in found.plans if plan.mark == "*"]
    choice = decided.decisions[0].choice
    assert choice is not None
    assert (chosen.workers, chosen.servers, chosen.verdict) == (choice.workers, choice.servers, "chosen")
    assert source.explain("one", number + 1) is None


def test_the_newest_evaluation_is_shown(source: LiveSource, files: BrainFiles) -> None:
    job = create_job(recipe())
    one = EvaluationResult(10, 1000, 0.5, 0.7, {"user": 0.92}, {"user": None})
    _write_status(job, evaluations=[to_builtins(one)])
    job.write_result(Result("succeeded", NOW, status=job.status()))
    _commit(files, _entry(job, "succeeded", ended_at=NOW))
    detail = source.job(job.id)
    assert detail is not None and detail.evaluated is not None
    assert (detail.evaluated.unknown, len(detail.evaluated.warnings)) == ("user 92%", 1)
