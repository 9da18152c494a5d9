"""Stage 3, keeping a job healthy: slow workers, hot parameter servers (PS), memory that will run out or isn't needed.

::

    for decision in heal(inputs):        # inputs: HealInputs, all that counts, and nothing else
        decision.treatment.act           # what to do; decision.reason says why
"""

from __future__ import annotations

import msgspec

from dlrover_lite.brain.healing.host_capacity import HostCapacity
from dlrover_lite.brain.healing.memory_ceiling import treat_ceiling
from dlrover_lite.brain.healing.memory_reclaim import treat_spare
from dlrover_lite.brain.healing.memory_relief import treat_memory
from dlrover_lite.brain.healing.mitigation import HealInputs, Treatment
from dlrover_lite.brain.healing.slow_nodes import remaining_seconds, treat_servers, treat_workers
from dlrover_lite.brain.healing.slowdown import NewestPaces
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.protocol.acts import MoveSlots, Resize, Tell

__all__ = ["heal"]


def heal(inputs: HealInputs) -> tuple[Decision, ...]:
    """Decide what to do about nodes of one job: at most one thing for each, the most urgent first; empty when all is well.

    Everything follows from ``inputs``: the same ones give the same decisions. A node with a treatment under way is left alone, and what
    only could be told isn't told twice in a row. All together take no more than ``inputs.free`` has.
    """
    room = HostCapacity(inputs.free, shared=inputs.shared)
    found: list[Treatment] = []
    under_way = [one for one in inputs.past if one.done_at is None and not _only_told(one)]
    if inputs.held:
        # who is about to give memory away may need more of it by now
        busy = set[str]().union(*(_nodes(one) for one in under_way if one.cause != "memory to spare"))
        nodes = [node for node in inputs.nodes if node.node not in busy]
        found += _together(treat_memory(inputs, nodes, room))
    paces = NewestPaces(inputs.profiles, inputs.policy.slowdown)
    for rules in (treat_servers, treat_workers) if inputs.profiles else ():
        taken = set[str]().union(*(_nodes(one) for one in [*under_way, *found] if not _only_told(one)))
        treated = rules(inputs, [node for node in inputs.nodes if node.node not in taken], room, paces)
        found += [one for one in treated if not _comes_too_late(inputs, one)]
    if inputs.spare and inputs.profiles and not under_way and all(map(_only_told, found)):
        found += treat_spare(inputs, inputs.nodes)
    if inputs.held:
        found += treat_ceiling(inputs)
    last = {(treatment.node, treatment.cause): treatment for treatment in inputs.past}
    return tuple(
        _decision(inputs, treatment)
        for treatment in _one_each(found)
        if not (_only_told(treatment) and _only_told(last.get((treatment.node, treatment.cause))))
    )


def _comes_too_late(inputs: HealInputs, treatment: Treatment) -> bool:
    """Say whether the job ends before a slow node could be changed, or its slots could have moved."""
    is_change = isinstance(treatment.act, Resize | MoveSlots)
    return is_change and remaining_seconds(inputs) < inputs.policy.least_seconds_left


def _nodes(treatment: Treatment) -> set[str]:
    """Return the nodes that the treatment is about."""
    others = treatment.act.others if isinstance(treatment.act, Resize) else {}
    return {treatment.node, *others}


def _together(found: list[Treatment]) -> list[Treatment]:
    """Join more memory for several nodes into one treatment, in the most urgent one's place: only one is carried out at a time."""
    pairs = [(one, one.act) for one in found if one.cause == "memory ahead" and isinstance(one.act, Resize)]
    if len(pairs) < 2:
        return found
    (first, act), *others = pairs
    whole = msgspec.structs.replace(
        first,
        act=msgspec.structs.replace(act, others={one.node: its.resources for one, its in others}),
        reason="; ".join([first.reason, *(one.reason for one, _ in others)]),
    )
    rest = [one for one, _ in others]
    return [whole if one is first else one for one in found if one is first or one not in rest]


def _only_told(treatment: Treatment | None) -> bool:
    return treatment is not None and isinstance(treatment.act, Tell)


def _one_each(found: list[Treatment]) -> list[Treatment]:
    """Leave out what is only told about a node that something is done about, or that something else was told about already."""
    acted = {treatment.node for treatment in found if not _only_told(treatment)}
    told: set[str] = set()
    kept = []
    for treatment in found:
        if _only_told(treatment) and treatment.cause != "ceiling":  # which is about all of them
            if treatment.node in acted | told:
                continue
            told.add(treatment.node)
        kept.append(treatment)
    return kept


def _decision(inputs: HealInputs, treatment: Treatment) -> Decision:
    return Decision(
        job=inputs.job,
        at=inputs.at,
        stage="heal",
        action="tell" if _only_told(treatment) else "heal",
        reason=treatment.reason,
        memory=treatment.memory,
        treatment=treatment,
    )
