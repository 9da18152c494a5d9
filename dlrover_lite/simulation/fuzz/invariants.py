"""What must hold after every event of a simulated world, whatever happens to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dlrover_lite.core.units import Resources
from dlrover_lite.master.generation_run import GenerationRun
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.nodes.relaunch import POLICIES, recent
from dlrover_lite.master.slots.slot_state import SlotState
from dlrover_lite.protocol.hosts import sum_of
from dlrover_lite.simulation.actors import Actor, MasterActor
from dlrover_lite.simulation.job import SimulatedJob
from dlrover_lite.simulation.nodes.server import Server
from dlrover_lite.simulation.world import World

__all__ = ["Invariants"]

_ROUNDING = 1e-6
_LOOKS_PER_VALIDATION = 50
"""Steps of a master from one look at its whole ledger to the next."""
_ORPHAN_SECONDS = 5.0
"""Seconds of a master's life within which it must know each node that runs."""
_LEFT_SECONDS = 30.0
"""Seconds for which a node may run on that has ended for its master."""
_UNHEARD_SECONDS = 20.0
"""Seconds within which a worker that goes on hears of a lease, or loses it."""
_LOOK_SECONDS = 1.0
"""Seconds of the world's clock between two looks at what takes time to come right."""


class _Known:
    """What was seen of a job."""

    def __init__(self) -> None:
        self.fleet: Fleet | None = None
        self.slots: SlotState | None = None
        self.run: GenerationRun | None = None
        self.generation = -1
        self.consumed = 0
        self.looks = 0
        self.look_at = 0.0
        self.unknown_since: dict[str, float] = {}
        self.unheard_since: dict[int, float] = {}
        """Leases that their workers don't know of."""


class Invariants:
    """Looks at a world after each step that somebody has taken; what mustn't be is among the world's ``problems``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[str, _Known] = {}
        self._owner_changes = 0
        world.watchers.append(self.look)

    def look(self, actor: Actor) -> None:
        """Look at what a step may have changed."""
        if isinstance(actor, MasterActor):
            self._look_at_master(actor)
        elif isinstance(actor, Server) and self._world.owner_changes != self._owner_changes:
            self._owner_changes = self._world.owner_changes
            self._look_at_owners(actor.job)

    def _broken(self, what: str) -> None:
        self._world.problems.append(what)

    # --- of a master ------------------------------------------------------------------------------------------------------

    def _look_at_master(self, actor: MasterActor) -> None:
        run, job = actor.run, actor.job
        if run is None or not actor.lives:  # what one that was killed hadn't made durable is nobody's
            return
        known = self._known.setdefault(job.id, _Known())
        if actor.is_stopped:
            known.unknown_since, known.unheard_since = {}, {}
            return
        if run.fleet is not known.fleet:
            known.fleet = run.fleet
            for problem in _wrong_with_fleet(run.fleet, self._world.clock.now):
                self._broken(f"{job.id}: {problem}")
        if run.servers.state is not known.slots:
            known.slots = run.servers.state
            try:
                run.servers.state.validate()
            except ValueError as error:
                self._broken(f"{job.id}: the slot map contradicts itself: {error}")
        self._look_at_ledger(job, run, known)
        self._look_at_machines()
        if self._world.clock.now >= known.look_at:
            known.look_at = self._world.clock.now + _LOOK_SECONDS
            self._look_at_nodes(job, run, known)
            self._look_at_leases(job, run, known)

    def _look_at_ledger(self, job: SimulatedJob, run: GenerationRun, known: _Known) -> None:
        """Check that nothing that was durably consumed is forgotten, and that the ledger has each minibatch once."""
        consumed, generation = run.shards.consumed_samples, run.facts.generation.number
        if generation == known.generation and consumed < known.consumed:
            self._broken(f"{job.id}: {known.consumed:,} samples were consumed, and now {consumed:,} are")
        known.generation = generation
        if not (job.is_disk_full or run.disk.waits or run.disk.given_up):  # else it may not be durable
            known.consumed = consumed
        known.looks += 1
        if known.run is not run or known.looks % _LOOKS_PER_VALIDATION == 0:
            known.run = run
            try:
                run.shards.ledger.validate()
            except ValueError as error:
                self._broken(f"{job.id}: the ledger contradicts itself: {error}")

    def _look_at_leases(self, job: SimulatedJob, run: GenerationRun, known: _Known) -> None:
        """Check that whoever has a lease knows of it: nobody else gets what is leased. A master whose machine sleeps tells nobody."""
        now, unheard = job.master_clock(), dict[int, float]()
        for worker in job.workers():
            known_there = worker.tokens
            for token in run.shards.ledger.tokens(worker.id):
                if token not in known_there and run.outcome is None:
                    unheard[token] = since = known.unheard_since.get(token, now)
                    if now - since > _UNHEARD_SECONDS:
                        self._broken(f"{job.id}: {worker.id} has never heard of its lease {token}")
        known.unheard_since = unheard

    def _look_at_nodes(self, job: SimulatedJob, run: GenerationRun, known: _Known) -> None:
        """Check that each node that there is has a master that knows it, and none has come back more often than it may."""
        now, unknown = self._world.clock.now, dict[str, float]()
        ends: Counter[tuple[str, str]] = Counter()
        for name, node in job.backend.nodes.by_id.items():
            fleets = run.fleet.by_id.get(name)
            if node.phase == "ended":
                is_seen = fleets is not None and fleets.state == "ended"
                if is_seen and node.observed.reason not in (None, "Succeeded") and not node.asked_to_end:
                    ends[node.spec.role, node.observed.reason] += 1
                continue
            if fleets is None or fleets.state == "ended":
                unknown[name] = since = known.unknown_since.get(name, now)
                most = _ORPHAN_SECONDS if fleets is None else _LEFT_SECONDS
                if now - since > most:
                    self._broken(f"{job.id}: {name} runs, and its master doesn't know it")
        known.unknown_since = unknown
        for (role, reason), count in ends.items():
            if count > POLICIES[reason].budget + 1 and not run.fleet.done:  # type: ignore[index]
                self._broken(f"{job.id}: {count} nodes of role {role} have ended as {reason}, and the job goes on")

    # --- of all -----------------------------------------------------------------------------------------------------------

    def _look_at_machines(self) -> None:
        cluster = self._world.machines
        for host, machine in cluster.machines.items():
            taken = sum_of(process.taken for process in cluster.on(host))
            if taken.cores > machine.cores + _ROUNDING or taken.memory > machine.memory:
                self._broken(f"{host} has {machine.cores:g} cores and {machine.memory:,} bytes, and {taken} are taken")

    def _look_at_owners(self, job: SimulatedJob) -> None:
        """Check that no two servers would apply a push for the same slot."""
        taken, by = 0, list[str]()
        for server in job.servers():
            if not server.orders.version or server.restore.is_due:
                continue
            mine = server.owned & ~server.frozen
            if mine & taken:
                self._broken(f"{job.id}: {server.id} and one of {', '.join(by)} own the same slots")
            taken |= mine
            by.append(server.id)


def _wrong_with_fleet(fleet: Fleet, now: float) -> Iterator[str]:
    """Yield what is wrong with a plan, and with the nodes that follow it."""
    for role, planned in (("ps", fleet.plan.ps), ("worker", fleet.plan.worker)):
        if planned.count < 1 or not _is_something(planned.each):
            yield f"the plan has {planned.count} nodes of role {role} with {planned.each}"
    for node in fleet.running:
        if not _is_something(node.resources):
            yield f"{node.id} has {node.resources}"
    for role, by_reason in fleet.returns.items():
        for reason, returns in by_reason.items():
            if recent(returns, now) > POLICIES[reason].budget:  # type: ignore[index]
                yield f"{role} has come back {len(returns)} times after {reason}, more often than it may"


def _is_something(resources: Resources) -> bool:
    return resources.cores > 0 and resources.memory > 0
