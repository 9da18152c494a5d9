"""How a fluid job comes to another plan while it trains: workers come and go beside training, servers when rows have moved, sizes in place;
or all nodes end, and the job starts again from a checkpoint, as it does without such mechanisms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dlrover_lite.backends.sim.clock import Event, EventClock
from dlrover_lite.backends.sim.fluid.job import FluidJob, FluidNode
from dlrover_lite.backends.sim.fluid.places import Places
from dlrover_lite.core.units import GIB
from dlrover_lite.protocol.plans import Plan, RolePlan

__all__ = ["MECHANISMS", "ChangeCosts", "PlanChanges"]


@dataclass(frozen=True)
class ChangeCosts:
    """What a change of the plan of a job that trains costs it, beside the start of new nodes, which it needn't wait for."""

    restarts: bool = False
    """All nodes end, and others start from a checkpoint that is taken before."""
    stop_seconds: float = 0.0
    """Seconds for which training stands still at each change, the taking of that checkpoint included."""
    moved_bytes_per_second: float = 0.065 * GIB
    """Bytes/s of rows that a server gives to another, or gets, while training goes on: docs/figures.md, "On paper" (0.062 to 0.069 GiB/s at
    8 GiB)."""
    kept_rate: float = 0.72
    """Share of the samples/s that is left meanwhile (docs/figures.md, ``size.move_kept``)."""


MECHANISMS = ChangeCosts()
"""Those of this project: workers come and go without a pause, rows move beside training, and limits change in place within a tenth of a
second (``limits.resize_ms``, ``k8s.resize_s``)."""


class _Move(NamedTuple):
    """Rows on their way between servers."""

    coming: list[FluidNode]
    """Servers that are to get rows."""
    leaving: list[FluidNode]
    """Servers that are to have none."""
    plan: Plan
    """Plan as it is once they have moved."""


class PlanChanges:
    """Carries out one change of each job at a time. ``start`` has a node of a job start that has a place, ``changed`` has a job go on as
    its nodes now allow, ``freed`` is told that there is room, ``say`` that something has happened to a job."""

    def __init__(
        self,
        places: Places,
        clock: EventClock,
        costs: ChangeCosts,
        *,
        start: Callable[[FluidJob, FluidNode], None],
        changed: Callable[[FluidJob], None],
        freed: Callable[[], None],
        say: Callable[[FluidJob, str], None],
    ) -> None:
        self.costs = costs
        self._places, self._clock = places, clock
        self._start, self._changed, self._freed, self._say = start, changed, freed, say
        self._moves: dict[FluidJob, _Move] = {}
        self._events: dict[FluidJob, Event] = {}

    def change(self, job: FluidJob, plan: Plan) -> bool:
        """Begin to give a job another plan. False, and nothing changes: it doesn't train, or another change is under way, or there is no
        room at all for what it is to have. Of nodes that find no room the plan is without."""
        if job.state != "training" or job.changing or plan == job.plan:
            return False
        job.passes(self._clock.now)
        if self.costs.restarts:
            return self._restart(job, plan)
        self._say(job, f"changes to {plan.describe()}")
        self._workers(job, plan.worker)
        self._servers(job, plan.ps)
        self._hold(job)
        self._changed(job)
        self._freed()
        return True

    def lost(self, job: FluidJob) -> None:
        """Give up what is under way of a job that has lost nodes, whose places are given back already: rows stay with the servers that had
        them, and a job that was to start again does so at once."""
        event, move = self._events.pop(job, None), self._moves.pop(job, None)
        if event is not None:
            event.cancel()
        if move is not None:
            for node in move.coming:
                self._remove(job, node)
        elif event is not None:
            for node in job.nodes:
                if node.host >= 0:
                    self._start(job, node)
        job.changing, job.kept_rate = False, 1.0

    def is_there(self, job: FluidJob) -> None:
        """Take note that a node of a job has come up: rows move once all are there that are to get some."""
        move = self._moves.get(job)
        if move is not None and job not in self._events and all(node.up for node in move.coming):
            job.passes(self._clock.now)
            self._begin_move(job, move)

    # --- beside training -------------------------------------------------------------------------------------------------

    def _workers(self, job: FluidJob, wanted: RolePlan) -> None:
        present = job.of_role("worker")
        first_to_go = sorted(present, key=lambda node: (node.up, node.host >= 0, -node.number))
        for node in first_to_go[: max(0, len(present) - wanted.count)]:
            self._remove(job, node)
        present = job.of_role("worker")
        too_large = [node for node in present if not self._resize(node, wanted)]
        for node in too_large if len(too_large) < len(present) else too_large[1:]:
            self._remove(job, node)
        added = job.add("worker", wanted.each, wanted.count - len(job.of_role("worker")))
        if (placed := self._place(job, added)) < len(added):
            self._say(job, f"has no room for {len(added) - placed} of its workers")
        workers = job.of_role("worker")
        job.plan = Plan(ps=job.plan.ps, worker=RolePlan(len(workers), workers[-1].resources))

    def _servers(self, job: FluidJob, wanted: RolePlan) -> None:
        owners = job.owners
        if wanted.count == len(owners):
            self._sized(job, wanted)
            return
        if wanted.count > len(owners):
            coming = job.add("server", wanted.each, wanted.count - len(owners), owns=False)
            if self._place(job, coming) < len(coming):
                for node in coming:
                    self._remove(job, node)
                self._say(job, "has no room for more servers")
                return
            move = _Move(coming, [], Plan(ps=wanted, worker=job.plan.worker))
        else:
            if not self._sized(job, wanted):
                return
            move = _Move([], owners[wanted.count :], Plan(ps=wanted, worker=job.plan.worker))
        self._moves[job] = move
        job.changing = True
        if not move.coming:
            self._begin_move(job, move)

    def _sized(self, job: FluidJob, wanted: RolePlan) -> bool:
        """Resize servers in place; where one of them has no room for that, all stay as they are, and it is False."""
        owners = job.owners
        before = [node.resources for node in owners]
        if not all(self._resize(node, wanted) for node in owners):
            for node, each in zip(owners, before, strict=True):
                self._places.resize(node, each)
            self._say(job, "has no room for larger servers")
            return False
        job.plan = Plan(ps=RolePlan(len(owners), wanted.each), worker=job.plan.worker)
        return True

    def _resize(self, node: FluidNode, wanted: RolePlan) -> bool:
        if node.host < 0:
            node.resources = wanted.each
            return True
        return node.resources == wanted.each or self._places.resize(node, wanted.each)

    def _begin_move(self, job: FluidJob, move: _Move) -> None:
        before = len(job.owners)
        after = before + len(move.coming) - len(move.leaving)
        moved = job.request.memory.row_bytes(job.samples) * abs(after - before) / max(after, before)
        at_once = max(1, min(before, after, abs(after - before)))
        seconds = moved / (self.costs.moved_bytes_per_second * at_once)
        job.kept_rate = self.costs.kept_rate
        self._changed(job)
        self._events[job] = self._clock.after(seconds, partial(self._moved, job))

    def _moved(self, job: FluidJob) -> None:
        job.passes(self._clock.now)
        del self._events[job]
        move = self._moves.pop(job)
        for node in move.coming:
            node.owns = True
        for node in move.leaving:
            self._remove(job, node)
        self._sized(job, move.plan.ps)
        job.plan = Plan(ps=RolePlan(len(job.owners), job.owners[0].resources), worker=job.plan.worker)
        job.changing, job.kept_rate = False, 1.0
        self._changed(job)
        self._freed()

    def _hold(self, job: FluidJob) -> None:
        if self.costs.stop_seconds:
            job.held_until = self._clock.now + self.costs.stop_seconds
            self._clock.at(job.held_until, partial(self._released, job))

    def _released(self, job: FluidJob) -> None:
        if not job.ended:
            job.passes(self._clock.now)
            self._changed(job)

    def _place(self, job: FluidJob, nodes: list[FluidNode]) -> int:
        """Start those of these nodes that find room, and take the others away; return how many have."""
        placed = 0
        for node in nodes:
            host = self._places.find(node.resources)
            if host is None:
                job.nodes.remove(node)
                continue
            self._places.take(node, host)
            self._start(job, node)
            placed += 1
        return placed

    def _remove(self, job: FluidJob, node: FluidNode) -> None:
        if node.host >= 0:
            self._places.give_back(node)
        if node in job.nodes:
            job.nodes.remove(node)

    # --- by a restart ----------------------------------------------------------------------------------------------------

    def _restart(self, job: FluidJob, plan: Plan) -> bool:
        """End all nodes, and start those of the plan, which find places among what those had and what is left; the job keeps what it has
        where they don't."""
        before, old_plan = list(job.nodes), job.plan
        hosts = [node.host for node in before]
        states = [node.up for node in before]
        for node in before:
            if node.host >= 0:
                self._places.withdraw(node)
        first = max(node.number for node in before) + 1
        job.adopt(plan)
        for at, node in enumerate(job.nodes):
            node.number = first + at
        found: list[FluidNode] = []
        for node in job.nodes:
            if (host := self._places.find(node.resources)) is None:
                break
            self._places.take(node, host)
            found.append(node)
        if len(found) < len(job.nodes):
            for node in found:
                self._places.withdraw(node)
            job.nodes, job.plan = before, old_plan
            for node, host, up in zip(before, hosts, states, strict=True):
                if host >= 0:
                    self._places.take(node, host)
                    node.up = up
            return False
        for node in before:
            if node.start is not None:
                node.start.cancel()
        self._say(job, f"starts again with {plan.describe()}")
        job.saved_samples = job.samples
        job.changing = True
        self._changed(job)
        self._events[job] = self._clock.after(self.costs.stop_seconds, partial(self._starts_again, job))
        return True

    def _starts_again(self, job: FluidJob) -> None:
        del self._events[job]
        job.changing = False
        for node in job.nodes:
            self._start(job, node)
        self._freed()
