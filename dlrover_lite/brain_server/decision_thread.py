"""The brain's decisions on a thread of their own: who reports is answered at once, and told with a later answer what was computed.

What the decisions need is imported by that thread too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlrover_lite.brain.store.database import BUSY_SECONDS, ConfigStore
from dlrover_lite.core.errors import DlroverLiteError, HistoryBusy
from dlrover_lite.protocol.brain_messages import Advice

if TYPE_CHECKING:
    from dlrover_lite.brain.advisor import Told

__all__ = ["DecisionThread"]

_TURN_SECONDS = 0.5
_OPEN_AGAIN_SECONDS = 1.0
"""Seconds to wait after a database was locked, or its disk full."""


@dataclass(eq=False)
class DecisionThread:
    """Decides over the database at ``path``. Begins with the first job; ``close`` ends it."""

    path: Path
    _: KW_ONLY
    say: Callable[[str], None]
    runs: Callable[[str], bool] | None = None
    """Says whether the job with these files runs, where all jobs report to this brain."""
    wall_clock: Callable[[], float] = time.time
    busy_seconds: float = BUSY_SECONDS
    """Seconds for which a locked database is waited for before that is said."""

    def __post_init__(self) -> None:
        self._told: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
        self._advice: dict[str, Advice] = {}
        """Advice by job. It is a new dict each time: another thread reads it."""
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def begin(self) -> None:
        """Have ready what the plan of a job that is about to come needs. May be called again."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="decisions", daemon=True)
            self._thread.start()

    def told(self, body: Told) -> None:
        """Take in what a master has said, once it is in the database."""
        self.begin()
        assert self._thread is not None
        if self._thread.is_alive():  # one that has ended takes nothing any more
            self._told.put(body)

    def advice(self, job: str) -> Advice | None:
        """Return what the job's master is to be told, until it says that it has heard it."""
        return self._advice.get(job)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """End the thread. What was decided is in the database."""
        if self._thread is not None:
            self._closing.set()
            self._told.put(None)
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        complained = ""
        try:
            while not self._closing.is_set():
                try:
                    return self._decide()
                except HistoryBusy as error:
                    if error.message != complained:
                        self.say(f"a decision can't be made: {error}")
                    complained = error.message
                self._closing.wait(_OPEN_AGAIN_SECONDS)
        except DlroverLiteError as error:  # jobs keep the plans that they have
            self.say(f"no more decisions: {error}")
        finally:
            self._advice = {}  # who waits for more is to know that there won't be any

    def _decide(self) -> None:
        """Decide until ``close``."""
        from dlrover_lite.brain.advisor import Advisor

        with ConfigStore(self.path, busy_seconds=self.busy_seconds) as store:
            advisor = Advisor(store, say=self.say)
            if self.runs is not None:
                advisor.recall(self.wall_clock(), self.runs)
            ends = False
            while not ends:
                told, ends = self._next()
                advisor.hear(self.wall_clock(), told)
                if not ends:
                    for advice in advisor.step(self.wall_clock()):
                        self._advice = advice

    def _next(self) -> tuple[list[Told], bool]:
        """Return what has been told, after a moment at most, and whether the thread is to end after that."""
        told: list[Told] = []
        with suppress(queue.Empty):
            body = self._told.get(timeout=_TURN_SECONDS)
            while body is not None:
                told.append(body)
                body = self._told.get_nowait()
            return told, True
        return told, False
