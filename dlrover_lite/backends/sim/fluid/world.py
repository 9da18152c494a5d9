"""Many jobs as fluids on the machines of a cluster: what happens to one between two events needs no look at it.

Without another policy users' plans are kept. A job begins when all of its nodes have places and are there; its nodes are put where most
cores are left, servers first, and jobs that have no room are passed over by later ones. Limits of nodes never add up to more than a
machine has, so jobs of one machine slow each other down by what passes its network card alone. A server that runs out of memory ends its
job, as nobody gives it more. A machine that fails takes its nodes along: without some workers a job goes on more slowly, and for a lost
server it waits until another one is there, and goes back to its newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.backends.sim.clock import EventClock, source_of_chance
from dlrover_lite.backends.sim.fluid.changes import MECHANISMS, ChangeCosts, PlanChanges
from dlrover_lite.backends.sim.fluid.job import STOPPED, FluidJob, FluidNode, JobRequest, JobState
from dlrover_lite.backends.sim.fluid.places import Places
from dlrover_lite.backends.sim.machine_faults import schedule_faults
from dlrover_lite.backends.sim.physics.machines import STEADY, Disturbances, Machine
from dlrover_lite.backends.sim.physics.network_cards import NetworkCards
from dlrover_lite.backends.sim.physics.queues import Node
from dlrover_lite.backends.sim.physics.rates import Rate, Rates
from dlrover_lite.backends.sim.physics.startup import Startup
from dlrover_lite.backends.sim.pools import Pool, Pools
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.plans import Plan

__all__ = ["FluidWorld", "LogEntry"]

_TOGETHER_SECONDS = 5.0
"""Nodes of a job that come within so many seconds of each other count from when the last of them is there: each count of them would have a
rate of its own, which takes long to compute."""


class LogEntry(NamedTuple):
    """Something that happened."""

    at: float
    subject: str
    """Name of a job, or of a machine."""
    what: str


class FluidWorld:
    """Runs jobs to their ends, or to a time. The same seed gives the same log."""

    def __init__(
        self,
        machines: Sequence[Machine],
        requests: Iterable[JobRequest],
        *,
        startup: Startup,
        seed: int = 0,
        disturbances: Disturbances = STEADY,
        rates: Rates | None = None,
        pools: Sequence[Pool] = (),
        costs: ChangeCosts = MECHANISMS,
        first_plan: Callable[[FluidJob], Plan | None] | None = None,
    ) -> None:
        """``rates`` that were looked up before are taken over. ``first_plan``: says what a job is to begin with that waits, or None as
        long as it is to wait; it is asked whenever there may be room."""
        self.clock = EventClock()
        self.jobs = [FluidJob.of(request) for request in requests]
        self.places = Places([*machines, *(pool.machine for pool in pools for _ in range(pool.most))])
        self.log: list[LogEntry] = []
        self._usual = list(self.places.machines)
        self._startup, self._seed = startup, seed
        self._rates = Rates(seed) if rates is None else rates
        self._cards = NetworkCards[FluidJob]()
        self._first_plan = first_plan
        self._waiting: list[FluidJob] = []
        self._with_image: set[int] = set()
        pool_of = dict(enumerate((pool for pool in pools for _ in range(pool.most)), len(machines)))
        self._pools = Pools(self.places, self.clock, pool_of, self._pool_says)
        self.places.emptied = self._pools.emptied
        self.changes = PlanChanges(
            self.places,
            self.clock,
            costs,
            start=self._start,
            changed=self._changed,
            freed=self._place_waiting,
            say=lambda job, what: self._say(job.request.name, what),
        )
        for job in self.jobs:
            self.clock.at(job.request.arrives_at, partial(self._arrives, job))
        for host in range(len(self.places.machines)):
            schedule_faults(
                self.clock,
                seed,
                host,
                disturbances,
                set_works=partial(self._machine_works, host),
                set_speed=partial(self.set_speed, host),
            )

    @property
    def machines(self) -> list[Machine]:
        return self.places.machines

    @property
    def left_cores(self) -> NDArray[np.float64]:
        return self.places.left_cores

    @property
    def left_bytes(self) -> NDArray[np.int64]:
        return self.places.left_bytes

    @property
    def rates(self) -> int:
        """Number of rates that were computed."""
        return len(self._rates)

    @property
    def live(self) -> list[FluidJob]:
        """Jobs that have arrived and not ended."""
        return [job for job in self.jobs if job.state != "arriving" and not job.ended]

    def run_until(self, moment: float) -> None:
        """Let time pass, and count what has been done by then."""
        self.clock.run_until(moment)
        for job in self.jobs:
            if not job.ended:
                job.passes(moment)

    # --- places ----------------------------------------------------------------------------------------------------------

    def _arrives(self, job: FluidJob) -> None:
        job.since = self.clock.now
        self._change(job, "waiting")
        self._waiting.append(job)
        self._place_waiting()

    def _place_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._waiting += [job for job in waiting if not self._place(job)]
        self._pools.wanted(Resources(sum(job.unplaced_cores for job in self._waiting), 0))

    def _pool_says(self, host: int, what: str) -> None:
        self._say(f"machine {host}", what)
        if self.places.there[host]:
            self._place_waiting()

    def _place(self, job: FluidJob) -> bool:
        """Take room for all nodes of a job that have none, and start them; False, and nothing is taken, if one finds none."""
        if self._first_plan is not None and job.started_at is None:
            plan = self._first_plan(job)
            if plan is None:
                return False
            if plan != job.plan:
                job.adopt(plan)
        if not self.places.may_hold(job.unplaced_cores):
            return False
        job.passes(self.clock.now)
        placed: list[FluidNode] = []
        for node in job.nodes:
            if node.host < 0:
                if (host := self.places.find(node.resources)) is None:
                    for one in placed:
                        self.places.withdraw(one)
                    return False
                self.places.take(node, host)
                placed.append(node)
        if job.started_at is None:
            job.started_at = self.clock.now
        for node in placed:
            self._start(job, node)
        self._changed(job)
        return True

    def _start(self, job: FluidJob, node: FluidNode) -> None:
        node.launches += 1
        chance = source_of_chance(self._seed, f"start {node.launches} of node {node.number} of {job.request.name}")
        with_rows = node.role == "server" and node.owns
        restored = job.request.memory.row_bytes(job.samples) / len(job.owners) if with_rows else 0.0
        phases = self._startup.draw(chance, pulled=node.host in self._with_image, restored_bytes=restored)
        self._with_image.add(node.host)
        node.start = self.clock.after(phases.seconds, partial(self._is_there, job, node))

    def _is_there(self, job: FluidJob, node: FluidNode) -> None:
        job.passes(self.clock.now)
        node.up = True
        if job.training_from is not None or all(one.up for one in job.nodes):
            soon = self.clock.now + _TOGETHER_SECONDS
            if not any(one.start is not None and one.start.due and one.start.at <= soon for one in job.nodes):
                self._changed(job)
        self.changes.is_there(job)

    # --- what jobs do ----------------------------------------------------------------------------------------------------

    def _changed(self, job: FluidJob) -> None:
        """Go on at the rate that a job's nodes now have."""
        job.rate = self._rate(job)
        if job.rate.samples:
            self._change(job, "training")
            if job.training_from is None:
                job.training_from = self.clock.now
        else:
            self._change(job, "starting" if all(node.host >= 0 for node in job.nodes) else "waiting")
        if job.next is not None:
            job.next.cancel()
        job.next = None
        if job.rate.samples:
            full = job.samples_until_full
            state: JobState = "succeeded" if full >= job.request.samples else "out of memory"
            seconds = (min(full, job.request.samples) - job.samples) / job.rate.samples
            job.next = self.clock.after(max(0.0, seconds), partial(self._ends, job, state))

    def _rate(self, job: FluidJob) -> Rate:
        """Return a job's rate; jobs that have another one by what it wants of network cards go on at that."""
        up = [node for node in job.nodes if node.up]
        servers = [Node(node.resources.cores, node.host) for node in up if node.role == "server" and node.owns]
        workers = [Node(node.resources.cores, node.host) for node in up if node.role == "worker"]
        began = job.training_from is not None or len(up) == len(job.nodes)
        if not began or job.ended or len(servers) < len(job.owners) or self.clock.now < job.held_until:
            workers = []
        found, others = self._rates.with_cards(self._cards, job, job.request.costs, workers, servers, self.machines)
        for other in others:
            other.passes(self.clock.now)
            self._changed(other)
        if not workers:
            return STOPPED
        rate = found.total(job.request.costs.batch_size)
        return rate if job.kept_rate == 1.0 else Rate(*(part * job.kept_rate for part in rate))

    def _ends(self, job: FluidJob, state: JobState) -> None:
        job.passes(self.clock.now)
        job.ended_at = self.clock.now
        self._change(job, state)
        job.rate = self._rate(job)
        for node in job.nodes:
            if node.host >= 0:
                self.places.give_back(node)
        self.changes.lost(job)
        if job in self._waiting:
            self._waiting.remove(job)
        self._place_waiting()

    def _change(self, job: FluidJob, state: JobState) -> None:
        if state != job.state:
            job.state = state
            self._say(job.request.name, state)

    def _say(self, subject: str, what: str) -> None:
        self.log.append(LogEntry(self.clock.now, subject, what))

    # --- what goes wrong -------------------------------------------------------------------------------------------------

    def _on(self, host: int) -> list[FluidJob]:
        return [job for job in self.jobs if not job.ended and any(node.host == host for node in job.nodes)]

    def _machine_works(self, host: int, works: bool) -> None:
        self.set_works(host, works=works)

    def set_works(self, host: int, *, works: bool) -> None:
        """Have a machine fail, with all that is on it, or work again."""
        self.places.set_works(host, works)
        if self.places.there[host]:
            self._say(f"machine {host}", "works again" if works else "fails")
        hit = [] if works else self._on(host)
        for job in hit:
            job.passes(self.clock.now)
            lost = [node for node in job.nodes if node.host == host]
            for node in lost:
                self.places.give_back(node)
            if any(node.role == "server" and node.owns for node in lost):
                job.samples = job.saved_samples
            self.changes.lost(job)
            self._changed(job)
            if not job.ended and job not in self._waiting:
                self._waiting.append(job)
        self._place_waiting()

    def set_speed(self, host: int, factor: float) -> None:
        """Have a machine work at its usual speed times a factor."""
        usual = self._usual[host]
        self.machines[host] = Machine(usual.cores, usual.speed * factor, usual.bytes_per_second, usual.memory)
        self._say(f"machine {host}", "has its usual speed" if factor == 1.0 else "is slow")
        for job in self._on(host):
            job.passes(self.clock.now)
            self._changed(job)
