"""Jobs of this machine: each has a directory, and a keeper that is known by its pid and told by signals."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from dlrover_lite.backends.host.machine import this_host
from dlrover_lite.backends.keeper.options import KeeperOptions
from dlrover_lite.backends.limits.probe import probe_enforcement
from dlrover_lite.backends.local.jobs.job_logs import LogFile
from dlrover_lite.backends.local.jobs.launching import check_process_limits, release_ended, start_keeper
from dlrover_lite.backends.local.jobs.leftovers import sweep
from dlrover_lite.core.errors import BackendError, JobError
from dlrover_lite.core.processes.identity import ProcessIdentity, is_alive, send_signal, wait_for_end
from dlrover_lite.jobs import store
from dlrover_lite.jobs.backend import LOCAL, Address, JobSummary, RunOptions, StopCause
from dlrover_lite.jobs.store import Beginning, Job, JobRecord, Result, State
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.recipe.schema import Recipe

__all__ = ["LocalJobs", "create_job", "summary_of"]

_GRACE_WITH_CHECKPOINT_SECONDS = 90.0
"""Seconds that a master gets which is to stop: it takes a last checkpoint, for at most a minute, then ends its nodes."""
_STOP_SIGNALS: dict[StopCause, signal.Signals] = {
    "request": signal.SIGTERM,
    "terminal closed": signal.SIGHUP,
    "suspend": signal.SIGUSR1,
}
_LAUNCH_SECONDS = 0.1
"""Seconds between two looks for the keeper of a job that is just being launched."""


class LocalJobs:
    """``JobBackend`` of this machine. ``keeper``: how keepers run the jobs submitted here; None: as fits the recipe."""

    def __init__(self, keeper: KeeperOptions | None = None) -> None:
        self._keeper = keeper

    @property
    def source(self) -> str:
        return LOCAL

    def capacity(self) -> list[Host]:
        return [this_host()]

    def shares_cores(self) -> bool:
        if self._keeper is not None and self._keeper.own_cores:
            return False
        try:
            return probe_enforcement().shared_cores
        except BackendError:  # no job could start then, and it says why
            return False

    def dry_run(self, recipe: Recipe) -> None:
        check_process_limits(recipe)

    def submit(
        self,
        recipe: Recipe,
        *,
        options: RunOptions,
        detached: bool = False,
        beginning: Beginning | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> str:
        sweep()
        job = create_job(recipe, detached=detached)
        if beginning is not None:
            job.write_beginning(beginning)
        start_keeper(job, detach=detached, options=self._keeper_options(recipe, options))
        return job.id

    def resume(
        self,
        job: str,
        beginning: Beginning,
        *,
        options: RunOptions,
        detached: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        sweep()
        found = _known(job)
        found.start_again(
            beginning, launcher=store.this_process(), detached=detached, is_over=lambda: _is_over(found.record())
        )
        start_keeper(found, detach=detached, options=self._keeper_options(found.recipe, options))

    def _keeper_options(self, recipe: Recipe, options: RunOptions) -> KeeperOptions:
        keeper = self._keeper
        if keeper is None:
            keeper = KeeperOptions()
            if recipe.checkpoint != "off":
                keeper = KeeperOptions(master_grace_seconds=_GRACE_WITH_CHECKPOINT_SECONDS)
        return msgspec.structs.replace(keeper, brain=options.brain, transport=options.transport)

    def history(self, job: str) -> None:
        return None

    def list(self) -> Sequence[str]:
        return [job.id for job in store.list_jobs()]

    def find(self, reference: str) -> str:
        return store.find_job(reference).id

    def files(self, job: str) -> Job:
        return store.job_of(job)

    def state(self, job: str) -> JobSummary:
        return summary_of(_known(job))

    def wait(self, job: str, timeout_seconds: float | None = None) -> bool:
        found, began = _known(job), time.monotonic()
        while True:
            record = found.record()
            if (runner := _runner(record)) is None:
                break
            left = None if timeout_seconds is None else max(0.0, began + timeout_seconds - time.monotonic())
            is_keeper = record.keeper is not None
            patience = left if is_keeper else min(_LAUNCH_SECONDS, _LAUNCH_SECONDS if left is None else left)
            if wait_for_end(runner, patience):
                if is_keeper or found.record().keeper is None:
                    break
            elif left is not None and (is_keeper or left <= _LAUNCH_SECONDS):
                return False
        release_ended(found)
        if found.result() is None:
            sweep()
        return True

    def stop(self, job: str, *, cause: StopCause = "request") -> bool:
        return _tell(job, _STOP_SIGNALS[cause])

    def kill(self, job: str) -> bool:
        return _tell(job, signal.SIGQUIT)

    def log_names(self, job: str) -> Sequence[str]:
        return sorted(path.stem for path in _known(job).logs.glob("*.log"))

    def log(self, job: str, node: str, *, last_lines: int | None = None) -> LogFile:
        return LogFile(_known(job).log(node), last_lines=last_lines)

    @contextmanager
    def address(self, job: str) -> Iterator[Address | None]:
        found = _known(job)
        record = found.record()
        try:
            listens = bool(record.runtime_directory) and record.has_master
            endpoint = record.master_endpoint if listens else ""
        except PermissionError as error:
            raise JobError(f"The master of {job} belongs to another user", hint="Ask whoever started it.") from error
        except FileNotFoundError:  # where it listened over TCP: it has just ended
            endpoint = ""
        if not endpoint:
            yield None
            return
        from dlrover_lite.transport.connector import Connector, read_key

        with Connector(read_key(found.key_file) if record.transport == "tcp" else None) as connector:
            yield Address(endpoint, connector)


def create_job(recipe: Recipe, *, detached: bool = False, clock: Callable[[], float] = time.time) -> Job:
    """Create a directory for a new job, which this process is about to launch. Raises as ``jobs.store.create_job``."""
    return store.create_job(recipe, launcher=store.this_process(), detached=detached, clock=clock)


def summary_of(job: Job) -> JobSummary:
    """Return how the job with this directory is now. Raises JobError when its files can't be read."""
    release_ended(job)
    record = job.record()
    over = _is_over(record)
    result = job.result()  # after the look at its keeper, which writes one before it ends
    state: State = "running" if record.state == "running" else "starting"
    if over and result is None:
        result = _lost(job, record)
    return JobSummary(
        job.id,
        result.state if result is not None else state,
        over,
        record.created_at,
        record.started_at,
        record.ended_at,
        result,
    )


def _known(job_id: str) -> Job:
    """Return the job with this id. Raises JobError when there is none."""
    job = store.job_of(job_id)
    path = job.directory / "job.json"
    try:
        path.stat()
    except FileNotFoundError as error:
        raise JobError(f"There is no job {job_id} in {job.directory.parent}", hint="All: dlrover-lite jobs") from error
    except OSError as error:
        raise JobError(f"Can't read {path}: {error.strerror}") from error
    return job


def _runner(record: JobRecord) -> ProcessIdentity | None:
    """Return the process with which the job ends; None for one whose keeper never came up."""
    return record.keeper or (None if record.state == "ended" else record.launcher)


def _is_over(record: JobRecord) -> bool:
    runner = _runner(record)
    return runner is None or not is_alive(runner)


def _tell(job: str, number: int) -> bool:
    keeper = _known(job).record().keeper
    return keeper is not None and send_signal(keeper, number)


def _lost(job: Job, record: JobRecord) -> Result:
    """Return how a job ended whose keeper was killed, and had no time to say so."""
    said = job.log("keeper")
    hint = f"Its last words: {said}" if said.is_file() and said.stat().st_size else ""
    message = "the job's keeper was killed, and all its processes with it"
    return Result("lost", record.ended_at or record.created_at, message, hint)
