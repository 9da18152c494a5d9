"""What every backend for jobs must do. A backend's own test file subclasses ``JobBackendContract`` and provides ``scripted``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.backend import JobBackend, JobSummary, Log, RunOptions
from dlrover_lite.jobs.store import Beginning
from dlrover_lite.protocol.messages import MasterReplies
from dlrover_lite.protocol.questions import Status, StatusRequest
from dlrover_lite.recipe.schema import Recipe
from tests.backends.support import PATIENCE_SECONDS, recipe, until


@dataclass
class ScriptedJobs:
    """A backend, and jobs whose master behaves as told.

    ``idle`` (ends when it is asked to), ``deaf`` (goes on when it is asked to; prints ``up`` once it does), ``exit`` (ends without a
    result), ``succeed`` (ends with one), ``nodes`` (two workers that print their names and stay; ends when it is asked to), ``listen``
    (answers a ``StatusRequest``; ends when it is asked to).
    """

    backend_for: Callable[[str], JobBackend]
    """(behaviour): a backend whose masters behave so."""
    kill_master: Callable[[str], None]
    """(job): end its master, as a fault of its machine would."""
    lose: Callable[[str], None]
    """(job): end all that runs it, with no word, as if it had never been asked for."""
    backend: JobBackend = field(init=False)
    """Another caller than those who submit."""
    submitted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backend = self.backend_for("idle")

    def submit(self, behaviour: str, name: str = "scripted") -> str:
        job = self.backend_for(behaviour).submit(recipe(name), options=RunOptions())
        self.submitted.append(job)
        return job

    def ended(self, job: str) -> JobSummary:
        """How it was at its end, once nothing of it runs any more."""
        assert self.backend.wait(job, PATIENCE_SECONDS)
        summary = self.backend.state(job)
        assert summary.over and summary.result is not None
        assert summary.result.state == summary.state
        return summary

    def wait_for_line(self, job: str, node: str, text: str) -> None:
        log, lines = self.backend.log(job, node), list[str]()

        def seen() -> bool:
            lines.extend(log.new_lines())
            return any(text in line for line in lines)

        until(seen, f"{text!r} of {node}")

    def end_all(self) -> None:
        """A test may have left some running."""
        for job in self.submitted:
            self.backend.kill(job)
            assert self.backend.wait(job, PATIENCE_SECONDS)


def lines_of(log: Log) -> list[str]:
    return list(log.new_lines(at_end=True))


class JobBackendContract:
    @pytest.fixture
    def jobs(self, scripted: ScriptedJobs) -> Iterator[ScriptedJobs]:
        yield scripted
        scripted.end_all()

    def test_capacity_has_cores_and_memory(self, jobs: ScriptedJobs) -> None:
        hosts = jobs.backend.capacity()
        assert len({host.name for host in hosts}) == len(hosts) > 0
        assert all(host.resources.cores > 0 and host.resources.memory > 0 for host in hosts)

    def test_a_dry_run_starts_and_stores_nothing(self, jobs: ScriptedJobs) -> None:
        before = jobs.backend.list()
        for _ in range(2):
            jobs.backend.dry_run(recipe())
        assert jobs.backend.list() == before

    def test_a_submitted_job_runs_until_it_is_stopped(self, jobs: ScriptedJobs) -> None:
        job = jobs.submit("idle")
        running = jobs.backend.state(job)
        assert (running.id, running.state, running.over, running.result) == (job, "running", False, None)
        assert running.started_at is not None and running.created_at <= running.started_at
        assert not jobs.backend.wait(job, 0)
        assert jobs.backend.stop(job)
        stopped = jobs.ended(job)
        assert (stopped.state, stopped.created_at) == ("stopped", running.created_at)
        assert stopped.result is not None and stopped.result.message == "stopped by request"
        assert stopped.ended_at is not None and stopped.ended_at >= running.started_at
        assert jobs.backend.state(job) == stopped

    def test_a_job_ends_with_its_masters_result(self, jobs: ScriptedJobs) -> None:
        assert jobs.ended(jobs.submit("succeed")).state == "succeeded"

    def test_a_master_that_ends_without_a_result_fails_the_job(self, jobs: ScriptedJobs) -> None:
        ended = jobs.ended(jobs.submit("exit"))
        assert ended.state == "failed"
        assert ended.result is not None and "without a result" in ended.result.message

    def test_two_jobs_of_the_same_name_are_two(self, jobs: ScriptedJobs) -> None:
        first, second = jobs.submit("idle", "twin"), jobs.submit("idle", "twin")
        assert first != second
        assert [job for job in jobs.backend.list() if job in (first, second)] == [first, second]
        jobs.backend.stop(first)
        assert jobs.ended(first).state == "stopped"
        assert jobs.backend.state(second).state == "running"

    def test_jobs_are_found_by_id_or_as_the_newest(self, jobs: ScriptedJobs) -> None:
        first, second = jobs.submit("succeed", "first"), jobs.submit("succeed", "second")
        assert [jobs.backend.find(job) for job in (first, second, "last")] == [first, second, second]
        assert jobs.backend.find(second[:-1]) == second
        with pytest.raises(JobError, match=first):
            jobs.backend.find(f"{first}x")

    def test_its_files_have_the_recipe(self, jobs: ScriptedJobs) -> None:
        job = jobs.submit("succeed", "with-files")
        files = jobs.backend.files(job)
        assert files.id == job
        assert isinstance(files.recipe, Recipe) and files.recipe.name == "with-files"

    @pytest.mark.parametrize("job", ["never-was", "../up", ""])
    def test_a_job_that_never_was_is_refused(self, jobs: ScriptedJobs, job: str) -> None:
        backend = jobs.backend
        for call in (backend.state, backend.wait, backend.stop, backend.kill, backend.log_names):
            with pytest.raises(JobError, match="job"):
                call(job)
        with pytest.raises(JobError, match="job"):
            backend.log(job, "master")
        with pytest.raises(JobError, match="job"), backend.address(job):
            pass

    def test_stopping_again_does_not_hurry_the_job(self, jobs: ScriptedJobs) -> None:
        job = jobs.submit("deaf")
        jobs.wait_for_line(job, "master", "up")
        for _ in range(3):
            assert jobs.backend.stop(job)
        assert not jobs.backend.wait(job, 0.5)
        assert jobs.backend.kill(job)
        assert jobs.ended(job).state == "stopped"

    def test_the_result_tells_the_cause_of_a_stop(self, jobs: ScriptedJobs) -> None:
        job = jobs.submit("idle")
        jobs.backend.stop(job, cause="terminal closed")
        stopped = jobs.ended(job)
        assert stopped.state == "stopped"
        assert stopped.result is not None and "the terminal" in stopped.result.message

    def test_a_killed_job_is_over_though_its_master_is_deaf(self, jobs: ScriptedJobs) -> None:
        job = jobs.submit("deaf")
        jobs.wait_for_line(job, "master", "up")
        assert jobs.backend.kill(job)
        jobs.backend.kill(job)
        killed = jobs.ended(job)
        assert killed.state == "stopped"
        assert killed.result is not None and killed.result.message == "killed by request"

    def test_a_job_whose_master_is_gone_can_be_killed(self, jobs: ScriptedJobs) -> None:
        job = jobs.submit("nodes")
        jobs.wait_for_line(job, "worker-1", "worker-1")
        jobs.kill_master(job)
        assert jobs.backend.kill(job)
        assert jobs.ended(job).state == "stopped"

    @pytest.mark.parametrize("end", ["stop", "kill"])
    def test_ending_a_job_that_is_over_changes_nothing(self, jobs: ScriptedJobs, end: str) -> None:
        job = jobs.submit("succeed")
        before = jobs.ended(job)
        assert not getattr(jobs.backend, end)(job)
        assert jobs.ended(job) == before

    def test_a_job_ended_with_no_word_is_lost(self, jobs: ScriptedJobs) -> None:
        job = jobs.submit("idle")
        jobs.lose(job)
        lost = jobs.ended(job)
        assert lost.state == "lost"
        assert lost.result is not None and lost.result.message
        assert not jobs.backend.stop(job)

    def test_the_log_of_an_ended_node_is_read_again_and_in_part(self, jobs: ScriptedJobs) -> None:
        job = jobs.submit("nodes")
        for node in ("worker-0", "worker-1"):
            jobs.wait_for_line(job, node, node)
        jobs.backend.stop(job)
        jobs.ended(job)
        assert {"master", "worker-0", "worker-1"} <= set(jobs.backend.log_names(job))
        lines = lines_of(jobs.backend.log(job, "worker-1"))
        assert any("worker-1" in line for line in lines)
        assert lines_of(jobs.backend.log(job, "worker-1")) == lines
        assert lines_of(jobs.backend.log(job, "worker-1", last_lines=1)) == lines[-1:]
        log = jobs.backend.log(job, "worker-1", last_lines=0)
        assert (lines_of(log), log.begun, log.restarts) == ([], "", 0)

    def test_a_node_that_wrote_nothing_has_an_empty_log(self, jobs: ScriptedJobs) -> None:
        job = jobs.submit("succeed")
        jobs.ended(job)
        assert lines_of(jobs.backend.log(job, "worker-7")) == []
        assert "worker-7" not in jobs.backend.log_names(job)
        with pytest.raises(JobError, match="no log"):
            jobs.backend.log(job, "../up")

    def test_the_master_answers_at_its_address(self, jobs: ScriptedJobs) -> None:
        job = jobs.submit("listen")

        def listens() -> bool:
            with jobs.backend.address(job) as address:
                return address is not None

        until(listens, "the master")
        for _ in range(2):
            with jobs.backend.address(job) as address:
                assert address is not None
                client = address.connector.client(address.endpoint, MasterReplies)
                answer = client.call(StatusRequest(), deadline_seconds=PATIENCE_SECONDS).body
                client.close()
                assert isinstance(answer, Status) and answer.job == job
        jobs.backend.kill(job)
        jobs.ended(job)
        with jobs.backend.address(job) as address:
            assert address is None

    def test_a_master_that_does_not_listen_has_no_address(self, jobs: ScriptedJobs) -> None:
        job = jobs.submit("idle")
        with jobs.backend.address(job) as address:
            assert address is None

    def test_a_job_that_is_over_goes_on_under_its_id(self, jobs: ScriptedJobs) -> None:
        job, beginning = jobs.submit("idle"), Beginning(1, "somewhere", 1)
        with pytest.raises(JobError, match="runs"):
            jobs.backend.resume(job, beginning, options=RunOptions())
        jobs.backend.stop(job, cause="suspend")
        before = jobs.ended(job)
        assert before.state == "suspended" and before.over
        assert before.result is not None and before.result.message == "suspended by request"
        jobs.backend.resume(job, beginning, options=RunOptions())
        again = jobs.backend.state(job)
        assert (again.state, again.result, again.created_at) == ("running", None, before.created_at)
        assert jobs.backend.files(job).beginning() == beginning
        assert list(jobs.backend.list()).count(job) == 1
        jobs.backend.kill(job)
        assert jobs.ended(job).state == "stopped"
