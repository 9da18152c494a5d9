"""The brain as a process of its own: one for each user (for each state directory, to be exact), that the first job starts and that ends
when none has come for a while.

``python -m dlrover_lite.brain_server.daemon OPTIONS`` cuts loose from who starts it; ``serve`` is the same in the foreground.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import BrainError, DlroverLiteError, JobError
from dlrover_lite.core.garbage_collection import infrequent_garbage_collection
from dlrover_lite.core.processes.log import log
from dlrover_lite.core.version import __version__

__all__ = ["DaemonOptions", "DaemonReady", "look_at", "serve", "stopped_by_signals"]

_SOCKET, _HISTORY_SOCKET = "brain.sock", "history.sock"
_LOCK_SECONDS = 10.0
"""Seconds to wait for the daemon before to be gone: it has said that it goes, or was killed."""
_MOST_LOG = 1 << 20


class DaemonOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str = __version__
    idle_seconds: float | None = None
    """Seconds without a job after which the daemon ends; None: as the person prefers; 0: it stays."""
    ready: int = -1
    """Descriptor to write DaemonReady to."""
    starting: int = -1
    """Descriptor of the lock that the daemon's starter holds, and the daemon too until it listens."""
    job_comes: bool = False
    """The daemon is started for a job: it gets ready to plan one at once."""
    listen: str = ""
    """Endpoint to listen at over TCP, for jobs of a cluster, with the key that the environment names; empty: a unix socket."""


class DaemonReady(msgspec.Struct, frozen=True):
    """What the daemon tells who started it, once."""

    pid: int = 0
    idle_seconds: float | None = None
    error: str = ""
    hint: str = ""


def serve(
    options: DaemonOptions,
    *,
    ready: Callable[[DaemonReady], None],
    say: Callable[[str], None],
    stop: Callable[[], bool],
) -> str:
    """Be the daemon until it has to end; return why, in words. ``ready`` is told once it listens.

    Raises BrainError when there is one already, HistoryError when its database can't be used, JobError when there is no place for sockets.
    """
    from dlrover_lite.backends.keeper.runtime_directories import create_runtime_directory, remove_runtime_directory
    from dlrover_lite.brain.store import preferences
    from dlrover_lite.brain.store.database import ConfigStore
    from dlrover_lite.brain.store.history import FileHistory
    from dlrover_lite.brain_server.decision_thread import DecisionThread
    from dlrover_lite.brain_server.files import BrainFiles, BrainRecord
    from dlrover_lite.brain_server.history_thread import HistoryThread
    from dlrover_lite.brain_server.service import Service
    from dlrover_lite.core.processes.identity import identify
    from dlrover_lite.protocol.brain_messages import BrainRequests
    from dlrover_lite.protocol.history_messages import HistoryQuestion
    from dlrover_lite.transport.connector import Connector

    files = BrainFiles()
    files.make()
    process = identify(os.getpid())
    assert process is not None
    with ExitStack() as stack:
        stack.enter_context(infrequent_garbage_collection())
        lock = stack.enter_context(files.daemon_lock())
        if not lock.take(_LOCK_SECONDS):
            raise BrainError(
                f"A brain runs already: {files.locked(lock)}",
                hint="See: dlrover-lite brain status. If none runs, end the process that holds the lock.",
            )
        if (before := files.record()) is not None:  # it was killed
            remove_runtime_directory(Path(before.runtime_directory))
            files.remove_record()
        store = ConfigStore(files.database)
        stack.callback(store.db.close)
        liked = preferences.read(store).idle_seconds
        idle = liked if options.idle_seconds is None else options.idle_seconds or None
        runtime = create_runtime_directory(files.directory, "brain", process)
        stack.callback(remove_runtime_directory, runtime)
        connector = Connector.of_this_process() if options.listen else Connector()
        stack.callback(connector.close, linger_seconds=1.0)
        endpoint = options.listen or f"ipc://{runtime / _SOCKET}"
        # in a cluster nobody shares a disk with it: who serves a job's files there asks for the history by the same port
        kinds = BrainRequests | HistoryQuestion if options.listen else BrainRequests
        server = connector.server(endpoint, kinds, remember_replies=True)
        thinking = DecisionThread(files.database, say=say, runs=lambda directory: look_at(directory) is None)
        stack.callback(thinking.close)
        if options.job_comes:
            thinking.begin()
        service = Service(
            server,
            store,
            look=look_at,
            advise=thinking.advice,
            tell=thinking.told,
            idle_seconds=idle,
            history=FileHistory(files.database) if options.listen else None,
            version=options.version,
            say=say,
        )
        stack.callback(service.close)
        history = HistoryThread(connector, f"ipc://{runtime / _HISTORY_SOCKET}", files.database)
        history.start()
        stack.callback(history.close)
        stack.callback(files.remove_record)
        files.write_record(
            BrainRecord(
                process,
                options.version,
                server.endpoint.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//127.0.0.1:"),
                str(runtime),
                time.time(),
                history=history.endpoint,
            )
        )
        ready(DaemonReady(os.getpid(), idle))

        def has_to_end() -> str:
            if stop():
                return "stopped by a signal"
            return "" if lock.is_in_place() else "its directory was removed"

        return service.run(has_to_end)


def look_at(directory: str) -> Any:
    """Say how the job with these files has ended; None while it runs. (``brain_server.service.Look``)"""
    from dlrover_lite.backends.local.jobs.local_jobs import summary_of
    from dlrover_lite.brain_server.service import JobEnd
    from dlrover_lite.jobs.store import Job

    if not directory:
        return None  # not on this machine: its master will say
    job = Job(Path(directory))
    try:
        now = summary_of(job)
        if (result := now.result) is None:
            return None
        if result.state != "lost":
            return JobEnd(result.state, result.ended_at, result.message, result.status or {})
        status, began = job.status() or {}, now.started_at or now.created_at
        at = began + float(status.get("elapsed_seconds") or 0.0)
        return JobEnd(now.state, at, "its supervisor was killed", status)
    except JobError as error:  # removed by hand, or damaged
        return JobEnd("lost", time.time(), error.message.partition("\n")[0])


def _cut_loose() -> None:
    """Cut the daemon loose from who starts it: it is nobody's child, and in a session without terminal."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")


def stopped_by_signals() -> Callable[[], bool]:
    """Return a function that says whether SIGTERM, SIGINT or SIGHUP has come since."""
    came: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: came.append(number))
    return lambda: bool(came)


def _say(line: str) -> None:
    """Write a line to brain.log. A full disk must not end the brain."""
    with suppress(OSError):
        if os.fstat(1).st_size > _MOST_LOG:
            os.ftruncate(1, 0)
    log(line)


def main(arguments: list[str]) -> int:
    options = from_json(arguments[0], DaemonOptions)
    _cut_loose()
    stop = stopped_by_signals()
    for descriptor in (options.ready, options.starting):
        os.set_inheritable(descriptor, False)

    listens = False

    def ready(said: DaemonReady) -> None:
        nonlocal listens
        listens = not said.error
        os.close(options.starting)  # first: whoever is told that it listens may look for it at once
        with suppress(BrokenPipeError), os.fdopen(options.ready, "wb") as pipe:
            pipe.write(msgspec.json.encode(said))
        if listens:
            _say(f"listens, version {options.version}, process {said.pid}")

    try:
        why = serve(options, ready=ready, say=_say, stop=stop)
    except DlroverLiteError as error:
        _say(str(error))
        if not listens:  # else its starter has gone
            ready(DaemonReady(error=error.message, hint=error.hint))
        return 1
    _say(f"ends: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
