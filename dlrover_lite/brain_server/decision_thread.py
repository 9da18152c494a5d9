"""The brain's decisions on a thread of their own: who reports is answered at once, and told with a later answer what was computed.

What the decisions need is imported by that thread too.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.brain.store.database import BUSY_SECONDS, ConfigStore
from dlrover_lite.core.errors import DlroverLiteError, HistoryBusy
from dlrover_lite.protocol.brain_messages import Advice, EndJob, RegisterJob, Report

if TYPE_CHECKING:
    from dlrover_lite.brain.advisor import Advisor

__all__ = ["DecisionThread"]

Told = RegisterJob | Report | EndJob
_TURN_SECONDS = 0.5
_OPEN_AGAIN_SECONDS = 1.0
"""Seconds to wait after a database was locked, or its disk full."""


class DecisionThread:
    """Decides over the database at ``path``. Begins with the first job; ``close`` ends it."""

    def __init__(
        self,
        path: Path,
        *,
        say: Callable[[str], None],
        runs: Callable[[str], bool] | None = None,
        wall_clock: Callable[[], float] = time.time,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        """``runs``: whether the job with these files runs, where all jobs report to this brain. ``busy_seconds``: how long a locked
        database is waited for before that is said."""
        self._path = path
        self._say = say
        self._runs = runs
        self._wall_clock = wall_clock
        self._busy_seconds = busy_seconds
        self._told: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
        self._advice: dict[str, Advice] = {}
        """Advice by job. It is a new dict each time: another thread reads it."""
        self._thread: threading.Thread | None = None
        self._complained = ""
        self._closing = threading.Event()
        self._to_register: dict[str, RegisterJob] = {}
        """Jobs that couldn't be taken when they came: the database was locked, say."""

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
        try:
            while not self._closing.is_set():
                try:
                    return self._decide()
                except HistoryBusy as error:
                    self._complain(error.message, str(error))
                self._closing.wait(_OPEN_AGAIN_SECONDS)
        except DlroverLiteError as error:  # jobs keep the plans that they have
            self._say(f"no more decisions: {error}")
        finally:
            self._advice = {}  # who waits for more is to know that there won't be any

    def _decide(self) -> None:
        """Decide until ``close``."""
        from dlrover_lite.brain.advisor import Advisor

        with ConfigStore(self._path, busy_seconds=self._busy_seconds) as store:
            adviser = Advisor(store)
            if self._runs is not None:
                self._guarded(lambda: self._recall(adviser, store))
            while self._turn(adviser):
                pass

    def _recall(self, adviser: Advisor, store: ConfigStore) -> None:
        """Recall jobs that ran under the brain before this one: until they register again, nobody else gets what they have."""
        from dlrover_lite.brain.advisor import readable

        assert self._runs is not None
        at = self._wall_clock()
        for directory, arrival in readable(store):
            if arrival.plan is not None and self._runs(directory):
                adviser.arrived(arrival, at)

    def _turn(self, adviser: Advisor) -> bool:
        """Take in what was told, and decide; return whether to go on."""
        try:
            body = self._told.get(timeout=_TURN_SECONDS)
            while body is not None:
                self._listen(adviser, body)
                body = self._told.get_nowait()
            return False
        except queue.Empty:
            pass
        for waiting in list(self._to_register.values()):
            self._listen(adviser, waiting)
        for decide in (adviser.treat, adviser.turn):  # what is urgent is told before the rest is thought about
            self._guarded(partial(decide, self._wall_clock()))
            self._advice = {
                job: Advice(one.number, msgspec.to_builtins(one.decision)) for job, one in adviser.waiting().items()
            }
        return True

    def _listen(self, adviser: Advisor, body: Told) -> None:
        done = self._guarded(lambda: self._take(adviser, body))
        if isinstance(body, RegisterJob) and not done:
            self._to_register[body.job] = body
        elif isinstance(body, RegisterJob | EndJob):
            self._to_register.pop(body.job, None)

    def _guarded(self, action: Callable[[], None]) -> bool:
        """Do ``action``; return whether it could be done."""
        try:
            action()
            return True
        except DlroverLiteError as error:
            self._complain(error.message, str(error))
        except Exception as error:  # noqa: BLE001 - whatever one job has reported, others are to be decided about as long as there is a brain
            self._complain(repr(error), traceback.format_exc().rstrip())
        return False

    def _complain(self, what: str, text: str) -> None:
        """Say what is wrong once, until something else is."""
        if what != self._complained:
            self._say(f"a decision can't be made: {text}")
        self._complained = what

    def _take(self, adviser: Advisor, body: Told) -> None:
        from dlrover_lite.brain.advisor import Arrival

        at = self._wall_clock()
        match body:
            case RegisterJob() if body.demand is not None:
                arrival = Arrival(
                    job=body.job,
                    features=body.features,
                    demand=body.demand,
                    began=body.started_at or body.created_at,
                    priority=body.priority,
                    samples=body.samples,
                    plan=body.plan,
                    waits_since=body.waits_since,
                )
                adviser.arrived(arrival, at)
            case Report():
                adviser.reported(
                    body.job,
                    samples=body.samples,
                    profiles=body.profiles,
                    standing=body.standing,
                    done=body.done,
                    levels=body.levels,
                )
            case EndJob():
                adviser.ended(body.job, body.outcome, at)
