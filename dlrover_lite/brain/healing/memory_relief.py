"""Parameter servers (PS) that will run out of memory get relief before they do: more of it in place, or fewer rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dlrover_lite.brain.healing.host_capacity import HostCapacity
from dlrover_lite.brain.healing.mitigation import HealInputs, NodeNow, Treatment
from dlrover_lite.brain.healing.policies import ReliefPolicy
from dlrover_lite.brain.models.memory_forecast import Forecast, forecast, memory_band, stepped_up
from dlrover_lite.brain.models.memory_model import (
    ACT_TIMES,
    LEAST_PS,
    OomRisk,
    at_most_bytes,
    limit_for,
    oom_chance,
    oom_risk,
)
from dlrover_lite.brain.planning.plan_grid import MemoryBand
from dlrover_lite.core.units import MIB, Resources, format_bytes
from dlrover_lite.core.words import duration
from dlrover_lite.protocol.acts import AddPs, MoveSlots, Resize, Tell
from dlrover_lite.protocol.profiles import Level, PsLevel

__all__ = ["forecast_of", "samples_ahead", "treat_memory"]

_SMALL_CHANCE = 0.5
"""Part of the chance that is acted on up to which a chance is so small that it need not be known: quantiles of rows may fall a little from
one number of samples to a larger one, where laws cross."""


class _Outlook(NamedTuple):
    node: NodeNow
    found: Forecast
    samples: float
    """Number of samples until which limits are to hold."""
    risk: OomRisk
    limit: int
    """Limit in bytes that would do."""


def samples_ahead(inputs: HealInputs, least_seconds: float = 0.0) -> float:
    """Compute the number of samples that the job will have trained on at the time until which limits are to hold: in ``least_seconds`` at
    the soonest."""
    last = inputs.held[-1]
    seconds = max(
        least_seconds,
        _ahead_seconds(inputs, last) * inputs.policy.relief.times_ahead,
        _seconds_to_act(inputs, last) * inputs.policy.relief.times_to_act,
    )
    ahead = last.samples_so_far + last.samples_per_second * seconds
    return ahead if inputs.total_samples is None else min(ahead, max(inputs.total_samples, last.samples_so_far))


def _ahead_seconds(inputs: HealInputs, last: Level) -> float:
    """Return how many seconds are looked ahead."""
    return min(inputs.policy.ahead_seconds, inputs.policy.ahead_share * _seconds_so_far(last))


def _seconds_so_far(last: Level) -> float:
    """Return the seconds that the job would have taken to get here at its present rate."""
    return last.samples_so_far / max(last.samples_per_second, 1e-9)


def _seconds_to_act(inputs: HealInputs, last: Level) -> float:
    """Return the seconds from the measurement until a relief has taken effect, with room for two failures."""
    return _age(inputs, last) + inputs.seconds_to_act * ACT_TIMES


def _age(inputs: HealInputs, last: Level) -> float:
    """Return the seconds since the last level; 0 for profiles: what they say is decided on when they come."""
    return min(inputs.policy.relief.oldest_seconds, max(0.0, inputs.at - last.at)) if inputs.levels else 0.0


def forecast_of(inputs: HealInputs) -> Forecast | None:
    """Forecast the memory of the job's PS; None while no PS has a row."""
    return forecast(
        inputs.held,
        inputs.curves,
        epoch_samples=inputs.epoch_samples,
        spill_part=inputs.spill_part,
        facts=inputs.facts,
    )


def treat_memory(inputs: HealInputs, nodes: Sequence[NodeNow], room: HostCapacity) -> list[Treatment]:
    """Treat the PS among ``nodes`` that are likely to run out of memory, the most urgent first. Takes from ``room`` what it gives."""
    known = {use.node: use for use in inputs.held[-1].ps} if inputs.held else {}
    servers = [node for node in nodes if node.role == "ps" and node.node in known]
    if _surely_fit(inputs, [(node, known[node.node]) for node in servers]):
        return []
    found = forecast_of(inputs)
    if found is None or all(_is_far_from_full(inputs, node, found) for node in servers):
        return []
    outlooks = [_look(inputs, node, found) for node in servers]
    urgent = sorted(
        (_in_need(one, inputs.policy.relief) for one in outlooks if _is_urgent(inputs, one.risk)),
        key=lambda one: (-one.risk.soon, one.node.node),
    )
    return [_relief(inputs, one, outlooks, room) for one in urgent]


def _in_need(one: _Outlook, policy: ReliefPolicy) -> _Outlook:
    more = math.ceil(one.node.resources.memory * policy.least_more / MIB) * MIB
    return one._replace(limit=max(one.limit, more))


def _surely_fit(inputs: HealInputs, servers: Sequence[tuple[NodeNow, PsLevel]]) -> bool:
    """Say whether memory suffices even if each sample to come brought as many rows as those before: a forecast takes longer than to see
    that."""
    if not servers:
        return True
    last, filled = inputs.held[-1], inputs.policy.relief.filled
    seconds = max(_ahead_seconds(inputs, last), _seconds_to_act(inputs, last))
    more = last.samples_per_second * seconds / max(1, last.samples_so_far)
    return all(
        at_most_bytes(use.used_bytes, use.row_bytes, 1 + more, spill_part=inputs.spill_part)
        < filled * node.resources.memory
        for node, use in servers
    )


def _is_far_from_full(inputs: HealInputs, node: NodeNow, found: Forecast) -> bool:
    """Say whether a PS surely isn't urgent, as its chance of running full is small even a step further ahead than is looked. What is found
    of tables at that step holds until it is reached, and all that can happen before it has no larger chance."""
    last, policy = inputs.held[-1], inputs.policy
    seconds = max(_ahead_seconds(inputs, last), _seconds_to_act(inputs, last))
    later = stepped_up(last.samples_so_far + last.samples_per_second * seconds)
    chance = oom_chance(*found.of(node.node), limit=node.resources.memory, samples=later)
    return chance < _SMALL_CHANCE * min(policy.act_on_oom, policy.act_on_oom_by_end)


def _look(inputs: HealInputs, node: NodeNow, found: Forecast) -> _Outlook:
    last, samples = inputs.held[-1], samples_ahead(inputs)
    memory, tables = found.of(node.node)
    total = samples if inputs.total_samples is None else max(inputs.total_samples, samples)
    risk = oom_risk(
        memory,
        tables,
        limit=node.resources.memory,
        samples=last.samples_so_far,
        total_samples=total,
        samples_per_second=last.samples_per_second,
        seconds_to_act=inputs.seconds_to_act,
        seconds_since=_age(inputs, last),
    )
    used = next(use.used_bytes for use in last.ps if use.node == node.node)
    return _Outlook(
        node, found, samples, risk, limit_for(memory, tables, samples, surely=_sure_until(inputs), used=used)
    )


def _sure_until(inputs: HealInputs) -> float:
    """Compute the number of samples until which a new limit has to hold for nearly all courses that rows may take, as there can't be
    another one before; 0: for none. What is given in place can be given again, and the job's master bridges what fails in between."""
    last = inputs.held[-1]
    if inputs.resizable and _seconds_so_far(last) < inputs.policy.relief.young_seconds:
        return 0.0
    seconds = _age(inputs, last) + inputs.seconds_to_act * (1.0 if inputs.resizable else ACT_TIMES)
    return min(samples_ahead(inputs), last.samples_so_far + last.samples_per_second * seconds)


def _is_urgent(inputs: HealInputs, risk: OomRisk) -> bool:
    policy = inputs.policy
    by_end = risk.by_end >= policy.act_on_oom_by_end and risk.seconds_left is not None
    ahead = _ahead_seconds(inputs, inputs.held[-1])
    return risk.soon >= policy.act_on_oom or (by_end and (risk.seconds_left or 0.0) <= ahead)


def _relief(inputs: HealInputs, one: _Outlook, all_of_them: Sequence[_Outlook], room: HostCapacity) -> Treatment:
    node, limit = one.node, one.node.resources.memory
    when = "" if one.risk.seconds_left is None else f", most likely in {duration(one.risk.seconds_left)}"
    seen = (
        f"{node.node} may run out of its {format_bytes(limit)}, with a chance of {one.risk.soon:.0%} before more could arrive "
        f"and of {one.risk.by_end:.0%} by the job's end{when}"
    )
    treatment = Treatment(
        at=inputs.at,
        node=node.node,
        host=node.host,
        cause="memory ahead",
        act=Tell(),
        reason=seen,
        memory=memory_band(one.found, node.node, one.samples, limit=limit),
    )
    for way in (_in_place, _to_peers, _to_another, _what_there_is):
        if (treated := way(inputs, one, treatment, all_of_them, room)) is not None:
            return treated
    return msgspec.structs.replace(
        treatment, reason=f"{seen}; there is no memory left for it, neither here nor on other parameter servers"
    )


def _in_place(
    inputs: HealInputs, one: _Outlook, treatment: Treatment, _others: Sequence[_Outlook], room: HostCapacity
) -> Treatment | None:
    node, more = one.node, one.limit - one.node.resources.memory
    if not inputs.resizable or more <= 0 or not room.fits(node.host, Resources(0.0, more)):
        return None
    room.take(node.host, Resources(0.0, more))
    resources = Resources(node.resources.cores, one.limit)
    return _treated(treatment, one, Resize(resources), f"it gets {format_bytes(one.limit)} in place", 0.0, one.limit)


def _what_there_is(
    inputs: HealInputs, one: _Outlook, treatment: Treatment, _others: Sequence[_Outlook], room: HostCapacity
) -> Treatment | None:
    """Give a PS all the memory there is: not enough, but running out later is better than now."""
    node, more = one.node, min(room.memory(one.node.host), one.limit - one.node.resources.memory)
    if not inputs.resizable or more < inputs.policy.relief.least_share_moved * node.resources.memory:
        return None
    room.take(node.host, Resources(0.0, more))
    limit = node.resources.memory + more
    text = f"it gets {format_bytes(limit)} in place, all there is, of {format_bytes(one.limit)} that it should have"
    return _treated(treatment, one, Resize(Resources(node.resources.cores, limit)), text, 0.0, limit)


def _share_to_leave(one: _Outlook, policy: ReliefPolicy) -> float:
    """Compute the share of the PS's rows that has to leave, so that it gets by with the limit that it has; 1 if it doesn't even without
    any."""
    memory, _ = one.found.of(one.node.node)
    rows = one.limit - memory.base
    room = policy.filled * one.node.resources.memory - memory.base
    return min(1.0, max(policy.least_share_moved, 1 - room / rows)) if rows > 0 and room > 0 else 1.0


def _to_peers(
    inputs: HealInputs, one: _Outlook, treatment: Treatment, others: Sequence[_Outlook], room: HostCapacity
) -> Treatment | None:
    share = _share_to_leave(one, inputs.policy.relief)
    if share >= 1:
        return None
    memory, _ = one.found.of(one.node.node)
    leaving = share * (one.limit - memory.base)
    spare = {
        other.node.node: max(0.0, inputs.policy.relief.filled * other.node.resources.memory - other.limit)
        for other in others
        if other.node.node != one.node.node and not _is_urgent(inputs, other.risk)
    }
    total = sum(spare.values())
    if total < leaving:
        return None
    to = {peer: round(left / total, 4) for peer, left in spare.items() if left > 0}
    text = f"slots with {share:.0%} of its rows go to others, which have {format_bytes(total)} to spare"
    return _treated(treatment, one, MoveSlots(round(share, 4), to), text, share, one.node.resources.memory)


def _to_another(
    inputs: HealInputs, one: _Outlook, treatment: Treatment, _others: Sequence[_Outlook], room: HostCapacity
) -> Treatment | None:
    share = _share_to_leave(one, inputs.policy.relief)
    if share >= 1:
        return None
    memory, _ = one.found.of(one.node.node)
    needed = memory.base + share * (one.limit - memory.base) / inputs.policy.relief.filled
    resources = Resources(one.node.resources.cores, max(LEAST_PS, math.ceil(needed / MIB) * MIB))
    host = room.best(resources)
    if not host:
        host = room.best(Resources(resources.cores * inputs.policy.relief.least_cores_share, resources.memory))
        resources = Resources(min(resources.cores, room.cores(host)), resources.memory)
    if not host:
        return None
    room.take(host, resources)
    text = f"another one with {format_bytes(resources.memory)} takes {share:.0%} of its rows"
    act = AddPs(resources, round(share, 4), host)
    return _treated(treatment, one, act, text, share, one.node.resources.memory)


def _treated(
    treatment: Treatment, one: _Outlook, act: Resize | MoveSlots | AddPs, text: str, leaves: float, limit: int
) -> Treatment:
    memory, _ = one.found.of(one.node.node)
    band = memory_band(one.found, one.node.node, one.samples, limit=limit)

    def kept(value: int) -> int:
        return int(memory.base + (1 - leaves) * (value - memory.base))

    band = MemoryBand(kept(band.expected), kept(band.lower), kept(band.upper), limit)
    return msgspec.structs.replace(treatment, act=act, reason=f"{treatment.reason}: {text}", memory=band)
