"""A parameter server of a job that trains as a fluid: orders, moves and checkpoints are as in ``nodes.server``, its load is a rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.backends.sim.physics.rates import STANDS, NodeRate
from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.protocol.messages import PsCounters, PsOrders, PsReport
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.simulation.fluid_nodes.job_rates import JobRates
from dlrover_lite.simulation.nodes.server import Server

if TYPE_CHECKING:
    from dlrover_lite.simulation.job import SimulatedJob

__all__ = ["FluidServer"]

_LEVEL_STEP = 0.02
"""Share of its limit by which its rows grow until it tells: the master tells the brain of no less."""
_LOOK_SECONDS = 1.0
"""Seconds, at least, between two looks at whether its rows have filled its limit."""


class FluidServer(Server):
    """``report_seconds``: it reports that often, with all others of its job, while nothing goes on with its slots or checkpoints."""

    def __init__(self, job: SimulatedJob, spec: NodeSpec, rates: JobRates, report_seconds: float) -> None:
        super().__init__(job, spec)
        self._rates, self._report_seconds = rates, report_seconds
        self._rate, self._factor = STANDS, 0.0
        self._waited_seconds = 0.0
        self._done = 0.0
        """Minibatches since the last whole one that was counted."""
        self._look_at = math.inf
        self._level_seconds = 0.0
        """Seconds from the last report until its rows have grown so much that it tells."""
        self._before = (0, False, False)
        self._told: tuple[int, bool, int] | None = None
        """Version of the orders that it follows, whether it is tidy, and which checkpoint it has restored, as it has told them last."""
        self._orders_to_hear = 0
        """Version of the newest orders that are other ones for it."""

    @property
    def share(self) -> float:
        """Share of the work on rows that it has."""
        return self.owned.bit_count() / SLOTS

    def started(self) -> None:
        super().started()
        self._rates.joins_or_leaves()
        self._rates.serves(self)

    def resized(self) -> None:
        self._rates.changed()
        self.called()

    def ended(self) -> None:
        self._rates.leaves(self)
        super().ended()

    def work(self) -> None:
        self._rates.settle(exactly=False)
        super().work()
        now = (self.owned, self.incoming is not None or self.outgoing is not None, self.snapshots.active)
        if now != self._before:
            self._before = now
            self._rates.changed()
        if self.clock() >= self._look_at:
            self.hold()
        self._look_at = self.clock() + max(_LOOK_SECONDS, self._until_full)

    def next_at(self) -> float:
        return min(super().next_at(), self._look_at)

    @property
    def _until_full(self) -> float:
        """Seconds until its rows will have filled its limit."""
        if not self.process.running or not self.share:
            return math.inf
        return self._rates.seconds_until_full(self.process.limits.memory, self.share)

    @property
    def _report_at(self) -> float:
        if self._has_news or self.orders.version < self._orders_to_hear or self._unanswered:
            return super()._report_at
        usual = self._rates.next_report(self._reported_at, self._report_seconds)
        return min(usual, self._reported_at + self._level_seconds)

    @property
    def _has_news(self) -> bool:
        """There is something that the master waits for, and hasn't been told."""
        ready = self.incoming is not None and bool(self.incoming.ready)
        return ready or self.snapshots.has_news or (self.is_tidy and self._told != self._to_tell)

    @property
    def _to_tell(self) -> tuple[int, bool, int]:
        return self.orders.version, self.is_tidy, self.memory.restored

    def has_orders(self, version: int) -> None:
        """Take note that the master has other orders for it, as of this version: a real server asks for them four times a second."""
        self._orders_to_hear = version
        self.called()

    def _report(self, now: float) -> PsReport:
        self._told = self._to_tell
        report = super()._report(now)
        grown = self._rates.seconds_until_grown(_LEVEL_STEP * self.process.limits.memory, self.share)
        self._level_seconds = max(_LOOK_SECONDS, grown)
        if (counters := report.counters) is None:
            return report
        counted: PsCounters = msgspec.structs.replace(counters, queue_seconds=self._waited_seconds)
        return msgspec.structs.replace(report, counters=counted)

    def note_consumed(self, orders: PsOrders) -> None:
        """Note nothing: nobody pushes single minibatches."""

    # --- its rate ---------------------------------------------------------------------------------------------------------

    def passes(self, seconds: float, minibatches: float) -> None:
        """Let time pass, in seconds of its job's own, in which so many minibatches came by."""
        self._busy_seconds += seconds * self._rate.busy_seconds * self._factor
        self._waited_seconds += seconds * self._rate.waited_seconds * self._factor
        self._done += minibatches
        whole = int(self._done)
        self._done -= whole
        self.memory.pushes += whole

    def pace(self, rate: NodeRate, factor: float) -> None:
        """Serve at that rate, times a factor, from now on."""
        self._rate, self._factor = rate, factor
        if self.process.running:
            own_time = self._rates.own_time
            self.process.use(rate.cpu_seconds * factor, rate.throttled_seconds * factor, own_time=own_time)
            self._look_at = self.clock() + max(_LOOK_SECONDS, self._until_full)
            self.wait()
