"""A simulated worker: it takes leases by the real lease book, computes for a while, pushes, and reports."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.protocol.messages import (
    Export,
    Exported,
    ExportFailed,
    Heartbeat,
    Hello,
    MasterReplies,
    NodeFailed,
    Topology,
    TopologyRequest,
    Wait,
)
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.simulation.nodes.program import NodeProgram
from dlrover_lite.simulation.nodes.pushes import Pushes
from dlrover_lite.worker.leases import HeldLease, LeaseBook

if TYPE_CHECKING:
    from dlrover_lite.simulation.job import SimulatedJob
    from dlrover_lite.transport.connector import Connector

__all__ = ["Worker"]

_BEAT_SECONDS = 1.0
_IDLE_SECONDS = 0.2
_MAP_SECONDS = 0.2
"""Seconds until the master is asked again that had no map to give."""
_MOST_PUSHES = 2
"""Pushes that may be under way while the next minibatch is computed."""
_EXPORT_SECONDS = 1.0
_CRASH_SECONDS = 0.3
_LEAVE_SECONDS = 0.3
"""Seconds that a worker which was asked to end has for its last words to arrive."""


class Worker(NodeProgram):
    def __init__(self, job: SimulatedJob, spec: NodeSpec) -> None:
        super().__init__(job, spec)
        self.extra_bytes = 0
        """Bytes of memory that it has beside what it needs."""
        self._chance = job.world.chance(f"work of {job.id} {spec.id}")
        self._beats = self.connector.client(job.endpoint, MasterReplies)
        self._maps = self.connector.client(job.endpoint, MasterReplies)
        self._map_asked: tuple[int, float] | None = None
        """Number of the request for a newer map that is under way, and when it was sent."""
        self._map_again_at = self._first_map_at = math.inf
        self._book: LeaseBook | None = None
        self._pushes: Pushes | None = None
        self._is_computing = False
        self._is_exporting = False
        self._is_leaving = False
        self._doing = ("starting", 0.0)
        self._beat_at = self._idle_at = 0.0

    # --- beginning --------------------------------------------------------------------------------------------------------

    def started(self) -> None:
        self._doing = ("starting", self.clock())
        self._beat_at = self.clock() + _BEAT_SECONDS
        self.hold()
        if self.job.crashes:
            self.world.clock.after(_CRASH_SECONDS, lambda: self.process.end(1))
        self.ask(Hello(self.id, "worker"), lambda _: self._ask_first_map())

    def hold(self) -> None:
        """Have the memory that it needs."""
        self.process.hold(self.job.spec.work.worker_bytes + self.extra_bytes)

    @property
    def tokens(self) -> list[int]:
        """Tokens of the leases that it knows of."""
        return self._book.tokens if self._book is not None else []

    def _ask_first_map(self) -> None:
        self.ask(TopologyRequest(self.id), self._meet_servers)

    def _meet_servers(self, body: Any) -> None:
        if not isinstance(body, Topology) or not body.version:
            self._first_map_at = self.clock() + (body.seconds if isinstance(body, Wait) else _MAP_SECONDS)
            return
        self._pushes = Pushes(self.connector, self.clock, self._ask_map, body)
        connector = cast("Connector", self.connector)  # clients of both do alike, but for waiting
        self._book = LeaseBook(self.id, self.job.endpoint, connector=connector, clock=self.clock)

    # --- steps ------------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        now = self.clock()
        if now >= self._beat_at:
            self._beat_at = now + _BEAT_SECONDS
            doing, since = self._doing
            self._beats.send(Heartbeat(self.id, doing, now - since))
        if self.is_asking or self._is_leaving:
            return
        if now >= self._first_map_at:
            self._first_map_at = math.inf
            self._ask_first_map()
        if self._book is None or self._pushes is None:
            return
        try:
            self._hear_map(self._pushes, now)
            self._pushes.work()
            self._book.pump()
            self._go_on(self._book, self._pushes)
        except DlroverLiteError as error:
            self.job.world.note(self.name, f"fails: {error.message}")
            self.ask(NodeFailed(self.id, False, error.message), lambda _: self.process.end(1))

    def _go_on(self, book: LeaseBook, pushes: Pushes) -> None:
        if self._is_computing or self._is_exporting or len(pushes.under_way) >= _MOST_PUSHES:
            return
        if (found := book.next()) is not None:
            self._compute(book, *found)
        elif not pushes.under_way:
            if book.finished:
                self.process.end(0)
            elif book.export is not None:
                self._export(book.export)
            elif self.clock() >= self._idle_at:
                self._doing = ("waiting for work", self.clock())
                book.idle(0.0)
                self._idle_at = self.clock() + (book.ask_again_in or _IDLE_SECONDS)

    def next_at(self) -> float:
        if self._book is None or self._pushes is None:
            return min(self._beat_at, self._first_map_at)
        if self.is_asking or self._is_leaving:
            return self._beat_at
        found = [self._beat_at, self._pushes.next_at, self._map_again_at]
        if self._map_asked is not None:
            found.append(self._map_asked[1] + _MAP_SECONDS)
        now = self.clock()
        found.append(self._idle_at if self._idle_at > now else now + _IDLE_SECONDS)
        return min(found)

    def leaves(self) -> None:
        if self._is_leaving:
            return
        self._is_leaving = True
        if self._book is None:
            super().leaves()
            return
        for request in self._book.last_words():
            self._beats.send(request)
        self.world.clock.after(_LEAVE_SECONDS, self._leave)

    def _leave(self) -> None:
        if self.process.paused:
            self.world.clock.after(_LEAVE_SECONDS, self._leave)
        else:
            super().leaves()

    def close(self) -> None:
        super().close()
        self._beats.close()
        self._maps.close()
        if self._book is not None:
            self._book.close()
        if self._pushes is not None:
            self._pushes.close()

    # --- minibatches ------------------------------------------------------------------------------------------------------

    def _compute(self, book: LeaseBook, held: HeldLease, k: int) -> None:
        """Compute some minibatches of a lease."""
        work, last = self.job.spec.work, k
        for _ in range(min(work.minibatches(self.process.limits.cores), held.lease.stop - k) - 1):
            following = book.next()
            assert following is not None  # they are of the same lease
            last = following[1]
        self._is_computing = True
        self._doing = (f"minibatch {k} of {held.lease.kind} {held.lease.index}", self.clock())
        began = self.clock()
        cpu_seconds = work.worker_cpu_seconds(last + 1 - k, self._chance)
        self.process.do(cpu_seconds, partial(self._computed, held, k, last + 1, began, cpu_seconds))

    def _computed(self, held: HeldLease, start: int, stop: int, began: float, cpu_seconds: float) -> None:
        self._is_computing = False
        self.called()
        done, seconds, plan = held.work, self.clock() - began, self.job.spec.plan
        self._doing = (f"what follows minibatch {stop - 1} of {held.lease.kind} {held.lease.index}", self.clock())
        done.add_seconds("read", 0.1 * seconds)
        done.add_seconds("compute", 0.9 * seconds)
        done.add_cpu("compute", 0.8 * cpu_seconds)
        if held.lease.kind == "eval":
            self._count(held, start, stop, plan.eval_samples)
            return
        if start + 1 == stop and (fails := self.job.failing.pop((held.lease.index, start), None)) is not None:
            fails()
            held.failed(start, "Traceback (most recent call last):\nRuntimeError: this minibatch is to fail")
            return
        assert self._pushes is not None
        self.job.minibatches += stop - start
        self._pushes.begin(held.lease.index, start, stop, partial(self._pushed, held, start, stop))

    def _pushed(self, held: HeldLease, start: int, stop: int, seconds: float) -> None:
        held.work.add_seconds("push", seconds)
        self._count(held, start, stop, self.job.spec.plan.samples)

    def _count(self, held: HeldLease, start: int, stop: int, samples: int) -> None:
        size = self.job.spec.plan.batch_size
        held.work.minibatches += stop - start
        held.work.samples += min(samples, stop * size) - start * size
        for k in range(start, stop):
            held.consumed(k)

    # --- maps -------------------------------------------------------------------------------------------------------------

    def _ask_map(self) -> None:
        if self._map_asked is None and math.isinf(self._map_again_at):
            self._map_asked = self._maps.send(TopologyRequest(self.id)), self.clock()

    def _hear_map(self, pushes: Pushes, now: float) -> None:
        while (reply := self._maps.receive()) is not None:
            if self._map_asked is None or reply.sequence != self._map_asked[0]:
                continue
            self._map_asked = None
            if isinstance(reply.body, Topology) and reply.body.version:
                pushes.follow(reply.body)
            else:
                self._map_again_at = now + _MAP_SECONDS
        if now >= self._map_again_at:
            self._map_again_at = math.inf
            self._ask_map()
        if self._map_asked is not None and now >= self._map_asked[1] + _MAP_SECONDS:
            self._map_asked = self._maps.send(TopologyRequest(self.id), sequence=self._map_asked[0]), now

    # --- the end ----------------------------------------------------------------------------------------------------------

    def _export(self, task: Export) -> None:
        self._is_exporting = True
        self._doing = ("writing the model", self.clock())
        self.world.clock.after(_EXPORT_SECONDS, lambda: self._exported(task))

    def _exported(self, task: Export) -> None:
        if not self.process.running:
            return
        if self.process.paused:
            self.world.clock.after(_EXPORT_SECONDS, lambda: self._exported(task))
            return
        self._is_exporting = False
        self.called()
        if self.job.failing_exports:
            self.job.failing_exports.pop(0)()
            self.ask(ExportFailed(self.id, f"{task.destination} can't be written", "Mend it.", True), self._try_again)
        else:
            self.job.exports += 1
            self.ask(Exported(self.id, self.job.rows(), 1000), lambda _: self.process.end(0))

    def _try_again(self, _: object) -> None:
        assert self._book is not None
        self._book.export = None
