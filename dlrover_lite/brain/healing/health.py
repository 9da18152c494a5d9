"""Stage 3, keeping a job healthy: slow workers, hot parameter servers (PS), memory that will run out or isn't needed, nodes that ended.

::

    for decision in heal(inputs):        # inputs: HealInputs, all that counts, and nothing else
        decision.treatment.act           # what to do; decision.reason says why
"""

from __future__ import annotations

from collections import Counter

import msgspec

from dlrover_lite.brain.healing.host_capacity import Room
from dlrover_lite.brain.healing.memory_ceiling import treat_ceiling
from dlrover_lite.brain.healing.memory_reclaim import treat_spare
from dlrover_lite.brain.healing.memory_relief import forecast_of, samples_ahead, treat_memory
from dlrover_lite.brain.healing.mitigation import (
    Comeback,
    GiveUp,
    HealInputs,
    NodeEnd,
    Relaunch,
    Resize,
    Tell,
    Treatment,
)
from dlrover_lite.brain.healing.slow_nodes import treat_servers, treat_workers
from dlrover_lite.brain.models.memory_forecast import memory_band
from dlrover_lite.brain.models.memory_model import limit_for
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.planning.plan_grid import MemoryBand
from dlrover_lite.core.units import Resources, format_bytes

__all__ = ["heal"]

_OOM = "OOMKilled"
_LEAST_GROWTH = 1.2
"""Coming back with less more memory than that would only end the same way."""
_HEADROOM = 1.06


def heal(inputs: HealInputs) -> tuple[Decision, ...]:
    """What to do about nodes of one job: at most one thing for each, the most urgent first; empty when all is well.

    Everything follows from ``inputs``: the same ones give the same decisions. A node with a treatment under way is left alone, and what
    only could be told isn't told twice in a row. All together take no more than ``inputs.free`` has.
    """
    room = Room(inputs.free)
    for end in inputs.ended:
        room.give_back(end.host, end.resources)
    found = _ended(inputs, room)
    under_way = [one for one in inputs.past if one.done_at is None and not _only_told(one)]
    ended = {end.node for end in inputs.ended}
    if inputs.held:
        # who is about to give memory away may need more of it by now
        busy = ended.union(*(_nodes(one) for one in under_way if one.cause != "memory to spare"))
        nodes = [node for node in inputs.nodes if node.node not in busy]
        found += _together(treat_memory(inputs, nodes, room))
    for rules in (treat_servers, treat_workers) if inputs.profiles else ():
        taken = ended.union(*(_nodes(one) for one in [*under_way, *found] if not _only_told(one)))
        found += rules(inputs, [node for node in inputs.nodes if node.node not in taken], room)
    if inputs.profiles and not under_way and all(map(_only_told, found)):
        found += treat_spare(inputs, inputs.nodes)
    if inputs.held:
        found += treat_ceiling(inputs)
    last = {(treatment.node, treatment.cause): treatment for treatment in inputs.past}
    return tuple(
        _decision(inputs, treatment)
        for treatment in _one_each(found)
        if not (_only_told(treatment) and _only_told(last.get((treatment.node, treatment.cause))))
    )


def _nodes(treatment: Treatment) -> set[str]:
    """That it is about."""
    others = treatment.act.others if isinstance(treatment.act, Resize) else {}
    return {treatment.node, *others}


def _together(found: list[Treatment]) -> list[Treatment]:
    """More memory for several nodes is one treatment, in the most urgent one's place: only one is carried out at a time."""
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
    """What is done about a node goes before what is only told."""
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


# --- nodes that ended -----------------------------------------------------------------------------------------------


def _ended(inputs: HealInputs, room: Room) -> list[Treatment]:
    used: Counter[tuple[str, str]] = Counter()
    for role, reasons in inputs.comebacks.items():
        used.update({(role, reason): count for reason, count in reasons.items()})
    found = []
    for end in inputs.ended:
        treatment = _answer(inputs, end, used[end.role, end.reason], room)
        used[end.role, end.reason] += isinstance(treatment.act, Relaunch)
        found.append(treatment)
    return found


def _answer(inputs: HealInputs, end: NodeEnd, before: int, room: Room) -> Treatment:
    oom = end.reason == _OOM
    treatment = Treatment(
        at=inputs.at,
        node=end.node,
        host=end.host,
        cause="out of memory" if oom else "ended",
        act=GiveUp(),
        reason=f"{end.node} ended ({end.reason})",
    )
    comebacks = inputs.policy.comebacks
    comeback = comebacks.get(end.reason) or comebacks.get("Unknown") or Comeback(0)
    if comeback.budget == 0:
        return _says(treatment, "nodes that end so don't come back; its log says what happened")
    if before >= comeback.budget:
        return _says(treatment, f"{before} nodes of its role have come back after that, and no more may")
    memory, band = end.resources.memory, None
    if comeback.memory_factor > 1 or oom:
        memory, band = _after_oom(inputs, end, comeback)
    return _placed(inputs, end, treatment, memory, band, room)


def _after_oom(inputs: HealInputs, end: NodeEnd, comeback: Comeback) -> tuple[int, MemoryBand | None]:
    """What it should have: what it is forecast to need, and so many times what it had at least."""
    least = int(max(end.resources.memory * max(comeback.memory_factor, _LEAST_GROWTH), end.peak_bytes * _HEADROOM))
    if end.role != "ps" or not inputs.held:
        return least, None
    found = forecast_of(inputs)
    if found is None or end.node not in found.base:
        return least, None
    samples = samples_ahead(inputs)
    wanted = max(least, limit_for(*found.of(end.node), samples))
    return wanted, memory_band(found, end.node, samples, limit=wanted)


def _placed(
    inputs: HealInputs, end: NodeEnd, treatment: Treatment, memory: int, band: MemoryBand | None, room: Room
) -> Treatment:
    """Where it comes back, and with how much: where it was, unless nodes keep ending there or there isn't enough."""
    wanted = Resources(end.resources.cores, memory)
    least = Resources(wanted.cores, min(memory, int(end.resources.memory * _LEAST_GROWTH)))
    since = inputs.at - inputs.policy.host_memory_seconds
    ends = sum(t.host == end.host and t.at >= since and isinstance(t.act, Relaunch) for t in inputs.past)
    unsound = ends >= inputs.policy.most_ends_on_host
    hosts = [end.host, room.elsewhere(end.host, wanted), room.elsewhere(end.host, least)]
    for host in [*hosts[1:], hosts[0]] if unsound else hosts:
        if host and room.fits(host, least):
            given = Resources(wanted.cores, min(memory, room.memory(host)))
            room.take(host, given)
            words = _back(end, given, host, ends if unsound else 0)
            if band is not None:
                band = MemoryBand(band.expected, band.lower, band.upper, given.memory)
            act = Relaunch(given, "" if host == end.host else host)
            return msgspec.structs.replace(treatment, act=act, reason=f"{treatment.reason}: {words}", memory=band)
    return _says(
        treatment, f"it would need {format_bytes(least.memory)} at least to come back, and no host has so much left"
    )


def _back(end: NodeEnd, given: Resources, host: str, ends: int) -> str:
    words = "another one takes its place"
    if host != end.host:
        words += f" on {host}" + (f", since {ends} have ended on {end.host} of late" if ends else "")
    if given.memory != end.resources.memory:
        words += f", with {format_bytes(given.memory)} instead of {format_bytes(end.resources.memory)}"
    return words


def _says(treatment: Treatment, words: str) -> Treatment:
    return msgspec.structs.replace(treatment, reason=f"{treatment.reason}: {words}")
