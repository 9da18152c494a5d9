"""How fast a job's nodes train where they run: steady rates from one event of the job to the next, and no event for a minibatch.

What takes time beside training (slots that move, checkpoints that are written) slows it by what that was measured to take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlrover_lite.backends.sim.clock import Event
from dlrover_lite.backends.sim.physics.memory import MemoryCosts
from dlrover_lite.backends.sim.physics.noise import Noise, Wander
from dlrover_lite.backends.sim.physics.queues import Costs, Node
from dlrover_lite.backends.sim.physics.rates import STANDS, Rates
from dlrover_lite.backends.sim.physics.shared_cores import share_cores
from dlrover_lite.core.slot_sets import SLOTS

if TYPE_CHECKING:
    from dlrover_lite.master.slots.slot_state import SlotState
    from dlrover_lite.simulation.fluid_nodes.fluid_server import FluidServer
    from dlrover_lite.simulation.fluid_nodes.fluid_worker import FluidWorker
    from dlrover_lite.simulation.job import SimulatedJob

__all__ = ["JobRates", "JobTruth", "Slowing"]

_NEARLY = 1e-6
_AHEAD = 0.01
"""Part of the samples so far over which it is looked how fast rows come: ever fewer of them are new."""
_SETTLING_SECONDS = 1.5
"""Seconds from a change until the rates that follow from it: nodes come and go in groups, slots move in batches, and queues fill meanwhile.
Less than a profile waits after a change before it measures; each time the queues of all nodes are run."""
_NODES_A_SECOND = 100.0
"""Nodes of a job for which there is another second: more nodes take longer to come, and their queues to run."""
_GRAIN_SECONDS = 0.2
"""Seconds from one sum of what all workers have trained to the next, unless rates change: each of hundreds of nodes asks for it."""


@dataclass(frozen=True)
class Slowing:
    """Share of the throughput that is kept while something goes on beside training."""

    move: float = 0.72
    """While slots move (docs/figures.md, ``size.move_kept``)."""
    checkpoint: float = 0.9
    """While a checkpoint is written (the same, ``size.kept``)."""
    change_seconds: float = 0.0
    """Seconds for which all nodes stand still when one joins or leaves a job that trains, as if all of them started again from a
    checkpoint."""
    is_even: bool = False
    """Each worker has the same number of minibatches, fixed beforehand, so that all of them are as slow as the slowest."""


@dataclass(frozen=True)
class JobTruth:
    """What a job is, which nobody who decides is told."""

    costs: Costs
    memory: MemoryCosts
    noise: Noise = field(default_factory=Noise)
    slowing: Slowing = field(default_factory=Slowing)


class JobRates:
    """The rates of one job, and what has been trained at them."""

    def __init__(self, job: SimulatedJob, truth: JobTruth, rates: Rates) -> None:
        self.job, self.truth = job, truth
        self.samples = 0.0
        """Number of samples that were trained on, as the servers' rows have them."""
        self._rates = rates
        self._clock = job.world.clock
        self._wander = Wander(truth.noise, job.world.chance(f"noise of {job.id}"))
        self._workers: dict[FluidWorker, None] = {}
        self._servers: dict[FluidServer, None] = {}
        self._settled_at, self._own_settled_at = self._clock.now, self.own_time()
        self._due: Event | None = None
        self._held_until = 0.0
        self._full_at: dict[tuple[float, float], float] = {}
        """Samples after which servers with some limit and share are full."""
        self._generation: object = None
        self._rate = 0.0
        """Samples/s of all workers together."""
        self._growth = (-1.0, 0.0), 0.0
        """Samples and rate, and the bytes by which all rows grow in a second at that."""
        job.on_slots = self._ordered

    # --- who takes part ---------------------------------------------------------------------------------------------------

    def trains(self, worker: FluidWorker) -> None:
        """Take note that a worker has work."""
        if worker not in self._workers:
            self.settle()
            self._workers[worker] = None
            self.changed()

    def rests(self, worker: FluidWorker) -> None:
        """Take note that a worker has none, or is no more."""
        if worker in self._workers:
            self.settle()
            del self._workers[worker]
            self._rate = max(0.0, self._rate - worker.rate * self.truth.costs.batch_size)
            worker.pace(None, 0.0)
            self.changed()

    def serves(self, server: FluidServer) -> None:
        self._servers[server] = None
        self.changed()

    def leaves(self, server: FluidServer) -> None:
        if server in self._servers:
            self.settle()
            del self._servers[server]
            self._then(self._clock.now, self._pace)  # nobody trains without it

    def _ordered(self, before: SlotState, now: SlotState) -> None:
        """Have the servers ask for their orders for which there are other ones: those of moves that have begun, gone on or ended."""
        known = {server.id: server for server in self._servers}
        if before.version and now.ps[: len(before.ps)] == before.ps:
            kept = {id(move) for move in before.moves} & {id(move) for move in now.moves}
            moves = [move for move in [*before.moves, *now.moves] if id(move) not in kept]
            names = {node: None for move in moves for node in (move.source, move.target)}
        else:
            names = dict.fromkeys(known)
        for name in names:
            if name in known:
                known[name].has_orders(now.version)

    def changed(self) -> None:
        """Go on at another rate soon: something has changed of what it follows from. What changes within a moment counts together."""
        nodes = len(self._workers) + len(self._servers)
        self._then(self._clock.now + _SETTLING_SECONDS + nodes / _NODES_A_SECOND, self._pace)

    def joins_or_leaves(self) -> None:
        """Take note that a node joins or leaves by a change of the plan."""
        if self.truth.slowing.change_seconds and self.samples:
            self._held_until = self._clock.now + self.truth.slowing.change_seconds
            self.changed()

    # --- time -------------------------------------------------------------------------------------------------------------

    def own_time(self) -> float:
        """Return the time on the job's own clock, which goes faster and slower with the noise: rates are by that one."""
        return self._wander.own_time(self._clock.now)

    def reaches(self, own: float, until: float) -> float:
        """Return when the job's own clock shows ``own``, or ``until`` if that is sooner."""
        return self._wander.reaches(own, until)

    def settle(self, *, exactly: bool = True) -> None:
        """Count what was trained until now, or, if it needn't be exact, a moment ago."""
        seconds = self._clock.now - self._settled_at
        if seconds < (0.0 if exactly else _GRAIN_SECONDS) and self.job.master.run is self._generation:
            return
        own_now = self.own_time()
        own, self._settled_at, self._own_settled_at = own_now - self._own_settled_at, self._clock.now, own_now
        if (run := self.job.master.run) is not self._generation:  # another generation begins at what its ledger has
            self._generation = run
            if run is not None:
                self.samples = float(run.shards.consumed_samples)
        if seconds <= 0:
            return
        minibatches = sum(worker.take_trained() for worker in self._workers)
        self.samples += minibatches * self.truth.costs.batch_size
        self.job.minibatches = int(self.samples / self.truth.costs.batch_size)
        for server in self._servers:
            server.passes(own, minibatches)

    def next_report(self, now: float, seconds: float) -> float:
        """Return when nodes that report every so many seconds do so next: together, and when an interval of the master's ends, which is
        closed once all have told something later. Real nodes report every second or so, and have it closed as soon."""
        run = self.job.master.run
        ends = None if run is None else run.profiling.profiler.ends
        phase = 0.0 if ends is None else ends
        return phase + _next_multiple(now - phase, seconds)

    def _then(self, at: float, act: Callable[[], None]) -> None:
        if self._due is not None:
            if self._due.due and self._due.at <= at:
                return
            self._due.cancel()
        self._due = self._clock.at(at, act)

    def _pace(self) -> None:
        """Set the rates of all nodes."""
        self.settle()
        workers, servers = list(self._workers), list(self._servers)
        asked = [server for server in servers if server.share]
        of_workers, of_servers = [self._node(one) for one in workers], [self._node(one) for one in asked]
        machines = list(self.job.world.machines.machines.values())
        if self.job.world.shared_cores:
            of_workers, of_servers, machines = share_cores(of_workers, of_servers, machines)
        found, others = self._rates.with_cards(
            self.job.world.machines.cards,
            self.changed,
            self.truth.costs,
            of_workers,
            of_servers,
            machines,
            [server.share for server in asked],
        )
        for changed in others:
            changed()
        factor = self._kept(servers)
        slowest = min((rate.minibatches for rate in found.workers), default=0.0)
        for worker, rate in zip(workers, found.workers, strict=True):
            waits = slowest / rate.minibatches if self.truth.slowing.is_even and rate.minibatches else 1.0
            worker.pace(rate, factor * waits)
        rates = dict(zip(asked, found.servers, strict=True))
        for server in servers:
            server.pace(rates.get(server, STANDS), factor)
        self._rate = sum(worker.rate for worker in workers) * self.truth.costs.batch_size
        if self._clock.now < self._held_until:
            self._due = None
            self._then(self._held_until, self._pace)

    def _node(self, program: FluidWorker | FluidServer) -> Node:
        process = program.process
        return Node(process.limits.cores, self.job.world.host_numbers[process.host])

    def _kept(self, servers: list[FluidServer]) -> float:
        """Return what is kept of the rate, beside what goes on; 0 while some slots have no server, and while all stand still."""
        if sum(server.owned.bit_count() for server in servers) < SLOTS or self._clock.now < self._held_until:
            return 0.0
        slowing = self.truth.slowing
        moves = any(server.incoming is not None or server.outgoing is not None for server in servers)
        writes = any(server.snapshots.active for server in servers)
        return (slowing.move if moves else 1.0) * (slowing.checkpoint if writes else 1.0)

    # --- memory -----------------------------------------------------------------------------------------------------------

    def seconds_until_grown(self, bytes: float, share: float) -> float:
        """Return the seconds, at least, until a server with this share of the rows holds so many bytes more; infinite if it stands."""
        if self._growth[0] != (now := (self.samples, self._rate)):
            ahead, memory = max(1e3, _AHEAD * self.samples), self.truth.memory
            more = memory.row_bytes(self.samples + ahead) - memory.row_bytes(self.samples)
            self._growth = now, more * self._rate / ahead
        more = share * self._growth[1]
        return bytes / more if more > 0 else math.inf

    def seconds_until_full(self, limit: float, share: float) -> float:
        """Return the seconds until a server with this share of the rows has filled its limit at the present rate; infinite if never."""
        if self._rate <= 0:
            return math.inf
        if (limit, share) not in self._full_at:
            self._full_at[limit, share] = self.truth.memory.samples_within(limit, share)
        return max(0.0, (self._full_at[limit, share] - self.samples) / self._rate)


def _next_multiple(now: float, seconds: float) -> float:
    """Return the next time that is a whole multiple of so many seconds: nodes that report then report together."""
    return (math.floor(now / seconds + _NEARLY) + 1) * seconds
