"""Starting a job's keeper, and tying its life to ours."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dlrover_lite.backends.keeper.options import KeeperOptions, KeeperReady
from dlrover_lite.backends.limits.systemd_scope import scoped
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.core.files.durable import open_private
from dlrover_lite.core.files.paths import python_environment
from dlrover_lite.core.processes.limits import descriptor_shortage, exhausted, process_shortage, raise_descriptors
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.recipe.schema import Recipe

__all__ = ["check_process_limits", "release_ended", "start_keeper"]


@dataclass(eq=False)
class Started:
    """A keeper started here: its process, and our end of the pipe that tells it that we live."""

    job: Path
    """Directory of its job."""
    process: subprocess.Popen[bytes]
    tie: int | None

    def release(self) -> None:
        tie, self.tie = self.tie, None
        if tie is not None:
            os.close(tie)
        with suppress(ValueError):  # another thread has done it
            _all_started.remove(self)


_all_started: list[Started] = []
"""Keepers started here: a job lives as long as this interpreter, not as long as somebody holds its handle."""


def _in_forked_child() -> None:
    """Close the ties in a fork of the launching process: it must not keep the jobs alive."""
    for started in _all_started:
        if started.tie is not None:
            os.close(started.tie)
            started.tie = None


os.register_at_fork(after_in_child=_in_forked_child)


def release_ended(job: Job) -> None:
    """Let go of the keeper of this job that was started here, if it has ended."""
    for started in [one for one in _all_started if one.job == job.directory]:
        if started.process.poll() is not None:
            started.release()


def start_keeper(job: Job, *, detach: bool, options: KeeperOptions) -> None:
    """Start the keeper of a job whose files say that it starts. Raises JobError, with the last lines of its log, when it doesn't come
    up."""
    if options.transport == "tcp":
        from dlrover_lite.transport.curve import JobKey

        job.write_key(JobKey.generate().text())
    ready, ready_end = os.pipe()
    tie_end, tie = (None, None) if detach else os.pipe()
    ends = [end for end in (ready_end, tie_end) if end is not None]
    try:
        started = Started(job.directory, _start_keeper(job, options, ready_end, tie_end), tie)
    except OSError as error:
        if tie is not None:
            os.close(tie)
        os.close(ready)
        shortage = exhausted(error)
        why, hint = (error, "") if shortage is None else shortage
        failure = JobError(f"Can't start the job's keeper: {why}", hint=hint)
        _record_false_start(job, failure)
        raise failure from error
    finally:
        for end in ends:
            os.close(end)
    _all_started.append(started)
    try:
        with os.fdopen(ready, "rb") as pipe:
            _check(job, pipe.read())
    except BaseException as error:  # also when interrupted: what was started must not go on unseen
        started.process.terminate()
        started.process.wait()
        started.release()
        _record_false_start(job, error)
        raise


def check_process_limits(recipe: Recipe) -> None:
    """Check this user's limits for processes. Raises JobError where they may not have what the job's nodes need."""
    limits = recipe.resources
    nodes = sum(role.count if role else os.cpu_count() or 1 for role in (limits.ps, limits.worker))
    for shortage in (descriptor_shortage(nodes), process_shortage(nodes)):
        if shortage is not None:
            raise JobError(f"The job can't start: {shortage.message}", hint=shortage.hint)
    raise_descriptors(nodes)


def _record_false_start(job: Job, error: BaseException) -> None:
    """Write a result, so that the job isn't taken for one whose keeper was killed, and that it is over. The keeper's own word, if it has
    left one, stays."""
    if isinstance(error, DlroverLiteError):
        result = Result("failed", time.time(), error.message, error.hint)
    else:
        result = Result("stopped", time.time(), "interrupted while it started")
    with suppress(JobError):
        job.write_result(result)
        record = job.record()
        job.write_record(msgspec.structs.replace(record, state="ended", ended_at=record.ended_at or time.time()))


def _start_keeper(job: Job, options: KeeperOptions, ready: int, tie: int | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "dlrover_lite.backends.keeper.keeper", str(job.directory)]
    command += ["--options", msgspec.json.encode(options).decode(), "--ready", str(ready)]
    command += [] if tie is None else ["--tie", str(tie)]
    with os.fdopen(open_private(job.log("keeper"), os.O_WRONLY | os.O_APPEND), "ab") as log:
        return subprocess.Popen(
            scoped(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[fd for fd in (ready, tie) if fd is not None],
            env=python_environment(),
        )


def _check(job: Job, said: bytes) -> None:
    if not said:
        lines = job.last_log_lines("keeper")
        raise JobError(
            f"The keeper of {job.id} did not come up" + (f":\n{lines}" if lines else "."),
            hint=f"Its log: {job.log('keeper')}",
        )
    ready = from_json(said, KeeperReady)
    if ready.error:
        raise JobError(ready.error, hint=ready.hint)
