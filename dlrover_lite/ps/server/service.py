"""What a parameter server answers, and what it does between two requests: follows the master's orders, copies, tidies up."""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import CheckpointDamaged, CheckpointForeign, DlroverLiteError, JobError, UsageError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.protocol.messages import Ack, PsCounters, PsOrders, PsReport, RestoreOrder, RestoreReport, TableCount
from dlrover_lite.protocol.ps_messages import (
    Configure,
    CopyBegin,
    CopyNext,
    Moved,
    NotNow,
    Pull,
    Pulled,
    Push,
    Pushed,
    Rows,
    Scan,
)
from dlrover_lite.ps.journal.applied_minibatches import mask_of
from dlrover_lite.ps.migration.cleanup import Cleanup
from dlrover_lite.ps.migration.migration import Outgoing
from dlrover_lite.ps.migration.migration_target import MigrationTarget
from dlrover_lite.ps.server.busy_meter import BusyMeter
from dlrover_lite.ps.server.engine import Engine, Frozen, NotOwned, Slice
from dlrover_lite.ps.server.transfer_meter import TransferMeter
from dlrover_lite.ps.snapshots.restore import Restoring, Unreachable
from dlrover_lite.ps.snapshots.snapshot_orders import SnapshotOrders
from dlrover_lite.ps.snapshots.writer_process import SnapshotWriterProcess
from dlrover_lite.tables.layout import dense_groups
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.frames import Failure, Request
from dlrover_lite.transport.polling import Source
from dlrover_lite.transport.server import Server
from dlrover_lite.transport.tcp_connections import TcpConnection

__all__ = ["PsService", "Unrestorable"]

REPORT_SECONDS = 0.2
IMPATIENT_SECONDS = 0.005
"""Seconds between reports while the master's word is waited for."""
OVERDUE_SECONDS = 0.2
"""Seconds for which an answer is waited for before the next report is sent all the same."""
LOADS_SECONDS = 2.0
COUNT_SECONDS = 0.5
"""Seconds between two reports that say what the profile of the job needs."""
HELD_MOST = 256
"""Maximum number of requests held back while slots are frozen; more are sent away, to come again."""
RESTORE_SECONDS = 0.05
"""Seconds for which rows are taken from a checkpoint before reports and requests are looked at."""
RESTORE_AGAIN_SECONDS = 2.0
"""Seconds until a checkpoint that couldn't be read is tried again."""
RESTORE_MOST_SECONDS = 600.0
"""Seconds for which a checkpoint that can't be read is tried."""
TIDY_ROWS = 1 << 11
"""Number of rows looked at in a step of tidying."""
TIDY_SECONDS = 0.0005
"""Seconds for steps of tidying between two requests."""


SLOWED_LOOK_SECONDS = 0.005
"""Seconds between looks whether pushes that are held back for a moment may come in."""


class Unrestorable(JobError):
    """A checkpoint can't be restored, by nobody."""

    def __init__(self, error: DlroverLiteError) -> None:
        super().__init__(error.message, hint=error.hint)
        damaged = isinstance(error, CheckpointDamaged | CheckpointForeign)
        self.because: Literal["damaged", ""] = "damaged" if damaged else ""
        """Whether the checkpoint itself is damaged or foreign: an older one may be whole."""


class _Slowed(Exception):
    """A push has to wait for a moment."""


class PsService:
    """The service of one parameter server. ``connect(endpoint, peer)`` makes a client of another one. ``persister``: it is this one's from
    now on. ``connections`` lists those of this process by TCP, where that is what it is reached by."""

    def __init__(
        self,
        node: str,
        engine: Engine,
        server: Server,
        connect: Callable[[str, str], Client],
        *,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda _: None,
        persister: SnapshotWriterProcess | None = None,
        connections: Callable[[], Iterable[TcpConnection]] = tuple,
    ) -> None:
        self.node = node
        self.engine = engine
        self.orders = PsOrders(0)
        self.copier: MigrationTarget | None = None
        self.outgoing: Outgoing | None = None
        self.restoring: Restoring | None = None
        self._restored: RestoreReport | None = None
        """How far the last restore was when it was done."""
        self._server = server
        self._connect = connect
        self._clock = clock
        self._say = say
        self._tidying = Cleanup(engine)
        self.snapshots = SnapshotOrders(number_of(node), engine, clock, say, persister=persister)
        self.meter = BusyMeter(clock)
        self._transfers = TransferMeter(connections, clock)
        self._held: dict[tuple[int, int], Request] = {}
        """Requests held back until the master has spoken."""
        self._slowed: dict[tuple[int, int], Request] = {}
        """Requests held back for a moment, as what they change is copied."""
        self._copies: deque[Request] = deque()
        """Requests for more rows of a move that aren't answered yet."""
        self._reported_at = self._loads_at = clock()
        self._counted_at = -math.inf
        self._told_of_snapshot = self.snapshots.state
        self._unanswered = 0
        self._restore_at = clock()
        self._restore_failing_since: float | None = None

    # --- requests -------------------------------------------------------------------------------------------------------

    def serve(self, requests: Sequence[Request]) -> None:
        """Answer these requests: all those of workers first, and one of those of a move, so that nobody who comes meanwhile waits for more
        than that."""
        for request in requests:
            if isinstance(request.body, CopyNext):
                self._copies.append(request)
            else:
                self.answer(request)
        if self._copies:
            self.answer(self._copies.popleft())

    def answer(self, request: Request) -> None:
        """Do what ``request`` asks and reply; a request that can't be done is answered with the reason."""
        began = self._clock()
        answer = self._server.attempt(request, self._answered)
        if isinstance(answer, Failure):
            self._server.reply(request, answer)
        elif answer is not None:
            self._server.reply(request, *answer)
            if isinstance(answer[0], Pulled | Pushed):
                self.meter.answered(began)

    def _answered(self, request: Request) -> tuple[Any, list[Any]] | None:
        """Return the reply with its frames; None for a request that is held back."""
        try:
            return self._handle(request)
        except NotOwned:
            return Moved(self.orders.version), []
        except Frozen:
            self._hold(request, self._held)
            return None
        except _Slowed:
            self._hold(request, self._slowed)
            return None
        except DlroverLiteError as error:
            return Failure("refused", error.message, error.hint), []
        except (ValueError, IndexError, OverflowError) as error:
            # frames of the wrong number or length: the header was ours, the rest was not
            return Failure("bad-request", f"{type(request.body).__name__}: {error}"), []

    def _hold(self, request: Request, held: dict[tuple[int, int], Request]) -> None:
        name = request.session, request.sequence
        if name not in held and len(held) >= HELD_MOST:
            self._server.reply(request, Moved(self.orders.version))
        else:
            held[name] = request  # a repeated one may have reconnected

    def _let_in(self, held: dict[tuple[int, int], Request]) -> None:
        """Answer what was held back; what still has to wait is held back again."""
        requests = list(held.values())
        held.clear()
        for request in requests:
            self.answer(request)

    def _handle(self, request: Request) -> tuple[Any, list[Any]]:
        engine = self.engine
        if self.to_restore is not None:
            raise NotOwned  # its rows aren't here yet
        if not self.orders.version and engine.configuration is None and isinstance(request.body, Pull | Push):
            raise NotOwned  # workers know it by now, and it hasn't heard yet that it follows one of whose memory nothing is here
        match request.body:
            case Pull(counts, with_unknown):
                keys = [(_array(request, g, np.uint64), of_group) for g, of_group in enumerate(counts)]
                rows = engine.pull(keys)
                engine.loads.requested()
                if not with_unknown:
                    return Pulled(engine.version, map_version=self.orders.version), rows
                unknown, table_rows = engine.unknown(keys)
                return Pulled(engine.version, table_rows, self.orders.version), [*rows, *unknown]
            case Push(epoch, k, factor, counts):
                covers = mask_of(request.buffer(0))
                if self.outgoing is not None and self.outgoing.closed_seconds(covers):
                    raise _Slowed
                result = engine.push(epoch, k, factor, covers, self._slices(request, counts))
                engine.loads.requested()
                return Pushed(result.version, result.applied, self.orders.version), []
            case Scan(group, start, limit, state):
                return self._scan(group, start, limit, state)
            case Configure() as configuration:
                covers = mask_of(request.buffer(0))
                engine.configure(configuration, covers, _blocks(request, configuration))
                return Ack(), []
            case CopyBegin(move, have):
                return self._copy_begin(move, mask_of(have) if have else 0)
            case CopyNext(session) as following:
                if self.outgoing is None or self.outgoing.session != session:
                    return NotNow(), []
                return self.outgoing.next(following, tidy=self._tidying.done) or (NotNow(), [])
            case other:
                raise ValueError(f"{type(other).__name__} is not for a parameter server")

    def _slices(self, request: Request, counts: list[list[int]]) -> list[Slice]:
        slices: list[Slice] = []
        for g, of_group in enumerate(counts):
            keys = _array(request, 1 + 2 * g, np.uint64)
            grads = _array(request, 2 + 2 * g, np.float32)
            dim = self.engine.groups[g].dim if g < len(self.engine.groups) else 1
            slices.append((keys, of_group, grads.reshape(len(keys), dim)))
        return slices

    def _scan(self, group: int, start: int, limit: int, state: bool) -> tuple[Any, list[Any]]:
        if not self.orders.version:
            raise NotOwned  # nothing yet, which isn't all there is
        if not 0 <= group < len(self.engine.groups):
            raise ValueError(f"there is no table group {group}")
        tables = self.engine.groups[group]
        found, next_start = tables.scan(start, limit, state=state)
        frames = [found.ids, found.tables, found.values]
        if state:
            frames += [found.counts, found.state]
        return Rows(next_start if next_start < tables.used else None, tables.used), frames

    def _copy_begin(self, move: int, have: int) -> tuple[Any, list[Any]]:
        order = next((order for order in self.orders.moves if order.move == move and order.source == self.node), None)
        rows_stay = self.outgoing is not None and not self.outgoing.may_tidy
        if order is None or not (rows_stay or self._is_tidy()) or self.snapshots.active:
            return NotNow(), []
        if self.outgoing is not None:
            self.outgoing.close()
        self.outgoing = Outgoing(self.engine, order, secrets.randbits(63), have=have)
        failpoint("ps.source.begun")
        return self.outgoing.began(), []

    def _is_tidy(self) -> bool:
        """Say whether nothing is to be removed, and rows that are made come behind all others."""
        if self._tidying.done and any(group.gaps for group in self.engine.groups):
            self._tidying.remove(0)  # a predecessor may have left them
        return self._tidying.done

    # --- orders ---------------------------------------------------------------------------------------------------------

    def follow(self, orders: PsOrders) -> None:
        """Follow the master's orders. Older ones than those it has are ignored."""
        self._unanswered = 0
        self.engine.applied_minibatches.consumed(orders.consumed_below, orders.consumed)
        if orders.version >= self.orders.version:
            self.snapshots.follow(orders.snapshot)
        if orders.version <= self.orders.version:
            return
        self.orders = orders
        listed = {order.move for order in orders.moves}
        self._own(mask_of(orders.owned))
        if self.restoring is not None and (self.restoring.order, self.restoring.slots) != (
            self.to_restore,
            self.engine.owned,
        ):
            self._stop_restoring()
        if self.outgoing is not None and self.outgoing.move not in listed:
            self.outgoing.end()
            self.outgoing = None
        if self.copier is not None and self.copier.order.move not in listed:
            self._end_copier(self.copier)
        self._let_in(self._held)
        self._let_in(self._slowed)

    def _own(self, owned: int) -> None:
        if self.snapshots.active and owned != self.engine.owned:
            self.snapshots.give_up("slots have come or gone while its snapshot was taken")
        self._tidying.keep(owned)
        lost = self.engine.own(owned)
        if lost:
            self._tidying.remove(lost)

    def _end_copier(self, copier: MigrationTarget) -> None:
        copier.close()
        self.copier = None
        failpoint("ps.target.ended")
        if copier.slots & ~self.engine.owned:
            self._discard(copier.slots & ~self.engine.owned)
            came = (copier.slots & self.engine.owned).bit_count()
            rest = f", {came:,} slots have come and stay" if came else ""
            self._say(f"move {copier.order.move} from {copier.order.source} was cancelled{rest}")

    # --- restoring ------------------------------------------------------------------------------------------------------

    @property
    def to_restore(self) -> RestoreOrder | None:
        """The order to restore a checkpoint that isn't done yet."""
        order = self.orders.restore
        return order if order is not None and self.engine.state.restored < order.generation else None

    def _restore(self, order: RestoreOrder) -> float:
        """Restore a little more of the checkpoint; returns the seconds until it is to go on. Raises Unrestorable."""
        now = self._clock()
        if self.restoring is None:
            if now < self._restore_at:
                return self._restore_at - now
            self._say(f"restores checkpoint {order.cut} of {order.url}")
            self.restoring = Restoring(self.engine, order, self.engine.owned)
        restoring = self.restoring
        try:
            if restoring.step(RESTORE_SECONDS):
                self._say(f"has restored {restoring.rows:,} rows in {restoring.seconds:.3f} s")
                self._restored = restoring.progress
                self._stop_restoring()
                self._reported_at = -math.inf  # others wait for it
        except Unreachable as error:
            self._restore_again(error, now)
        except (JobError, UsageError) as error:
            self._stop_restoring()
            raise Unrestorable(error) from error
        return 0.0

    def _restore_again(self, error: Unreachable, now: float) -> None:
        self._stop_restoring()
        if self._restore_failing_since is None:
            self._restore_failing_since = now
        if now - self._restore_failing_since > RESTORE_MOST_SECONDS:
            raise Unrestorable(error) from error
        self._restore_at = now + RESTORE_AGAIN_SECONDS
        self._say(f"{error.message}. It is tried again")

    def _stop_restoring(self) -> None:
        if self.restoring is not None:
            self.restoring.close()
            self.restoring = None

    def _discard(self, slots: int) -> None:
        self.engine.applied_minibatches.forget(slots)
        self._tidying.remove(slots)

    # --- between requests -----------------------------------------------------------------------------------------------

    def work(self) -> float:
        """Do a little of what there is to do; returns the seconds until it should be called again even if nothing comes in."""
        wait = self.report_in
        if (order := self.to_restore) is not None:
            return min(wait, self._restore(order))
        if self._may_tidy:
            self._tidy()
        if (more := self._tidying.give_back()) is not None:
            wait = min(wait, more)
        if self._slowed:
            self._let_in(self._slowed)
            wait = min(wait, SLOWED_LOOK_SECONDS)
        is_quiet = self._tidying.done and self.copier is None and self.outgoing is None
        self.snapshots.work(may_begin=is_quiet and self.orders.version > 0)
        if self.copier is None and not self.snapshots.active:
            mine = next((order for order in self.orders.moves if order.target == self.node), None)
            if mine is not None:
                self.copier = MigrationTarget(self.engine, mine, self._connect, self._discard, self._clock, self._say)
        if self.copier is not None:
            due = self.copier.work(may_begin=self._tidying.done)
            wait = wait if due is None else min(wait, due)
        return 0.0 if self._may_tidy or self._copies or self.snapshots.busy else wait

    def _tidy(self) -> None:
        until = self.engine.clock() + TIDY_SECONDS
        while not self._tidying.done:
            self._tidying.step(TIDY_ROWS)
            if self.engine.clock() >= until:
                return

    @property
    def _may_tidy(self) -> bool:
        """Whether there is something to tidy up, and rows may move. What was given away goes in one pass, once all of it is another's: else
        that would begin again for the last batch."""
        outgoing = self.outgoing
        may = outgoing is None or (outgoing.may_tidy and outgoing.heard)
        return may and not self._tidying.done and not self.snapshots.active

    @property
    def sockets(self) -> list[Source]:
        """Sockets beside the server's that are readable when ``work`` has something to do."""
        copiers = [self.copier.socket] if self.copier is not None else []
        return [*copiers, *self.snapshots.sockets]

    @property
    def report_in(self) -> float:
        """Seconds until the next report is due."""
        given = self.engine.frozen and (self.outgoing is None or self.outgoing.waits)
        waiting = not self.orders.version or given or (self.copier is not None and self.copier.ready)
        waiting = waiting or self.snapshots.state != self._told_of_snapshot
        pause = IMPATIENT_SECONDS if waiting else REPORT_SECONDS
        if self._unanswered:
            pause = max(pause, OVERDUE_SECONDS)
        return max(0.0, self._reported_at + pause - self._clock())

    def report(self) -> PsReport:
        """Return what to tell the master now."""
        now = self._clock()
        self._reported_at = now
        self._told_of_snapshot = self.snapshots.state
        self._unanswered += 1
        loads = b""
        if now - self._loads_at >= LOADS_SECONDS:
            self._loads_at = now
            rates = self.engine.loads.window(self.engine.groups)
            table = np.concatenate([rates, self.engine.slot_bytes()[None]])
            loads = (table * self.engine.owned_set()).astype(np.float32).tobytes()
        copier = self.copier
        return PsReport(
            self.node,
            self.engine.rows,
            self.engine.bytes,
            self.engine.version,
            version=self.orders.version,
            tidy=self._tidying.done,
            ready=copier.ready if copier is not None else [],
            received={copier.order.move: copier.rows} if copier is not None else {},
            slowed=self.outgoing.slowed if self.outgoing is not None else 0.0,
            loads=loads,
            requests_per_second=self.engine.loads.requests_per_second if loads else 0.0,
            snapshot=self.snapshots.report,
            restored=self.engine.state.restored,
            counters=self._counters(now),
            restoring=self._restore_report(),
            gives_back=self._tidying.gives_back,
        )

    def _restore_report(self) -> RestoreReport | None:
        if (order := self.orders.restore) is None:
            return None
        if self.restoring is not None:
            return self.restoring.progress
        done = self._restored
        return done if done is not None and done.generation == order.generation else None

    def _counters(self, now: float) -> PsCounters | None:
        if now - self._counted_at < COUNT_SECONDS:
            return None
        self._counted_at = now
        meter, engine = self.meter, self.engine
        return PsCounters(
            busy_seconds=meter.busy_seconds,
            queue_seconds=meter.queue_seconds,
            requests=meter.requests,
            row_bytes=engine.embedding_bytes,
            tables=[TableCount(table.name, table.dim, rows) for table, rows in engine.table_rows()],
            transfers=self._transfers.totals(),
        )

    def close(self) -> None:
        self._stop_restoring()
        self.snapshots.close()
        if self.outgoing is not None:
            self.outgoing.close()
        if self.copier is not None:
            self.copier.close()


def number_of(node: str) -> int:
    """Return the number in a node's name: 3 for ``ps-3``."""
    return int(node.rpartition("-")[2])


def _blocks(request: Request, configuration: Configure) -> list[tuple[NDArray[np.uint64], NDArray[np.float32]]]:
    kinds = len(dense_groups(configuration.dense, configuration.optimizer))
    return [(_array(request, 1 + 2 * i, np.uint64), _array(request, 2 + 2 * i, np.float32)) for i in range(kinds)]


def _array(request: Request, frame: int, kind: Any) -> NDArray[Any]:
    return np.frombuffer(request.buffer(frame), kind)
