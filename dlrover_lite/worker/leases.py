"""The worker's side of the shard service: leases in, reports out, one request to the master under way at a time."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DeadlineExceeded, JobError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.core.intervals import IntervalSet
from dlrover_lite.core.metrics import BinaryMetrics
from dlrover_lite.protocol.messages import (
    Ack,
    Export,
    Finished,
    Lease,
    LeaseRequest,
    MasterReplies,
    UnknownIds,
    Wait,
    WorkReport,
)
from dlrover_lite.protocol.nodes import UNANSWERED_SECONDS
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Failure, Later, Reply
from dlrover_lite.transport.polling import Source

__all__ = ["HeldLease", "LeaseBook", "Work"]

REPORT_SECONDS = 0.5
RETRY_SECONDS = 0.5
"""Seconds until a master that was restarted is asked again; an answer takes it milliseconds."""
_AHEAD_PART = 4
"""Part of a lease that is left when the next one is asked for ahead: of two seconds half a one, in which a store answers."""
_BAD_EXAMPLES = 5


class Work:
    """What happened since the last report, of one kind of pass."""

    def __init__(self) -> None:
        self.samples = 0
        self.minibatches = 0
        self.bad_lines = 0
        self.bad_examples: list[str] = []
        self.staleness: Counter[int] = Counter()
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}
        self.read_delay_seconds = 0.0
        self.longest_step = 0.0
        self._unknown: dict[str, UnknownIds] = {}
        self._scores: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []

    def add_scores(self, logits: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
        self.samples += len(labels)
        self.minibatches += 1
        self._scores.append((logits, labels))

    def add_unknown(self, columns: Sequence[UnknownIds]) -> None:
        """Add the unknown ids of a minibatch, by column."""
        for one in columns:
            before = self._unknown.get(one.column)
            self._unknown[one.column] = one if before is None else before.plus(one)

    def add_bad(self, examples: list[str]) -> None:
        self.bad_lines += len(examples)
        self.bad_examples += examples[: _BAD_EXAMPLES - len(self.bad_examples)]

    def add_seconds(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def add_cpu(self, phase: str, seconds: float) -> None:
        self.cpu_seconds[phase] = self.cpu_seconds.get(phase, 0.0) + seconds

    def stepped(self, seconds: float) -> None:
        """Note that a step came so many seconds after the step before."""
        self.longest_step = max(self.longest_step, seconds)

    def report(self) -> WorkReport:
        metrics = BinaryMetrics()
        if self._scores:
            logits, labels = zip(*self._scores, strict=True)
            metrics.add(np.concatenate(logits), np.concatenate(labels))
        return WorkReport(
            samples=self.samples,
            minibatches=self.minibatches,
            bad_lines=self.bad_lines,
            bad_examples=self.bad_examples,
            metrics=metrics.to_bytes() if self._scores else b"",
            staleness=dict(self.staleness),
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            read_delay_seconds=self.read_delay_seconds,
            longest_step_seconds=self.longest_step,
            unknown_ids=list(self._unknown.values()),
        )


class HeldLease:
    """A lease with what is still to be handed out, and what is to be reported of it."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.next_k = lease.start
        self.open = lease.stop - lease.start
        """Number of minibatches neither consumed nor failed yet."""
        self.unreported = IntervalSet()
        self.failures: deque[tuple[int, str]] = deque()
        self.work = Work()

    @property
    def exhausted(self) -> bool:
        return self.next_k >= self.lease.stop

    @property
    def begun(self) -> bool:
        return self.next_k > self.lease.start

    @property
    def nearly_exhausted(self) -> bool:
        """Return whether the last quarter of the lease is all that is left to be handed out."""
        return self.lease.stop - self.next_k <= (self.lease.stop - self.lease.start) // _AHEAD_PART

    def consumed(self, k: int) -> None:
        self.unreported.add(k, k + 1)
        self.open -= 1

    def failed(self, k: int, error: str) -> None:
        self.failures.append((k, error))
        self.open -= 1

    def due(self, *, now: bool) -> bool:
        """Say whether there is something to report. Evaluation is reported whole: its metrics must not count twice."""
        if self.failures:
            return True
        if self.lease.kind == "eval" or not now:
            return bool(self.unreported.total) and not self.open
        return bool(self.unreported.total)


class LeaseBook:
    """Asks for the next lease when the last minibatch of the present one is handed out, so that no worker waits for the master; with
    ``asks_ahead`` earlier, so that what it begins with can be fetched from far."""

    def __init__(
        self, node: str, endpoint: str, *, connector: Connector, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._node = node
        self._clock = clock
        self._client = connector.client(endpoint, MasterReplies, peer="the master", clock=clock)
        self._held: list[HeldLease] = []
        self._current: HeldLease | None = None
        self._under_way: tuple[int, LeaseRequest, float, float] | None = None
        self._reported_at = clock()
        self._ask_again_at = 0.0
        self.finished = False
        """Whether the master needs nothing more of this worker."""
        self.export: Export | None = None
        self.asks_ahead = False

    @property
    def following(self) -> HeldLease | None:
        """Return the lease of which the first minibatch isn't handed out yet; None: there is none."""
        return next((held for held in self._held if not held.begun), None)

    @property
    def socket(self) -> Source:
        """Socket that is readable when an answer of the master is there."""
        socket: Source = self._client.socket
        return socket

    def next(self) -> tuple[HeldLease, int] | None:
        """Return the next minibatch, if one is at hand; a request for more goes out when the last one is handed out."""
        self.pump()
        held = self._current
        if held is None or held.exhausted:
            held = next((other for other in self._held if not other.exhausted), None)
            if held is None:
                return None
            self._current = held
        k = held.next_k
        held.next_k += 1
        if held.exhausted:
            self.pump()
        return held, k

    def pump(self, *, timeout_seconds: float = 0.0) -> None:
        """Take an answer that is here (or comes within the timeout), and send what is due."""
        if self._under_way is not None:
            self._take_answer(timeout_seconds)
        if self._under_way is None and not self.finished and self.export is None:
            self._send_due()

    def idle(self, timeout_seconds: float) -> None:
        """Report all there is, and wait for the master's answer: there is nothing to do until it says so."""
        self._reported_at = -1e9
        self.pump(timeout_seconds=timeout_seconds)
        if self._under_way is None and not self.finished and self.export is None:
            self._client.receive(timeout_seconds)  # nothing may be asked yet: what comes now is an old answer, repeated

    @property
    def tokens(self) -> list[int]:
        """Tokens of all leases that it knows of."""
        return [held.lease.token for held in self._held]

    @property
    def ask_again_in(self) -> float:
        """Seconds until the master may be asked again, after it said to wait."""
        return max(0.0, self._ask_again_at - self._clock())

    def leave(self, deadline_seconds: float) -> None:
        """Report what has been consumed and give the rest back."""
        end = self._clock() + deadline_seconds
        while self._under_way is not None and self._clock() < end and not self.finished:
            self._take_answer(0.1)
        for request in self.last_words():
            self._client.call(request, deadline_seconds=max(0.1, end - self._clock()))

    def last_words(self) -> list[LeaseRequest]:
        """Return what there is still to say of each lease: what has been consumed, and that the rest is given back."""
        found = []
        for held in self._held:
            whole = held.lease.kind == "train"
            request = LeaseRequest(
                self._node,
                held.lease.token,
                list(held.unreported) if whole else [],
                give_back=True,
                want=False,
                report=held.work.report() if whole else None,
                holding=self.tokens,
            )
            found.append(request)
        return found

    def close(self) -> None:
        self._client.close()

    # --- how ------------------------------------------------------------------------------------------------------------

    def _send_due(self) -> None:
        now = self._clock()
        ended = (held.nearly_exhausted if self.asks_ahead else held.exhausted for held in self._held)
        want = all(ended) and now >= self._ask_again_at
        periodic = now - self._reported_at >= REPORT_SECONDS
        held = next((held for held in self._held if held.due(now=want or periodic)), None)
        if held is None:
            if want:
                self._send(LeaseRequest(self._node))
            return
        failed, error = held.failures.popleft() if held.failures else (None, "")
        request = LeaseRequest(self._node, held.lease.token, failed=failed, error=error, want=want)
        if held.lease.kind == "train" or not held.open:
            request = msgspec.structs.replace(request, consumed=list(held.unreported), report=held.work.report())
            held.unreported = IntervalSet()
            held.work = Work()
        if not held.open and not held.failures:
            self._held.remove(held)
        self._reported_at = now
        if request.consumed:
            failpoint("worker.report.begun")
        self._send(request)
        if request.consumed:
            failpoint("worker.report.sent")

    def _send(self, request: LeaseRequest) -> None:
        now = self._clock()
        request = msgspec.structs.replace(request, holding=self.tokens)
        self._under_way = (self._client.send(request), request, now, now)

    def _take_answer(self, timeout_seconds: float) -> None:
        assert self._under_way is not None
        sequence, request, first_sent, last_sent = self._under_way
        reply = self._client.receive(timeout_seconds)
        if reply is not None and reply.sequence == sequence and isinstance(reply.body, Later):
            self._under_way = (sequence, request, self._clock(), last_sent)
            return
        if reply is not None and reply.sequence == sequence:
            self._under_way = None
            if request.consumed:
                failpoint("worker.report.answered")
            self._take(reply)
            return
        now = self._clock()
        if now - first_sent > UNANSWERED_SECONDS:
            raise DeadlineExceeded(f"the master did not answer within {UNANSWERED_SECONDS:g} s")
        if now - last_sent > RETRY_SECONDS:
            self._client.send(request, sequence=sequence)
            self._under_way = (sequence, request, first_sent, now)

    def _take(self, reply: Reply) -> None:
        match reply.body:
            case Lease() as lease:
                failpoint("worker.lease.received")
                self._held.append(HeldLease(lease))
            case Wait(seconds):
                self._ask_again_at = self._clock() + seconds
            case Finished():
                self.finished = True
            case Export() as export:
                self.export = export
            case Ack():
                pass
            case Failure(_, message, hint):
                raise JobError(f"the master: {message}", hint=hint)
            case other:
                raise JobError(f"the master answered a lease request with {type(other).__name__}")
