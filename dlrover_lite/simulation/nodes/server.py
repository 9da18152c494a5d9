"""A simulated parameter server: it follows the master's orders as the real one does, and applies each minibatch once in each slot.

Rows are a number, by ``Work``; what was applied where is real (``AppliedMinibatches``), and so are the files of checkpoints, without rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.protocol.messages import (
    Hello,
    MasterReplies,
    NodeFailed,
    PsCounters,
    PsOrders,
    PsReport,
    TableCount,
)
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.protocol.ps_messages import CopyBegin, CopyNext, Moved, NotNow, Pushed
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, mask_of
from dlrover_lite.ps.journal.memory_check import ParametersLost, check_memory
from dlrover_lite.simulation.nodes.checkpoint_parts import Restore, Snapshots
from dlrover_lite.simulation.nodes.memory import AppliedCounts, ServerMemory, members_of
from dlrover_lite.simulation.nodes.messages import PushGradients, ServerRequests
from dlrover_lite.simulation.nodes.program import NodeProgram
from dlrover_lite.simulation.nodes.slot_copies import Incoming, Outgoing
from dlrover_lite.transport.frames import Request

if TYPE_CHECKING:
    from dlrover_lite.simulation.job import SimulatedJob

__all__ = ["Server"]

REPORT_SECONDS, IMPATIENT_SECONDS, OVERDUE_SECONDS = 0.25, 0.05, 0.5
"""Seconds between two reports; while the master's word is waited for; and while it doesn't answer."""
_COUNT_SECONDS = 0.5
"""Seconds between two reports of counters."""
_TIDY_SECONDS = 0.05
"""Seconds that it takes to remove what isn't its own any more."""
_MEMORY = "state"


class Server(NodeProgram):
    def __init__(self, job: SimulatedJob, spec: NodeSpec) -> None:
        super().__init__(job, spec)
        self.orders = PsOrders(0)
        self.owned = self.frozen = 0
        """Slots that it owns, and those of them of which it takes no push, a bit each."""
        self.incoming: Incoming | None = None
        self.outgoing: Outgoing | None = None
        self.on_applied_twice: Callable[[int, int], None] = job.world.applied_twice(job, spec.id)
        self._reports = self.connector.client(job.endpoint, MasterReplies)
        self.endpoint = f"memory://{job.id}/{spec.id}"
        self._server = self.connector.server(self.endpoint, ServerRequests)
        self._held: list[Request] = []
        """Pushes that wait for the master's word."""
        self._computing: set[tuple[int, int]] = set()
        """Pushes that are being computed, by session and number."""
        self._sessions = 0
        self._unsettled = False
        """There may be something of slots that aren't its own, left by a predecessor."""
        self._tidy_at = 0.0
        self._reported_at = self._counted_at = -math.inf
        self._unanswered = 0
        self._is_up = self._is_lost = False
        self._busy_seconds = 0.0

    # --- beginning --------------------------------------------------------------------------------------------------------

    def started(self) -> None:
        kept, plan = self.process.kept.get(_MEMORY), self.job.spec.plan
        if kept is not None and isinstance(kept.content, ServerMemory):
            self.memory = kept.content
            self._unsettled = True
        else:
            counts = AppliedCounts(plan.minibatches(plan.samples), plan.epochs) if self.job.spec.counted else None
            self.memory = ServerMemory(counts, begun_empty=bool(self.spec.follows))
        self.job.memories[self.id] = self.memory
        self.applied = self.memory.applied()
        self.snapshots = Snapshots(self)
        self.restore = Restore(self)
        self.hold()
        if self.process.running:
            self.ask(Hello(self.id, "ps", self.endpoint), self._welcomed)

    def _welcomed(self, _: object) -> None:
        self._is_up = True

    def hold(self) -> None:
        """Have the memory of its rows. Where that is more than its limit it is killed, with as much as it may have."""
        work, limit = self.job.spec.work, self.process.limits.memory
        wanted = work.row_bytes(self.rows) + self.extra_bytes
        kept = min(wanted, max(0, limit - work.server_bytes))
        self.process.keep(_MEMORY, kept, self.memory)
        if self.process.running:
            self.process.hold(work.server_bytes + wanted - kept)

    @property
    def extra_bytes(self) -> int:
        """Bytes of memory that its rows have beside what ``Work`` says."""
        return self.memory.extra_bytes

    @extra_bytes.setter
    def extra_bytes(self, bytes: int) -> None:
        self.memory.extra_bytes = bytes

    @property
    def rows(self) -> int:
        """Number of its rows."""
        return self.job.rows() * self.owned.bit_count() // SLOTS

    # --- steps ------------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        while (reply := self._reports.receive()) is not None:
            if isinstance(reply.body, PsOrders):
                self._follow(reply.body)
                if not self.process.running:
                    return
        for request in self._server.receive():
            self._take(request)
        if not self._is_up or self._is_lost:
            return
        now = self.clock()
        if self.restore.is_due:
            self.restore.work()
        else:
            is_quiet = self.is_tidy and self.incoming is None and self.outgoing is None
            self.snapshots.work(may_begin=is_quiet and self.orders.version > 0)
            self._copy()
        if now >= self._report_at:
            self.hold()
            if self.process.running:
                self._reports.send(self._report(now))

    def _copy(self) -> None:
        if self.incoming is None and not self.snapshots.active:
            mine = next((order for order in self.orders.moves if order.target == self.id), None)
            if mine is not None and self.is_tidy:
                self.incoming = Incoming(self, mine, self._discard)
        if self.incoming is not None:
            self.incoming.work()

    def next_at(self) -> float:
        if not self._is_up or self._is_lost:
            return math.inf
        found = [self._report_at, self.restore.next_at if self.restore.is_due else self.snapshots.next_at]
        if self.incoming is not None:
            found.append(self.incoming.next_at)
        if not self.is_tidy:
            found.append(self._tidy_at)
        return min(found)

    def close(self) -> None:
        super().close()
        self._reports.close()
        self._server.close()
        if self.incoming is not None:
            self.incoming.close()

    # --- reports ----------------------------------------------------------------------------------------------------------

    @property
    def is_tidy(self) -> bool:
        """Nothing is left of slots that aren't its own."""
        return self.clock() >= self._tidy_at

    @property
    def _report_at(self) -> float:
        given = bool(self.frozen) and (self.outgoing is None or self.outgoing.waits)
        ready = self.incoming is not None and self.incoming.ready
        waits = not self.orders.version or given or ready or self.snapshots.has_news
        pause = IMPATIENT_SECONDS if waits else REPORT_SECONDS
        return self._reported_at + (max(pause, OVERDUE_SECONDS) if self._unanswered else pause)

    def _report(self, now: float) -> PsReport:
        self._reported_at = now
        self._unanswered += 1
        work, rows = self.job.spec.work, self.rows
        row_bytes = work.row_bytes(rows) + self.extra_bytes
        counters = None
        if now - self._counted_at >= _COUNT_SECONDS:
            self._counted_at = now
            requests = 2 * self.memory.pushes
            table = TableCount("C1", work.dim, rows)
            counters = PsCounters(self._busy_seconds, 0.1 * self._busy_seconds, requests, row_bytes, [table])
        return PsReport(
            self.id,
            rows=rows,
            bytes=row_bytes,
            pushes=self.memory.pushes,
            version=self.orders.version,
            tidy=self.is_tidy,
            ready=self.incoming.reports() if self.incoming is not None else [],
            snapshot=self.snapshots.take_report(),
            restored=self.memory.restored,
            counters=counters,
        )

    # --- orders -----------------------------------------------------------------------------------------------------------

    def note_consumed(self, orders: PsOrders) -> None:
        """Note what is consumed, so that no push of it changes anything any more."""
        self.applied.consumed(orders.consumed_below, orders.consumed)

    def _follow(self, orders: PsOrders) -> None:
        """Follow the master's orders, unless they are older than those it has."""
        self._unanswered = 0
        if self._is_lost:
            return
        try:
            check_memory(orders, self.memory, self.spec.follows)
        except ParametersLost as error:
            self._is_lost = True
            self.ask(NodeFailed(self.id, False, error.message, because="lost"), lambda _: self.process.end(1))
            return
        self.note_consumed(orders)
        if orders.version >= self.orders.version:
            self.snapshots.follow(orders.snapshot)
        if orders.version <= self.orders.version:
            return
        self.orders = orders
        listed = {order.move for order in orders.moves}
        self._own(mask_of(orders.owned) if orders.owned else 0)
        if self.outgoing is not None and self.outgoing.move not in listed:
            self.outgoing = None
            self.frozen = 0
        if self.incoming is not None and self.incoming.order.move not in listed:
            incoming, self.incoming = self.incoming, None
            incoming.close()
            self._discard(incoming.slots & ~self.owned)
        held, self._held = self._held, []
        for request in held:
            self._apply(request)
        self.job.world.owners_changed(self.job)

    def _own(self, owned: int) -> None:
        if self.snapshots.active and owned != self.owned:
            self.snapshots.give_up("slots have come or gone while its snapshot was taken")
        lost = (ALL_SLOTS if self._unsettled else self.owned) & ~owned
        self._unsettled = False
        self.owned = owned
        self.frozen &= owned
        self._discard(lost)

    def _discard(self, slots: int) -> None:
        """Remove what there is of slots that aren't its own."""
        if not slots:
            return
        self.applied.forget(slots)
        if self.memory.counts is not None:
            self.memory.counts.forget(members_of(slots))
        self._tidy_at = self.clock() + _TIDY_SECONDS

    def freeze(self, slots: int) -> None:
        """Take no push for these slots until the master has spoken."""
        self.frozen |= slots

    # --- requests ---------------------------------------------------------------------------------------------------------

    def _take(self, request: Request) -> None:
        match request.body:
            case PushGradients() if (request.session, request.sequence) in self._computing:
                pass  # sent again by who has waited for long: the first one is answered
            case PushGradients(_, start, stop, slots):
                self._computing.add((request.session, request.sequence))
                share = mask_of(slots).bit_count() / SLOTS
                seconds = self.job.spec.work.server_cpu_seconds(stop - start, share)
                self._busy_seconds += seconds
                self.process.do(seconds, partial(self._apply, request))
            case CopyBegin(move, have):
                self._server.reply(request, *self._copy_begin(move, mask_of(have) if have else 0))
            case CopyNext(session) as following:
                outgoing = self.outgoing
                known = outgoing is not None and outgoing.session == session
                answer = outgoing.next(following) if outgoing is not None and known else (NotNow(), [])
                self._server.reply(request, *answer)

    def _copy_begin(self, move: int, have: int) -> tuple[Any, list[Any]]:
        order = next((one for one in self.orders.moves if one.move == move and one.source == self.id), None)
        if order is None or not self.is_tidy or self.snapshots.active:
            return NotNow(), []
        self._sessions += 1
        number = int(self.id.rpartition("-")[2])
        self.outgoing = Outgoing(self, order, number << 32 | self._sessions, have)
        return self.outgoing.began(), []

    def _apply(self, request: Request) -> None:
        """Apply gradients where they weren't applied before; hold them back where the slots are frozen."""
        push, slots = request.body, mask_of(request.body.slots)
        self._computing.discard((request.session, request.sequence))
        if self.restore.is_due or not self.orders.version or slots & ~self.owned:
            self._server.reply(request, Moved(self.orders.version))
            return
        if slots & self.frozen:
            self._held.append(request)
            return
        version = self.memory.pushes
        for k in range(push.start, push.stop):
            self._apply_one(push.epoch, k, slots)
        self._server.reply(request, Pushed(version, self.memory.pushes > version, self.orders.version))

    def _apply_one(self, epoch: int, k: int, slots: int) -> None:
        to_do = slots & ~self.applied.applied(epoch, k)
        if not to_do:
            return
        memory = self.memory
        if memory.counts is not None and memory.counts.apply(epoch, k, members_of(to_do), memory.row_epoch):
            self.on_applied_twice(epoch, k)
        self.applied.add(epoch, k, to_do)
        memory.pushes += 1
