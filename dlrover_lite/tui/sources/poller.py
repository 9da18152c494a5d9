"""A thread that reads for the screens, so that whatever it waits for they don't; and how old what it has read is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from dlrover_lite.core.errors import DlroverLiteError

__all__ = ["Feed"]

T = TypeVar("T")


class Feed(Generic[T]):
    """Calls ``read`` every ``period_seconds``, and ``arrived`` (from its thread) when there is something new to be taken with ``take``.

    What is read is kept until the next read that succeeds: while one fails, or doesn't come back, it stays, and ``problem`` and
    ``age_seconds`` say so. When reads succeed again all is well again. A ``DlroverLiteError`` is such a failure; any other exception
    is a bug: the thread ends, and ``take`` raises it.
    """

    def __init__(
        self,
        read: Callable[[], T],
        arrived: Callable[[], object],
        *,
        name: str,
        period_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._arrived = arrived
        self.period_seconds = period_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: T | None = None
        self._told = False
        """Whether ``arrived`` was called, and what it told of has not been taken yet."""
        self._bug: BaseException | None = None
        self._read_at: float | None = None
        self.problem = ""
        """Reason why the last read failed; empty: it didn't."""
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)  # may wait for a peer that hangs

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float = 1.0) -> bool:
        """Stop the thread; return whether it has ended: one that waits for a peer just now ends when that answers."""
        self._stopped = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def read_now(self) -> None:
        """Read now, without waiting for the end of the period."""
        self._wake.set()

    def take(self) -> T | None:
        """Return the newest that was read; None while there is none. Raises what ended the thread."""
        with self._lock:
            self._told = False
            if self._bug is not None:
                raise self._bug
            return self._newest

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the last read that succeeded; None: none has."""
        return None if self._read_at is None else self._clock() - self._read_at

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                self._look()
            except BaseException as bug:  # noqa: BLE001 - it is raised again where it is seen
                with self._lock:
                    self._bug = bug
                self._arrived()
                return
            self._wake.wait(self.period_seconds)

    def _look(self) -> None:
        problem = ""
        try:
            found = self._read()
        except DlroverLiteError as error:
            problem = error.message.partition("\n")[0]
            with self._lock:
                news, self.problem = problem != self.problem, problem
        else:
            with self._lock:
                news = found is not self._newest or bool(self.problem)
                self._newest, self._read_at, self.problem = found, self._clock(), ""
        with self._lock:
            tell = news and not self._told
            self._told |= news
        if tell and not self._stopped:
            self._arrived()
