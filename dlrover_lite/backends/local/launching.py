"""Starting a job's keeper, and tying its life to ours."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dlrover_lite.backends.local.leftovers import sweep
from dlrover_lite.backends.local.options import KeeperOptions, KeeperReady
from dlrover_lite.backends.local.systemd_scope import scoped
from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.core.files.durable import open_private
from dlrover_lite.core.process_limits import descriptor_shortage, exhausted, process_shortage, raise_descriptors
from dlrover_lite.jobs.store import Beginning, Job, Result, create_job
from dlrover_lite.recipe.schema import Recipe

__all__ = ["Started", "check_process_limits", "environment", "start", "start_keeper"]


@dataclass(eq=False)
class Started:
    """A keeper started here: its process, and our end of the pipe that tells it that we live."""

    process: subprocess.Popen[bytes]
    tie: int | None

    def release(self) -> None:
        if self.tie is not None:
            os.close(self.tie)
            self.tie = None
        if self in _all_started:
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


def start(
    recipe: Recipe, recipe_text: str, *, detach: bool, options: KeeperOptions, beginning: Beginning | None = None
) -> tuple[Job, Started]:
    """Start a new job, with the cut it begins with. Raises JobError, with the last lines of the keeper's log, when it doesn't come up."""
    sweep()
    job = create_job(recipe, recipe_text, detached=detach)
    if beginning is not None:
        job.write_beginning(beginning)
    return job, start_keeper(job, detach=detach, options=options)


def start_keeper(job: Job, *, detach: bool, options: KeeperOptions) -> Started:
    """Start the keeper of a job whose files say that it starts. Raises JobError."""
    if options.transport == "tcp":
        from dlrover_lite.transport.curve import JobKey

        job.write_key(JobKey.generate().text())
    ready, ready_end = os.pipe()
    tie_end, tie = (None, None) if detach else os.pipe()
    ends = [end for end in (ready_end, tie_end) if end is not None]
    try:
        started = Started(_start_keeper(job, options, ready_end, tie_end), tie)
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
    return started


def check_process_limits(recipe: Recipe) -> None:
    """Check this user's limits for processes. Raises JobError where they may not have what the job's nodes need."""
    limits = recipe.resources
    nodes = sum(role.count if role else os.cpu_count() or 1 for role in (limits.ps, limits.worker))
    for shortage in (descriptor_shortage(nodes), process_shortage(nodes)):
        if shortage is not None:
            raise JobError(f"The job can't start: {shortage.message}", hint=shortage.hint)
    raise_descriptors(nodes)


def _record_false_start(job: Job, error: BaseException) -> None:
    """Write a result, so that the job isn't taken for one whose keeper was killed. The keeper's own word, if it has left one, stays."""
    if isinstance(error, DlroverLiteError):
        result = Result("failed", time.time(), error.message, error.hint)
    else:
        result = Result("stopped", time.time(), "interrupted while it started")
    with suppress(JobError):
        job.write_result(result)


def _start_keeper(job: Job, options: KeeperOptions, ready: int, tie: int | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "dlrover_lite.backends.local.keeper", str(job.directory)]
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
            env=environment(),
        )


def environment() -> dict[str, str]:
    """Return the environment for a Python of ours: this process's, and where this package is found if it isn't installed but on our path by
    other means."""
    package_root = str(Path(__file__).parents[3])
    if package_root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package_root not in paths:
        paths.append(package_root)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _check(job: Job, said: bytes) -> None:
    if not said:
        lines = job.last_log_lines("keeper")
        raise JobError(
            f"The keeper of {job.id} did not come up" + (f":\n{lines}" if lines else "."),
            hint=f"Its log: {job.log('keeper')}",
        )
    ready = msgspec.json.decode(said, type=KeeperReady)
    if ready.error:
        raise JobError(ready.error, hint=ready.hint)
