"""What must be so when a simulated job has ended: each sample was applied once, all of it is explained, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.jobs import events
from dlrover_lite.simulation.job import SimulatedJob
from dlrover_lite.simulation.world import World

__all__ = ["problems_at_end"]

_LEAST_WORDS = 3
"""Number of words that say why."""


def problems_at_end(world: World, job: SimulatedJob) -> Iterator[str]:
    """Yield what is wrong with a job that has ended."""
    outcome = job.outcome
    assert outcome is not None
    left = [name for name, process in job.backend.processes.items() if process.state != "ended"]
    if left:
        yield f"{job.id} has ended, and {', '.join(left)} is left"
    if outcome.state == "succeeded":
        yield from _miscounted(job)
    yield from _untold(job)
    with ConfigStore(world.directory / "brain.sqlite") as store:
        for stored in queries.decisions(store, job.id):
            if why := unexplained(stored.decision):
                yield f"{job.id}: decision {stored.number} ({stored.decision.action}) isn't explained: {why}"


def _miscounted(job: SimulatedJob) -> Iterator[str]:
    """Yield which minibatches weren't applied once in every slot, by what the servers have that own the slots at the end."""
    run, plan = job.master.run, job.spec.plan
    assert run is not None
    skipped = {(of.index, failure.k) for of, failure in run.shards.quarantined() if of.kind == "train"}
    minibatches = plan.minibatches(plan.samples)
    samples = plan.samples * plan.epochs - len(skipped) * plan.batch_size
    if not skipped and run.shards.consumed_samples != samples:
        yield f"{job.id} has succeeded with {run.shards.consumed_samples:,} of {samples:,} samples"
    if job.spec.recipe.export.format != "none" and not job.exports:
        yield f"{job.id} has succeeded, and its model was never exported"
    wanted = np.ones(minibatches * plan.epochs, np.uint8)
    for epoch, k in skipped:
        wanted[epoch * minibatches + k] = 0
    for server in run.servers.state.counts():
        memory = job.memories.get(server)
        if memory is None or memory.counts is None:
            continue
        owned = run.servers.state.owned(server)
        wrong = np.argwhere(memory.counts.counts[:, owned] != wanted[:, None])
        if len(wrong):
            row, column = wrong[0].tolist()
            slot = int(np.flatnonzero(owned)[column])
            epoch, k = divmod(row, minibatches)
            times = int(memory.counts.counts[row, slot])
            yield f"{job.id}: minibatch {k} of epoch {epoch} was applied {times} times in slot {slot} of {server}"


def _untold(job: SimulatedJob) -> Iterator[str]:
    """Yield which nodes the story says nothing of."""
    run = job.master.run
    if run is None or job.master.kills or run.facts.is_behind:
        return  # one that is killed takes along what it hadn't written of its story; on a full disk nothing is written of it
    story = events.read(job.files.directory, on_damage=lambda _: None).entries
    told = {entry.subject for entry in story if entry.text.startswith("launched with ")}
    if untold := [name for name in run.fleet.by_id if name not in told]:
        yield f"{job.id}: the story doesn't say with how much {', '.join(untold)} was launched"


def unexplained(decision: Decision) -> str:
    """Say what a decision's reason lacks: who, how much and why; empty: nothing."""
    reason = decision.reason
    if len(reason.split()) < _LEAST_WORDS:
        return f"its reason is {reason!r}"
    if decision.acts and not any(character.isdigit() for character in reason):
        return f"its reason says no number: {reason!r}"
    if decision.action in ("start", "change", "explore"):
        plan = decision.plan
        if plan is None or decision.choice is None:
            return "it has no plan"
        if min(plan.ps.count, plan.worker.count, plan.ps.each.memory, plan.worker.each.memory) < 1:
            return f"its plan has nothing: {plan}"
    if decision.action == "heal" and (decision.treatment is None or not decision.treatment.node):
        return "it doesn't say whom it is about"
    return ""
