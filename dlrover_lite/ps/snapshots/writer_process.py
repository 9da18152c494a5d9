"""The parameter server's hold on its persister: starts it, gives it files, hears of it, and ends it."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dlrover_lite.core.decoding import from_msgpack
from dlrover_lite.core.errors import JobError
from dlrover_lite.ps.snapshots.writer_messages import (
    FILES_AT_ONCE,
    MESSAGE_BYTES,
    Files,
    FromPersister,
    Hurry,
    Persist,
    Release,
    ToPersister,
    send,
)
from dlrover_lite.transport.frames import UNREADABLE

__all__ = ["PersisterEnded", "SnapshotWriterProcess"]

_END_SECONDS = 2.0
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class PersisterEnded(JobError):
    """The persister is gone, by itself or by somebody else."""

    def __init__(self, status: int) -> None:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        super().__init__(
            f"the process that writes the checkpoint {how}",
            hint="It is started again for the next checkpoint. What it had to say is in the log of the parameter server.",
        )


class SnapshotWriterProcess:
    """A persister, as its server has it. Raises JobError when it can't be started. Of one thread: the kernel ends the process with the
    thread that started it."""

    def __init__(self) -> None:
        """Start a new interpreter."""
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            sys.executable,
            "-P",
            "-m",
            "dlrover_lite.ps.snapshots.writer_main",
            str(its.fileno()),
            str(os.getpid()),
        ]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                env={**os.environ, **dict.fromkeys(_THREADS, "1")},
            )
        except OSError as error:
            mine.close()
            raise JobError(f"the process that writes checkpoints can't be started: {error}") from error
        finally:
            its.close()
        self._hold(process, mine)
        self.stays = False
        """Whether it stays while there is nothing to do: a forked process costs next to nothing then."""

    @classmethod
    def forked(cls) -> SnapshotWriterProcess | None:
        """Fork this process, which should have nothing yet that matters: the copy is there at once, and has its compiled kernels. None
        where that can't be: there are other threads, or it isn't Linux."""
        if not hasattr(os, "pidfd_open") or _threads() != 1:
            return None
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            mine.close()
            its.close()
            return None
        if not pid:
            _become(its.fileno(), parent)
        its.close()
        made = cls.__new__(cls)
        made._hold(_Forked(pid), mine)
        made.stays = True
        return made

    def _hold(self, process: subprocess.Popen[bytes] | _Forked, channel: socket.socket) -> None:
        self._process = process
        channel.setblocking(False)
        self.socket = channel

    @property
    def pid(self) -> int:
        return self._process.pid

    def persist(self, order: Persist, files: Sequence[int]) -> None:
        """Have the part of a checkpoint written. ``files``: as ``Files`` has them. Raises PersisterEnded."""
        for start in range(0, len(files), FILES_AT_ONCE):
            self._send(Files(), files[start : start + FILES_AT_ONCE])
        self._send(order)

    def hurry(self, cut: int) -> None:
        """Have the part of this cut written as soon as may be. Raises PersisterEnded."""
        self._send(Hurry(cut))

    def release(self, cut: int) -> None:
        """Have the part of this cut released: whatever becomes of it, the server is done with it. Raises PersisterEnded."""
        self._send(Release(cut))

    def _send(self, message: ToPersister, fds: Sequence[int] = ()) -> None:
        try:
            send(self.socket, message, fds)
        except BlockingIOError:  # it doesn't listen, and has so much to listen to
            self._process.kill()
            raise self._ended() from None
        except OSError:
            raise self._ended() from None

    def receive(self) -> FromPersister | None:
        """Return what the persister says, if anything. Raises PersisterEnded."""
        try:
            data = self.socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            raise self._ended()
        try:
            message: FromPersister = from_msgpack(data, FromPersister)
        except UNREADABLE:  # it is out of its mind: another one is started
            self._process.kill()
            raise self._ended() from None
        return message

    def _ended(self) -> PersisterEnded:
        self.close()
        return PersisterEnded(self._process.returncode)

    def end(self, *, at_once: bool = False) -> None:
        """Have it end soon, and leave nothing of what it was writing; ``at_once``: kill it."""
        self.socket.close()
        if at_once:
            self._process.kill()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of the process. To be asked after ``end``."""
        return self._process.poll() is not None

    def close(self) -> None:
        """``end`` it, and wait. It is killed if that takes long, since its destination holds it up."""
        self.end()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Forked:
    """A child of this process, as subprocess would have it."""

    returncode: int

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._over = False

    def poll(self) -> int | None:
        if not self._over:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self._over, self.returncode = True, os.waitstatus_to_exitcode(status)
        return self.returncode if self._over else None

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
            if self.poll() is None:
                raise subprocess.TimeoutExpired("a persister", timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:  # nobody else has its number
            os.kill(self.pid, signal.SIGKILL)


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208
    except OSError:
        return 0


def _become(channel: int, parent: int) -> None:
    """Become the persister in the child, and nothing else. Never returns."""
    status = 1
    try:
        gc.freeze()  # what is imported stays: to look at it would copy its pages
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if descriptor > 2 and descriptor != channel:
                with suppress(OSError):  # that of the listing
                    os.close(descriptor)
        from dlrover_lite.ps.snapshots.writer_main import run

        run(channel, parent, kernels=True)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001 - the outermost frame of the process
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
