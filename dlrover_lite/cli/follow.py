"""What a person's signals do to a job that is followed in the foreground."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import IO, TYPE_CHECKING, Any

from dlrover_lite.core.errors import DlroverLiteError

if TYPE_CHECKING:
    from dlrover_lite.client.handle import JobHandle

__all__ = ["Signals", "silence"]

_HANDLED = ("SIGINT", "SIGTERM", "SIGHUP")


class Signals:
    """Signals while a job is followed: the first one stops it and the next one kills it; before ``hold`` they end this process.

    A signal that is ignored (nohup, a shell's background job) stays so. The job is told by a thread: a handler interrupts the main thread
    anywhere, also while that has a lock which telling the job needs, and would wait for it for ever.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.first: int | None = None
        """Number of the first signal that came while a job was held."""
        self._stream = stream
        self._handle: JobHandle | None = None
        self._before: dict[int, Any] = {}
        self._to_tell: SimpleQueue[tuple[int, bool] | None] = SimpleQueue()
        """Signals to tell the job of, and whether one came before; None: there are no more. A handler may put one there at any time."""

    def hold(self, handle: JobHandle) -> None:
        """Have signals be about this job from now on."""
        threading.Thread(target=self._tell, args=(handle,), name="signals", daemon=True).start()
        self._handle = handle

    def __enter__(self) -> Signals:
        for name in _HANDLED:
            number = getattr(signal, name)
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._to_tell.put(None)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self._handle is None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
        if number == self.first == signal.SIGHUP:
            return  # the shell and the kernel both tell of the closed terminal
        again = self.first is not None
        self.first = self.first or number
        # Not through the stream's own buffer, which may be in the middle of a write.
        text = "killing" if again else "stopping (ctrl-C again to kill)"
        with suppress(OSError, ValueError):
            os.write(
                self._stream.fileno(), f"\r\x1b[K{text}\n".encode() if self._stream.isatty() else f"{text}\n".encode()
            )
        self._to_tell.put((number, again))

    def _tell(self, handle: JobHandle) -> None:
        try:
            while (one := self._to_tell.get()) is not None:
                number, again = one
                with suppress(DlroverLiteError):
                    if number == signal.SIGHUP and not again:
                        handle.hang_up()
                    else:
                        handle.stop(kill=again)
        finally:
            self._handle = None  # nobody tells the job any more: the next signal ends this process, and the job with it


def silence(stream: IO[str]) -> None:
    """Keep the interpreter from writing once more to a stream whose reader has gone."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
