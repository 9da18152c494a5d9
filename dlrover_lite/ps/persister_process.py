"""The parameter server's hold on its persister: starts it, gives it files, hears of it, and ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from dlrover_lite.errors import JobError
from dlrover_lite.ps.persist_messages import (
    FILES_AT_ONCE,
    MESSAGE_BYTES,
    Files,
    FromPersister,
    Persist,
    Release,
    send,
)

__all__ = ["PersisterEnded", "PersisterProcess"]

_END_SECONDS = 2.0
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class PersisterEnded(JobError):
    """It is gone, by itself or by somebody else."""

    def __init__(self, status: int) -> None:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        super().__init__(
            f"the process that writes the checkpoint {how}",
            hint="It is started again for the next checkpoint. What it had to say is in the log of the parameter server.",
        )


class PersisterProcess:
    """Raises JobError when it can't be started. Of one thread: the kernel ends the process with the thread that started it."""

    def __init__(self) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", "dlrover_lite.ps.persister", str(its.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
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
        mine.setblocking(False)
        self.socket = mine

    @property
    def pid(self) -> int:
        return self._process.pid

    def persist(self, order: Persist, files: Sequence[int]) -> None:
        """``files``: as ``Files`` has them. Raises PersisterEnded."""
        for start in range(0, len(files), FILES_AT_ONCE):
            self._send(Files(), files[start : start + FILES_AT_ONCE])
        self._send(order)

    def release(self, cut: int) -> None:
        """Raises PersisterEnded."""
        self._send(Release(cut))

    def _send(self, message: Files | Persist | Release, fds: Sequence[int] = ()) -> None:
        try:
            send(self.socket, message, fds)
        except BlockingIOError:  # it doesn't listen, and has so much to listen to
            self._process.kill()
            raise self._ended() from None
        except OSError:
            raise self._ended() from None

    def receive(self) -> FromPersister | None:
        """What it says, if anything. Raises PersisterEnded."""
        try:
            data = self.socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            raise self._ended()
        message: FromPersister = msgspec.msgpack.decode(data, type=FromPersister)
        return message

    def _ended(self) -> PersisterEnded:
        self.close()
        return PersisterEnded(self._process.returncode)

    def end(self, *, at_once: bool = False) -> None:
        """It ends soon, and leaves nothing of what it was writing; ``at_once``: it is killed."""
        self.socket.close()
        if at_once:
            self._process.kill()

    @property
    def is_over(self) -> bool:
        """Nothing is left of it. To be asked after ``end``."""
        return self._process.poll() is not None

    def close(self) -> None:
        """``end`` it, and wait. It is killed if that takes long, since its destination holds it up."""
        self.end()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
