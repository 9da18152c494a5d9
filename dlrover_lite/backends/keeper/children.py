"""The keeper's children: starting them tied to it, reaping them, leaving none."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import msgspec
import psutil

from dlrover_lite.backends.host import linux
from dlrover_lite.backends.keeper.protocol import TemplateOptions
from dlrover_lite.backends.template.threads import THREAD_VARIABLES
from dlrover_lite.core.files.durable import open_private
from dlrover_lite.core.processes.identity import JOB_VARIABLE
from dlrover_lite.jobs.store import Job

__all__ = ["is_ours", "kill_all", "reap", "spawn", "spawn_template"]

SINGLE_THREADED = {
    **dict.fromkeys(THREAD_VARIABLES, "1"),
    # Threads that wait must sleep: spinning ones slow down every other process of the machine.
    "OMP_WAIT_POLICY": "passive",
    "KMP_BLOCKTIME": "0",
}


def spawn(
    job: Job, name: str, command: list[str], *, keep: int | None = None, variables: dict[str, str] | None = None
) -> int:
    """Start a child in a session of its own that can't outlive this process; its output goes to the log of ``name``. Returns its pid.

    To be called by the main thread only: the kernel ties the child to the thread that has started it.
    """
    if shutil.which(command[0]) is None:  # or only the child would know
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    with os.fdopen(open_private(job.log(name), os.O_WRONLY | os.O_APPEND), "ab") as output:
        process = subprocess.Popen(
            linux.tied(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=() if keep is None else (keep,),
            env={**os.environ, JOB_VARIABLE: str(job.directory), **(variables or {})},
        )
    process.returncode = 0  # reaped by ``reap``, as all children are
    return process.pid


def spawn_template(job: Job, channel: int, imports: list[str], variables: dict[str, str]) -> int:
    options = TemplateOptions(channel, str(job.directory), imports)
    command = [
        sys.executable,
        "-P",
        "-m",
        "dlrover_lite.backends.template.template",
        msgspec.json.encode(options).decode(),
    ]
    return spawn(job, "template", command, keep=channel, variables={**SINGLE_THREADED, **variables})


def reap() -> list[tuple[int, int]]:
    """Reap children that have ended, adopted ones too. Return their pids and exit codes (minus the signal's number)."""
    ended = []
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append((found[0], os.waitstatus_to_exitcode(found[1])))
    return ended


def is_ours(pid: int) -> bool:
    """Return whether ``pid`` is a child that has not been reaped."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, AttributeError):
        return False
    return True


def kill_all(spare: int | None = None) -> list[tuple[int, int]]:
    """Kill and reap every descendant: the children of a killed child become ours, so it goes on until there are none, but for the process
    ``spare``."""
    ended = []
    while pids := [child.pid for child in psutil.Process().children() if child.pid != spare]:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            pid, status = os.waitpid(-1, 0)
            ended.append((pid, os.waitstatus_to_exitcode(status)))
            ended += reap()
    return ended
