"""A master's input and output that may hang, in a thread of its own; what has come of it is taken up in the master's thread."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["IoThread"]

T = TypeVar("T")
_Task = tuple[Callable[[], Any], Callable[[Future[Any]], None], Future[Any]]


class IoThread:
    """Does one thing after the other (``master.io_queue.IoQueue``). The thread doesn't keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._todo: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._bell, self._ringing = socket.socketpair()
        for end in (self._bell, self._ringing):
            end.setblocking(False)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there is something to take up."""
        return self._bell.fileno()

    def silence(self) -> None:
        """Have the descriptor wake nobody until something more has come to its end."""
        with suppress(BlockingIOError):
            self._bell.recv(4096)

    @property
    def is_open(self) -> bool:
        """Whether the descriptor can be waited for."""
        return self._bell.fileno() >= 0

    @property
    def is_done(self) -> bool:
        """Whether there is something to take up."""
        return not self._done.empty()

    def submit(self, action: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Run ``action`` on the thread; ``take`` calls ``then`` when it has ended, however."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._todo.put((action, then, future))

    def take(self) -> None:
        """Handle what has come of what was submitted. Never waits."""
        while True:
            try:
                _, then, future = self._done.get_nowait()
            except queue.Empty:
                return
            then(future)

    def close(self, patience_seconds: float) -> bool:
        """Begin nothing more after what has been submitted; return whether that has come to its end in time."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join(patience_seconds)
            if self._thread.is_alive():
                return False  # it still has its end of the bell
        self._bell.close()
        self._ringing.close()
        return True

    def _run(self) -> None:
        while (task := self._todo.get()) is not None:
            action, _, future = task
            try:
                result = action()
            except BaseException as error:  # noqa: BLE001 - it is raised again where the result is taken
                future.set_exception(error)
            else:
                future.set_result(result)
            self._done.put(task)
            with suppress(BlockingIOError):  # it rings already
                self._ringing.send(b"!")
