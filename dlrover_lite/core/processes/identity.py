"""Processes named so that a recycled pid is never mistaken for the one that was meant."""

from __future__ import annotations

import os
import select
import signal
import sys
from functools import cache
from pathlib import Path

import msgspec

__all__ = [
    "JOB_VARIABLE",
    "ProcessIdentity",
    "identify",
    "is_alive",
    "is_foreign",
    "kill_processes_of",
    "send_signal",
    "wait_for_end",
]

JOB_VARIABLE = "DLROVER_LITE_JOB"
"""Variable that holds the job's directory in the environment of its master and nodes, and of whatever these start."""

LINUX = sys.platform.startswith("linux")


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A pid and when its process started; ``started`` is opaque and only compared."""

    pid: int
    started: str


def identify(pid: int) -> ProcessIdentity | None:
    """Identify the running process with this pid; None when there is none, or when it has ended and merely waits to be reaped."""
    if LINUX:
        try:
            # The name in parentheses may hold anything; the state and the rest follow the last parenthesis.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        if fields[0] in "ZX":
            return None
        return ProcessIdentity(pid, f"{_boot()} {_namespace()} {fields[19]}")
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return ProcessIdentity(pid, f"{process.create_time():.3f}")
    except psutil.NoSuchProcess:
        return None


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def is_alive(process: ProcessIdentity) -> bool:
    return identify(process.pid) == process


def is_foreign(process: ProcessIdentity) -> bool:
    """Say whether the process belongs to another container on this machine, so that nothing can be said about it from here."""
    if not LINUX:
        return False
    boot, _, rest = process.started.partition(" ")
    return boot == _boot() and rest.partition(" ")[0] != _namespace()


def send_signal(process: ProcessIdentity, number: int) -> bool:
    """Signal exactly this process; False when it has ended."""
    try:
        if not hasattr(os, "pidfd_open"):
            if not is_alive(process):
                return False
            os.kill(process.pid, number)
            return True
        pidfd = os.pidfd_open(process.pid)
        try:
            if not is_alive(process):
                return False
            signal.pidfd_send_signal(pidfd, number)
            return True
        finally:
            os.close(pidfd)
    except ProcessLookupError:
        return False


def kill_processes_of(job_directory: str) -> None:
    """Kill what carries this job's directory in its environment. Looks at every process: for jobs that have lost their keeper."""
    import psutil

    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(JOB_VARIABLE) == job_directory:
                process.kill()
        except psutil.Error:
            continue  # ended meanwhile, or another user's


def wait_for_end(process: ProcessIdentity, timeout_seconds: float | None) -> bool:
    """Wait until the process has ended (it may still wait to be reaped); False after the timeout."""
    if not hasattr(os, "pidfd_open"):
        return _wait_with_psutil(process, timeout_seconds)
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if (now := identify(process.pid)) is not None and now != process:
            return True
        # a first thread that has ended isn't all of it: while others end, the process still has its files and locks
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(None if timeout_seconds is None else max(0.0, timeout_seconds * 1000)))
    finally:
        os.close(pidfd)


def _wait_with_psutil(process: ProcessIdentity, timeout_seconds: float | None) -> bool:
    import psutil

    try:
        watched = psutil.Process(process.pid)
        if is_alive(process):
            watched.wait(timeout_seconds)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True
