"""The user's brain: found, started where there is none, followed by a newer one, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from dlrover_lite.backends.keeper.runtime_directories import sweep_runtime
from dlrover_lite.backends.limits.systemd_scope import outside_jobs
from dlrover_lite.brain_server.files import BrainFiles, BrainRecord
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import BrainError, RemoteError, WireError
from dlrover_lite.core.files.durable import open_private
from dlrover_lite.core.files.locks import Lock
from dlrover_lite.core.files.paths import python_environment
from dlrover_lite.core.processes.identity import is_foreign, send_signal, wait_for_end
from dlrover_lite.core.version import __version__
from dlrover_lite.protocol.brain_mode import BrainMode

if TYPE_CHECKING:
    from dlrover_lite.brain_server.daemon import DaemonOptions
    from dlrover_lite.protocol.brain_messages import BrainStatus, BrainWelcome

__all__ = ["Brain", "announcement", "ask_status", "begin", "ensure", "serve", "stop"]

_ANSWER_SECONDS = 5.0
_END_SECONDS = 10.0
_START_SECONDS = 60.0
"""Seconds to wait for another command that starts a brain just now."""
_KEPT_VARIABLES = (
    *("HOME", "USER", "LOGNAME", "PATH", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "NUMBA_CACHE_DIR"),
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"),
)
_KEPT_PREFIXES = ("LC_", "XDG_", "DLROVER_LITE_HOME")
"""What a brain is given of the environment of the command that starts it: where things are, and nothing else. It outlives that command."""

A = TypeVar("A")


class Brain(NamedTuple):
    """A brain that listens."""

    pid: int
    version: str
    idle_seconds: float | None = None
    """Seconds without a job after which the brain ends; known only if we have started it."""
    started: bool = False
    """We have started the brain just now."""
    replaced: str = ""
    """Version of the brain that this one follows."""


def ensure(*, version: str = __version__, idle_seconds: float | None = None, job_comes: bool = False) -> Brain:
    """Find a brain that listens: that which does already, unless it is older, or a new one. Two that ask at once get the same one.

    ``idle_seconds``: of a new one; None: as the person prefers. ``job_comes``: it is to get ready for that. Raises BrainError when there is
    none and none can be started: its message and hint are the brain's own.
    """
    from dlrover_lite.brain_server.daemon import DaemonOptions

    with _only_starter() as (files, lock):
        replaced = ""
        if (welcome := _greeted(files, version)) is not None:
            record = _record(files)
            if not _hands_over(record, welcome, version):
                return Brain(welcome.pid, welcome.version)
            replaced = welcome.version
        options = DaemonOptions(version, idle_seconds, starting=lock.descriptor, job_comes=job_comes)
        return _start(files, options)._replace(replaced=replaced)


def begin(mode: BrainMode, say: Callable[[str], None]) -> None:
    """Have a daemon before a job of this mode starts, if that is what it uses. ``say`` is told of a new one, or why there is none: the job
    goes on without."""
    if mode != "daemon":
        return
    try:
        said = announcement(ensure(job_comes=True))
    except BrainError as error:
        without = "The job runs without its advice, and is missing in the history."
        said = f"Warning: there is no brain: {error.message}\n" + "\n".join(
            part for part in (error.hint, without) if part
        )
    if said:
        say(said)


def serve(
    idle_seconds: float | None, *, listen: str = "", ready: Callable[[Brain], None], say: Callable[[str], None]
) -> str:
    """Be the brain in this process, until a signal or until it is told to end; return why, in words. One that is older hands over.

    ``idle_seconds`` without a job end it; None: they don't. ``listen``: endpoint over TCP for jobs of a cluster; empty: a unix socket.
    Raises BrainError when one of this version or a newer one runs, HistoryError when the database can't be used.
    """
    from dlrover_lite.brain_server import daemon

    with _only_starter() as (files, lock):
        if (welcome := _greeted(files, __version__)) is not None and not _hands_over(
            _record(files), welcome, __version__
        ):
            raise BrainError(
                f"A brain runs already (pid {welcome.pid}, version {welcome.version})",
                hint="See: dlrover-lite brain status",
            )

        def listens(said: daemon.DaemonReady) -> None:
            lock.close()
            ready(Brain(said.pid, __version__, said.idle_seconds, started=True))

        options = daemon.DaemonOptions(idle_seconds=idle_seconds or 0.0, listen=listen)
        return daemon.serve(options, ready=listens, say=say, stop=daemon.stopped_by_signals())


@contextmanager
def _only_starter() -> Iterator[tuple[BrainFiles, Lock]]:
    """Hold the lock of whoever starts a brain. Raises BrainError while another command does."""
    files = BrainFiles()
    files.make()
    with files.start_lock() as lock:
        if not lock.take(_START_SECONDS):
            raise BrainError(
                f"Another command has been starting the brain for a minute: {files.locked(lock)}",
                hint=f"End that process, then try again. The brain's log: {files.log}",
            )
        yield files, lock


def announcement(brain: Brain) -> str:
    """Say in a line that a brain was started; empty for one that listened before."""
    if not brain.started:
        return ""
    instead = f" in place of version {brain.replaced}" if brain.replaced else ""
    idle = "" if brain.idle_seconds is None else f", idle exit after {brain.idle_seconds / 60:g} min"
    return f"started the brain{instead} (pid {brain.pid}{idle})"


def ask_status() -> BrainStatus | None:
    """Ask the brain for its status; None when none runs. Raises BrainError when it doesn't answer."""
    from dlrover_lite.protocol.brain_messages import BrainStatus, BrainStatusRequest

    files = BrainFiles()
    return _ask(_record(files), BrainStatusRequest(), BrainStatus) if files.lives() else None


def stop(*, kill: bool = False) -> int | None:
    """End the brain, and wait until it has ended: return its pid, or None if none ran. Jobs go on without.

    Raises BrainError when it doesn't answer, or doesn't end; with ``kill`` it isn't asked.
    """
    from dlrover_lite.protocol.brain_messages import BrainAck, StopBrain

    files = BrainFiles()
    if not files.lives():
        return None
    record = _record(files)
    if kill:
        send_signal(record.process, signal.SIGKILL)
    else:
        _ask(record, StopBrain(), BrainAck)
    _wait(record)
    if kill:
        files.remove_record()
        sweep_runtime()
    return record.process.pid


def _record(files: BrainFiles) -> BrainRecord:
    """Read the record of a brain that lives. Raises BrainError where it can't be reached."""
    record = files.record()
    if record is None:
        raise BrainError("A brain is just starting, or ending", hint=f"Try again in a moment. Its log: {files.log}")
    if is_foreign(record.process):
        raise BrainError(
            f"The brain of {files.directory} runs in another container, and can't be reached from here",
            hint="Point DLROVER_LITE_HOME to a directory of this container, or give --no-daemon.",
        )
    return record


def _greeted(files: BrainFiles, version: str) -> BrainWelcome | None:
    """Greet the brain that lives, and return its welcome; None where there is none, or it is just about to be gone: who comes next waits
    for that."""
    from dlrover_lite.protocol.brain_messages import BrainHello, BrainWelcome

    if not files.lives() or files.record() is None:
        return None
    try:
        return _ask(_record(files), BrainHello(version), BrainWelcome)
    except BrainError:
        if files.lives() and files.record() is not None:
            raise
        return None


def _hands_over(record: BrainRecord, welcome: BrainWelcome, version: str) -> bool:
    """Say whether the brain is older than we are, and has ended for our sake."""
    from dlrover_lite.protocol.brain_messages import PROTOCOL, BrainAck, HandOver, is_newer

    if not is_newer((version, PROTOCOL), (welcome.version, welcome.protocol)):
        return False
    _ask(record, HandOver(version), BrainAck)
    _wait(record)
    return True


def _wait(record: BrainRecord) -> None:
    if not wait_for_end(record.process, _END_SECONDS):
        raise BrainError(
            f"The brain (process {record.process.pid}) doesn't end", hint="Kill it: dlrover-lite brain stop --kill"
        )


def _ask(record: BrainRecord, question: msgspec.Struct, answer: type[A]) -> A:
    from dlrover_lite.protocol.brain_messages import BrainReplies
    from dlrover_lite.transport.connector import Connector

    connector = Connector.of_this_process()
    try:
        client = connector.client(record.endpoint, BrainReplies, peer="the brain")
        try:
            body = client.call(question, deadline_seconds=_ANSWER_SECONDS).body
        finally:
            client.close()
    except RemoteError as error:
        raise BrainError(error.message, hint=error.hint) from error
    except WireError as error:
        raise BrainError(
            f"The brain (process {record.process.pid}) did not answer: {error.message}",
            hint="If that goes on: dlrover-lite brain stop --kill",
        ) from error
    finally:
        connector.close()
    if not isinstance(body, answer):
        raise BrainError(f"The brain answered with {type(body).__name__}")
    return body


def _start(files: BrainFiles, options: DaemonOptions) -> Brain:
    from dlrover_lite.brain_server.daemon import DaemonReady

    ready, ready_end = os.pipe()
    options = msgspec.structs.replace(options, ready=ready_end)
    command = [sys.executable, "-P", "-m", "dlrover_lite.brain_server.daemon", msgspec.json.encode(options).decode()]
    try:
        with os.fdopen(open_private(files.log, os.O_WRONLY | os.O_APPEND), "ab") as log:
            process = subprocess.Popen(
                outside_jobs(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(ready_end, options.starting),
                env=_environment(),
            )
    except OSError as error:
        os.close(ready)
        raise BrainError(f"Can't start the brain: {error}") from error
    finally:
        os.close(ready_end)
    try:
        with os.fdopen(ready, "rb") as pipe:
            said = pipe.read()
    finally:
        process.wait()  # not the brain itself: that is a child of this one, which is gone by then
    if not said:
        raise BrainError("The brain did not come up", hint=f"Its log: {files.log}")
    answer = from_json(said, DaemonReady)
    if answer.error:
        raise BrainError(answer.error, hint=answer.hint)
    return Brain(answer.pid, options.version, answer.idle_seconds, started=True)


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in python_environment().items()
        if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
    }
