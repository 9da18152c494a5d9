"""A worker that trains its leases as a fluid runs: so many minibatches a second, reported now and then by the real messages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dlrover_lite.backends.sim.physics.rates import STANDS, NodeRate
from dlrover_lite.protocol.messages import (
    Finished,
    Hello,
    Lease,
    LeaseRequest,
    Topology,
    TopologyRequest,
    Wait,
    WorkReport,
)
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.simulation.fluid_nodes.job_rates import JobRates
from dlrover_lite.simulation.nodes.program import NodeProgram

if TYPE_CHECKING:
    from dlrover_lite.simulation.job import SimulatedJob

__all__ = ["FluidWorker"]

_NEARLY = 1e-6
_AGAIN_SECONDS = 0.5
"""Seconds until the master is asked again that had no map to give, or no work."""


class FluidWorker(NodeProgram):
    """``report_seconds``: it reports that often, with all others of its job, and when a lease is done."""

    def __init__(self, job: SimulatedJob, spec: NodeSpec, rates: JobRates, report_seconds: float) -> None:
        super().__init__(job, spec)
        self._rates, self._report_seconds = rates, report_seconds
        self._lease: Lease | None = None
        self._at = 0.0
        """How far it is within its lease, as a number of minibatches of the epoch."""
        self._reported = 0
        self._rate, self.rate = STANDS, 0.0
        """``rate``: minibatches/s, with all that slows the job."""
        self._factor = 0.0
        self._worked_seconds = self._own_seconds = self._read_seconds = 0.0
        """Seconds at work, the same by its job's own clock, and of reading, since the last report."""
        self._ask_at = self._report_at = math.inf
        self._settled_at, self._own_settled_at = self.clock(), rates.own_time()
        self._trained = 0.0
        """Minibatches that its job hasn't counted yet."""

    # --- its process ------------------------------------------------------------------------------------------------------

    def started(self) -> None:
        self.process.hold(int(self._rates.truth.memory.worker(self._rates.truth.costs.depth)))
        self._rates.joins_or_leaves()
        self.ask(Hello(self.id, "worker"), lambda _: self._ask_map())

    def resized(self) -> None:
        self._rates.changed()

    def ended(self) -> None:
        self._rates.rests(self)
        super().ended()

    def leaves(self) -> None:
        """Give back what is left of its lease, and end."""
        self._settle()
        self._rates.joins_or_leaves()
        if self._lease is not None and not self.is_asking:
            self._report(want=False, give_back=True)
        super().leaves()

    # --- steps ------------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        now = self.clock()
        if self.is_asking:
            return
        if self._lease is None:
            if now >= self._ask_at:
                self._ask_at = math.inf
                self.ask(LeaseRequest(self.id), self._take)
            return
        self._settle()
        if self._is_done:
            self._report(want=True)
        elif now >= self._report_at:
            self._report(want=False)

    def next_at(self) -> float:
        if self._lease is None or self.is_asking:
            return self._ask_at
        if self.rate <= 0:
            return self._report_at
        left = self._lease.stop - self._at
        return self._rates.reaches(self._rates.own_time() + max(_NEARLY, left / self.rate), self._report_at)

    @property
    def _is_done(self) -> bool:
        return self._lease is not None and self._at >= self._lease.stop - _NEARLY

    # --- what it asks -----------------------------------------------------------------------------------------------------

    def _ask_map(self) -> None:
        self.ask(TopologyRequest(self.id), self._take)

    def _take(self, body: Any) -> None:
        match body:
            case Lease():
                self._settle()
                self._lease, self._at, self._reported = body, float(body.start), body.start
                self._report_at = self._next_report()
                self._rates.trains(self)
            case Topology(version=version) if version:
                self._rests(0.0)
            case Topology():
                self._rests(_AGAIN_SECONDS, first_map=True)
            case Wait(seconds=seconds):
                self._rests(max(seconds, _AGAIN_SECONDS))
            case Finished():
                self._rests(math.inf)
                self.process.end(0)
            case _:
                self._report_at = self._next_report()  # a report was taken

    def _rests(self, seconds: float, *, first_map: bool = False) -> None:
        self._lease = None
        self._rates.rests(self)
        if first_map:
            self.world.clock.after(seconds, lambda: self._ask_map() if self.process.running else None)
        else:
            self._ask_at = self.clock() + seconds

    def _next_report(self) -> float:
        return self._rates.next_report(self.clock(), self._report_seconds)

    def _report(self, *, want: bool, give_back: bool = False) -> None:
        """Report what was done since the last time, and ask for another lease if this one is done."""
        lease = self._lease
        assert lease is not None
        done = min(lease.stop, int(self._at + _NEARLY))
        minibatches, plan = done - self._reported, self.job.spec.plan
        samples = min(plan.samples, done * plan.batch_size) - min(plan.samples, self._reported * plan.batch_size)
        computed = max(0.0, self._worked_seconds - self._read_seconds)
        report = WorkReport(
            samples=samples,
            minibatches=minibatches,
            seconds={"read": self._read_seconds, "compute": computed, "pull": 0.0, "push": 0.0, "wait": 0.0},
            cpu_seconds={"compute": self._own_seconds * self._rate.cpu_seconds * self._factor},
        )
        request = LeaseRequest(
            self.id,
            token=lease.token,
            consumed=[(self._reported, done)] if minibatches else [],
            give_back=give_back,
            want=want,
            report=report,
            holding=[lease.token],
        )
        self._reported, self._worked_seconds, self._own_seconds, self._read_seconds = done, 0.0, 0.0, 0.0
        self.ask(request, self._take)

    # --- its rate ---------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Count what it has trained until now."""
        now, own_now = self.clock(), self._rates.own_time()
        seconds, self._settled_at = now - self._settled_at, now
        own, self._own_settled_at = own_now - self._own_settled_at, own_now
        if self._lease is None or seconds <= 0:
            return
        before = self._at
        self._at = min(float(self._lease.stop), self._at + self.rate * own)
        self._worked_seconds += seconds
        self._own_seconds += own
        self._read_seconds += own * self._rate.read_seconds * self._factor
        self._trained += self._at - before

    def take_trained(self) -> float:
        """Return the minibatches that were trained since the last call."""
        self._settle()
        trained, self._trained = self._trained, 0.0
        return trained

    def pace(self, rate: NodeRate | None, factor: float) -> None:
        """Train at that rate, times a factor, from now on."""
        self._settle()
        self._rate, self._factor = rate or STANDS, factor
        self.rate = self._rate.minibatches * factor
        if self.process.running:
            own_time = self._rates.own_time
            self.process.use(self._rate.cpu_seconds * factor, self._rate.throttled_seconds * factor, own_time=own_time)
            self.wait()
