"""The brain at work: what masters report is written, in batches, and answered once it is there; a job may be answered with advice.

The same whether it is a daemon of its own or embedded in a job's master: only the socket it listens on differs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, cast

import msgspec

from dlrover_lite.brain.store import preferences, queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.history import History
from dlrover_lite.brain.store.prune import prune
from dlrover_lite.brain.store.records import JobEntry, profile_record
from dlrover_lite.core.errors import DlroverLiteError, HistoryError, RowRefused
from dlrover_lite.core.version import __version__
from dlrover_lite.protocol.brain_messages import (
    NO_NEWER,
    OLDEST,
    PROTOCOL,
    REFUSED,
    UNKNOWN_JOB,
    UNWRITTEN,
    Advice,
    BrainAck,
    BrainHello,
    BrainJob,
    BrainRequests,
    BrainStatus,
    BrainStatusRequest,
    BrainWelcome,
    EndJob,
    HandOver,
    RegisterJob,
    Report,
    StopBrain,
    is_newer,
)
from dlrover_lite.protocol.history_messages import HistoryQuestion
from dlrover_lite.protocol.outcomes import JobOutcome, outcome_of
from dlrover_lite.transport.frames import Failure, Request
from dlrover_lite.transport.server import Server

__all__ = ["Advise", "JobEnd", "Look", "Service"]

TURN_SECONDS = 0.5
SILENT_SECONDS = 60.0
"""Seconds without a report after which a job's files are looked at: it may have ended without a word."""
GONE_SECONDS = 600.0
"""Seconds without a report after which a job of elsewhere, whose files can't be looked at, counts as lost. Its nodes' pods end after that
time without a master, too; a master that comes back registers its job again."""
PRUNE_SECONDS = 3600.0
_UNENDED = "starting,running,queued"


class JobEnd(msgspec.Struct, frozen=True):
    """How a job ended that has said nothing of it."""

    state: str
    at: float
    message: str = ""
    status: dict[str, Any] = {}
    """Last ``Status`` of the job's master, by field names."""


Look = Callable[[str], JobEnd | None]
"""Looks at a job's directory and says how it has ended; None: it runs."""
Advise = Callable[[str], Advice | None]
"""Says what to do about a job; asked after each of its reports is committed."""


Tell = Callable[[RegisterJob | Report | EndJob], None]
"""Is told what was reported, once it is committed."""


class _Registered(msgspec.Struct):
    directory: str
    samples: int
    heard_at: float
    """Time of the last report on the service's clock."""
    told: bool = True
    """The job's master has told this brain of it; else the job ran when the last brain ended."""


@dataclass(eq=False)
class Service:
    """The brain's answers, over an open server and store, both its own: ``close`` closes them."""

    server: Server
    store: ConfigStore
    _: KW_ONLY
    look: Look
    advise: Advise = lambda _: None
    tell: Tell = lambda _: None
    idle_seconds: float | None = None
    """Seconds without a job that end it; None: it stays."""
    embedded: bool = False
    history: History | None = None
    """Answers questions about the history that come to the same socket; None: none do."""
    version: str = __version__
    say: Callable[[str], None] = lambda _: None
    """Is given lines for the log."""
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    ending: str = field(default="", init=False)
    """Why the service ends, once it does."""

    def __post_init__(self) -> None:
        self._started_at = self.wall_clock()
        self._problem: HistoryError | None = None
        now = self.clock()
        self._idle_since = self._look_at = now
        self._prune_at = now
        self._jobs: dict[str, _Registered] = {}
        for entry in queries.jobs(self.store, queries.JobsQuestion(state=_UNENDED)):
            if not entry.source:
                self._jobs[entry.id] = _Registered(entry.directory, entry.samples, now - SILENT_SECONDS, told=False)

    def run(self, stop: Callable[[], str] = lambda: "") -> str:
        """Serve until the service is told to end, or ``stop`` says why it has to, or nobody needs it; return why, in words."""
        while not self.ending:
            self.turn(TURN_SECONDS)
            self.ending = self.ending or stop()
        return self.ending

    def close(self) -> None:
        """Close the server and the store. What is in the database is all that was answered: there is nothing else to save. Answers that are
        on their way are sent."""
        self.server.close()
        self.store.close()
        if self.history is not None:
            self.history.close()

    def turn(self, timeout_seconds: float) -> None:
        """Answer all requests that are here, or come in time; and do what is due."""
        requests = self.server.receive(timeout_seconds)
        if requests:
            self._answer(requests)
        now = self.clock()
        if now >= self._look_at:
            self._look_at = now + 1.0
            self._look_after(now)
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_SECONDS
            self._prune()
        if any(job.told for job in self._jobs.values()):
            self._idle_since = now
        elif self.idle_seconds is not None and now - self._idle_since >= self.idle_seconds:
            self.ending = f"no job for {self.idle_seconds / 60:g} minutes"

    # --- requests -------------------------------------------------------------------------------------------------------

    def _answer(self, requests: list[Request]) -> None:
        """Apply all requests, commit once, reply."""
        answers = [self._attempt(request) for request in requests]
        try:
            if not self._commit():
                answers = [
                    self._instead(answer, request.body) for answer, request in zip(answers, requests, strict=True)
                ]
        except RowRefused:  # one of them must not keep the others from being written
            answers = [self._alone(request) for request in requests]
        for request, answer in zip(requests, answers, strict=True):
            body = answer
            if isinstance(answer, BrainAck) and isinstance(request.body, RegisterJob | Report | EndJob):
                body = self._follow(request)
            self.server.reply(request, body)
            if isinstance(request.body, BrainRequests) and not isinstance(
                request.body, BrainStatusRequest
            ):  # who only looks doesn't keep it up
                self._idle_since = self.clock()

    def _follow(self, request: Request) -> msgspec.Struct:
        """Answer a request that is written."""
        return self.server.attempt(request, lambda one: self._is_written(one.body) or BrainAck()) or BrainAck()

    def _is_written(self, body: RegisterJob | Report | EndJob) -> Advice | None:
        """Do what follows from a request that is written."""
        self.tell(body)
        if isinstance(body, EndJob):
            self._jobs.pop(body.job, None)
            return None
        if isinstance(body, RegisterJob):
            if self._known(body.job) is None:
                self.say(f"{body.job} is registered")
            self._jobs[body.job] = _Registered(body.directory, body.samples, self.clock())
        elif (known := self._known(body.job)) is not None:
            known.samples = body.samples
        return self._advice(body.job)

    def _alone(self, request: Request) -> msgspec.Struct:
        answer = self._attempt(request)
        try:
            return answer if self._commit() else self._instead(answer, request.body)
        except RowRefused as error:
            self.say(error.message)
            return Failure(REFUSED, error.message)

    def _instead(self, answer: msgspec.Struct, body: msgspec.Struct) -> msgspec.Struct:
        """Return the answer to what can't be written now."""
        if isinstance(answer, Failure) or not isinstance(body, RegisterJob | Report | EndJob):
            return answer
        problem = self._problem
        return Failure(UNWRITTEN, problem.message if problem else "", problem.hint if problem else "")

    def _attempt(self, request: Request) -> msgspec.Struct:
        """Answer one request, but for the commit."""
        try:
            answer = self.server.attempt(request, lambda one: self._handle(one.body))
        except DlroverLiteError as error:
            answer = Failure(REFUSED, error.message, error.hint)
        return answer or Failure(REFUSED, f"{type(request.body).__name__} makes no sense")

    def _handle(self, body: msgspec.Struct) -> msgspec.Struct:
        match body:
            case Report():
                return self._report(body)
            case RegisterJob():
                return self._register(body)
            case EndJob():
                return self._end(body)
            case BrainHello():
                return BrainWelcome(self.version, PROTOCOL, OLDEST, os.getpid(), self._started_at)
            case BrainStatusRequest():
                return self._status()
            case HandOver(version, protocol):
                return self._hand_over(version, protocol)
            case StopBrain():
                self.ending = "stopped by request"
                return BrainAck()
        if self.history is not None:
            return self.history.ask(cast("HistoryQuestion", body), msgspec.Struct)
        raise AssertionError(f"no answer to {type(body).__name__}")

    def _register(self, body: RegisterJob) -> msgspec.Struct:
        entry = JobEntry(
            id=body.job,
            name=body.name,
            owner=body.owner,
            model=body.model,
            state="queued" if body.demand is not None and body.plan is None else "running",
            priority=body.priority,
            created_at=body.created_at,
            started_at=body.started_at,
            samples=body.samples,
            directory=body.directory,
            features=body.features if body.demand is None else {**body.features, "demand": body.demand},
        )
        self.store.put_job(entry)
        return BrainAck()

    def _report(self, body: Report) -> msgspec.Struct:
        if (job := self._known(body.job)) is None:
            return Failure(UNKNOWN_JOB, f"{body.job} is not registered")
        for profile in body.profiles:
            self.store.add_profile(profile_record(profile))
        for event in body.events:
            self.store.add_node_event(event)
        for plan in body.plans:
            self.store.add_plan(plan)
        for done in body.done:
            self.store.put_done(done)
        if body.samples != job.samples:
            self.store.put_samples(body.job, body.samples)
        job.heard_at = self.clock()
        return BrainAck()

    def _end(self, body: EndJob) -> msgspec.Struct:
        if self._known(body.job) is None:
            return Failure(UNKNOWN_JOB, f"{body.job} is not registered")
        self.store.end_job(
            body.job, body.state, at=body.at, samples=body.samples, message=body.message, outcome=body.outcome
        )
        return BrainAck()

    def _known(self, job: str) -> _Registered | None:
        known = self._jobs.get(job)
        return known if known is not None and known.told else None

    def _hand_over(self, version: str, protocol: int) -> msgspec.Struct:
        if not is_newer((version, protocol), (self.version, PROTOCOL)):
            return Failure(NO_NEWER, f"The brain that runs is of version {self.version}, no older than {version}")
        self.ending = f"hands over to version {version}"
        return BrainAck()

    def _status(self) -> BrainStatus:
        now = self.clock()
        told = {job: one for job, one in self._jobs.items() if one.told}
        idle = None
        if self.idle_seconds is not None and not told:
            idle = max(0.0, self._idle_since + self.idle_seconds - now)
        return BrainStatus(
            version=self.version,
            pid=os.getpid(),
            started_at=self._started_at,
            embedded=self.embedded,
            database=str(self.store.path),
            jobs=[BrainJob(job, one.samples, max(0.0, now - one.heard_at)) for job, one in told.items()],
            idle_exit_seconds=idle,
            problem=self._problem.message if self._problem else "",
            hint=self._problem.hint if self._problem else "",
            malformed=self.server.malformed,
        )

    def _advice(self, job: str) -> Advice | None:
        try:
            return self.advise(job)
        except DlroverLiteError as error:
            self.say(f"no advice for {job}: {error}")
            return None

    # --- the database ---------------------------------------------------------------------------------------------------

    def _commit(self) -> bool:
        """Write what waits; return whether all is written. What can't be is forgotten here: those who reported it keep it, and are told so.
        Raises RowRefused."""
        if not self.store.waiting:
            return True
        try:
            self.store.commit()
        except RowRefused:
            self.store.forget_waiting()
            raise
        except HistoryError as error:
            self.store.forget_waiting()
            self._note_problem(error)
            return False
        if self._problem is not None:
            self.say("the database can be written again")
            self._problem = None
        return True

    def _note_problem(self, error: HistoryError) -> None:
        if self._problem is None or self._problem.message != error.message:
            self.say(str(error))
        self._problem = error

    def _prune(self) -> None:
        try:
            done = prune(self.store, preferences.read(self.store), now=self.wall_clock())
        except HistoryError as error:
            self._note_problem(error)
        else:
            if done.jobs or done.rows:
                self.say(f"{done.jobs} old jobs and {done.rows} old rows were removed")

    # --- jobs that say nothing --------------------------------------------------------------------------------------------

    def _look_after(self, now: float) -> None:
        for job, one in list(self._jobs.items()):
            if now - one.heard_at < SILENT_SECONDS:
                continue
            if not one.directory:
                silent = now - one.heard_at
                if silent >= GONE_SECONDS:
                    why = f"its master has said nothing for {GONE_SECONDS / 60:g} minutes"
                    self._settle(job, one, JobEnd("lost", self.wall_clock() - silent, why))
                continue
            one.heard_at = now
            if (ended := self.look(one.directory)) is not None:
                self._settle(job, one, ended)

    def _settle(self, job: str, one: _Registered, ended: JobEnd) -> None:
        known = ended.status.get("samples")
        samples = known if isinstance(known, int) else one.samples
        self.store.end_job(
            job,
            ended.state,
            at=ended.at,
            samples=samples,
            message=ended.message,
            outcome=outcome_of(ended.status) if ended.status else JobOutcome(),
        )
        if self._commit():
            self.say(f"{job} has ended without a word: {ended.state}")
            del self._jobs[job]
            self.tell(EndJob(job, ended.state, ended.at, samples, ended.message))
