"""The thread that computes, so that reading, pulling and pushing go on beside it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

__all__ = ["ComputeThread", "FinishedTask"]

T = TypeVar("T")
R = TypeVar("R")

_JOIN_SECONDS = 5.0


class FinishedTask(Generic[T, R]):
    """A finished task: ``result``, or the exception it raised."""

    def __init__(self, task: T) -> None:
        self.task = task
        self.result: R | None = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        """CPU seconds of this thread alone: torch may have others work too."""
        self.idle_seconds = 0.0
        """Seconds for which the thread had nothing to do before."""


class ComputeThread(Generic[T, R]):
    """Runs ``function(task)`` for each submitted task, in order. ``fileno`` is readable when results may be there."""

    def __init__(self, function: Callable[[T], R], *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._function = function
        self._clock = clock
        self._tasks: SimpleQueue[T | None] = SimpleQueue()
        self._done: SimpleQueue[FinishedTask[T, R]] = SimpleQueue()
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def __enter__(self) -> ComputeThread[T, R]:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._tasks.put(None)
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():  # else it still needs its end of the pipe; it ends with the process
            os.close(self._readable)
            os.close(self._writable)

    def fileno(self) -> int:
        return self._readable

    def submit(self, task: T) -> None:
        self._tasks.put(task)

    def finished(self) -> list[FinishedTask[T, R]]:
        """Return what has been computed since the last call."""
        with suppress(BlockingIOError):
            while os.read(self._readable, 4096):
                pass
        found = []
        while not self._done.empty():
            found.append(self._done.get())
        return found

    def _run(self) -> None:
        waiting_since = self._clock()
        while (task := self._tasks.get()) is not None:
            done: FinishedTask[T, R] = FinishedTask(task)
            began, cpu_before = self._clock(), time.thread_time()
            done.idle_seconds = began - waiting_since
            try:
                done.result = self._function(task)
            except BaseException as error:  # noqa: BLE001 - the person's own code: whatever it raises is the task's result, SystemExit too
                done.error = error
            waiting_since = self._clock()
            done.seconds = waiting_since - began
            done.cpu_seconds = time.thread_time() - cpu_before
            self._done.put(done)
            with suppress(BlockingIOError):  # a full pipe is readable anyway
                os.write(self._writable, b"x")
