"""Keepers, and their templates, forked from a process that has imported what nodes need, as each job would import it anew in more than a
second of CPU: ``from tests.forked_keepers import forked_keepers`` in a conftest, for jobs that the tests' own process starts.

What runs afterwards is the same code in the same tree of processes, except that a keeper isn't the launcher's child. Jobs that commands in
processes of their own start have all of it started as people's have, and so has whatever needs another environment. The process imports
by itself, and is forked before it has any thread; a keeper forks its template before it has any.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.backends.keeper import children
from dlrover_lite.backends.keeper.options import KeeperOptions
from dlrover_lite.backends.limits.systemd_scope import scoped
from dlrover_lite.backends.local.jobs import launching
from dlrover_lite.core import failpoints
from dlrover_lite.core.files.durable import open_private
from dlrover_lite.core.files.paths import python_environment
from dlrover_lite.core.processes.identity import JOB_VARIABLE
from dlrover_lite.jobs.store import Job
from tests.keeper_forks import LONGEST_COMMAND_BYTES, Request

__all__ = ["Keepers", "forked_keepers"]

PROCESS = Path(__file__).with_name("keeper_forks.py")
_READ_AT_START = ("PYTHON", "NUMBA_", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "MALLOC_", "GLIBC_", "LD_")
"""Beginnings of the names of variables that Python and libraries read once, when they start."""


class _Keeper:
    """What a launcher does with the process of a keeper, as ``subprocess.Popen`` has it, for one that isn't its child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._descriptor: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._descriptor = None

    def poll(self) -> int | None:
        """Return a number once the process has ended: not its exit code, which only its parent is told."""
        if self._descriptor is not None and select.select([self._descriptor], [], [], 0)[0]:
            self._close()
        return 0 if self._descriptor is None else None

    def terminate(self) -> None:
        if self._descriptor is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)

    def wait(self) -> int:
        if self._descriptor is not None:
            select.select([self._descriptor], [], [])
            self._close()
        return 0

    def _close(self) -> None:
        assert self._descriptor is not None
        os.close(self._descriptor)
        self._descriptor = None

    def __del__(self) -> None:
        if self._descriptor is not None:
            self._close()


class Keepers:
    """The process that keepers are forked from. It is started when the first is wanted, and ends with this one."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}
        self._started = launching._start_keeper

    def start(self, job: Job, options: KeeperOptions, ready: int, tie: int | None) -> subprocess.Popen[bytes]:
        """In place of ``launching._start_keeper``."""
        environment = python_environment()
        if scoped(["keeper"]) != ["keeper"]:
            return self._started(job, options, ready, tie)
        if self._channel is None:
            self._begin(environment)
        assert self._channel is not None
        if _read_at_start(environment) != self._environment:
            return self._started(job, options, ready, tie)
        passed = {"--ready": ready, **({} if tie is None else {"--tie": tie})}
        request = Request(
            str(job.directory),
            msgspec.json.encode(options).decode(),
            str(Path.cwd()),
            environment,
            list(passed),
            resource.getrlimit(resource.RLIMIT_NOFILE),
        )
        output = open_private(job.log("keeper"), os.O_WRONLY | os.O_APPEND)
        with open(os.devnull, "rb") as nothing, os.fdopen(output, "ab") as log:  # noqa: PTH123
            descriptors = [nothing.fileno(), log.fileno(), *passed.values()]
            socket.send_fds(self._channel, [msgspec.json.encode(request)], descriptors)
        pid = self._channel.recv(64)
        assert pid, "the process that keepers are forked from has ended: what it has said is in the output"
        return _Keeper(int(pid))  # type: ignore[return-value]

    def close(self) -> None:
        if self._channel is not None and self._process is not None:
            self._channel.close()
            self._process.wait()

    def _begin(self, environment: dict[str, str]) -> None:
        self._environment = _read_at_start(environment)
        begun = {**environment, **children.SINGLE_THREADED, JOB_VARIABLE: "x" * LONGEST_COMMAND_BYTES}
        begun.pop(failpoints.VARIABLE, None)  # each keeper has its own
        self._channel, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with end:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROCESS), str(end.fileno()), "x" * LONGEST_COMMAND_BYTES],
                pass_fds=[end.fileno()],
                env=begun,
            )


def _read_at_start(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


@pytest.fixture(scope="module", autouse=True)
def forked_keepers(keepers: Keepers) -> Iterator[None]:
    """Have the keepers of jobs that this process starts forked, on Linux."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform.startswith("linux"):
            patch.setattr(launching, "_start_keeper", keepers.start)
        yield
