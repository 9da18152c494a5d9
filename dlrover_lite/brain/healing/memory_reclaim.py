"""Memory that nodes don't need is taken back, for other jobs or other nodes: of parameter servers (PS) by forecast, of workers by what they
have used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from dlrover_lite.brain.healing.memory_relief import forecast_of, samples_ahead
from dlrover_lite.brain.healing.mitigation import HealInputs, NodeNow, Treatment
from dlrover_lite.brain.healing.policies import ReclaimPolicy
from dlrover_lite.brain.healing.slow_nodes import remaining_seconds
from dlrover_lite.brain.models.memory_forecast import Forecast, memory_band
from dlrover_lite.brain.models.memory_history import MemoryHistory
from dlrover_lite.brain.models.memory_model import LEAST_PS, peak_bytes, worker_limit
from dlrover_lite.brain.planning.plan_grid import MemoryBand
from dlrover_lite.core.units import MIB, Resources, format_bytes
from dlrover_lite.core.words import duration
from dlrover_lite.protocol.acts import Resize
from dlrover_lite.protocol.profiles import Level, Profile, PsUse, WorkerUse

__all__ = ["treat_spare"]

_CAUSES = ("memory ahead", "memory to spare")


class _Now(NamedTuple):
    """What is known of a PS."""

    used: int
    """Bytes in use now."""
    beyond: int
    """Bytes that it has used at its peak beyond all that its levels tell."""
    levels: int
    """Number of levels that its forecast follows from."""


class _Lower(NamedTuple):
    node: NodeNow
    limit: int
    band: MemoryBand


def treat_spare(inputs: HealInputs, nodes: Sequence[NodeNow]) -> list[Treatment]:
    """Take memory back from all of ``nodes`` that have much more than they need, in one treatment, or none. Only once the job has run
    undisturbed for a while."""
    policy = inputs.policy
    nearly_done = remaining_seconds(inputs) < policy.reclaim.least_seconds_left
    if not inputs.resizable or nearly_done or not _is_calm(inputs):
        return []
    rested = [node for node in nodes if not _changed_of_late(inputs, node.node)]
    servers = list(_servers(inputs, [node for node in rested if node.role == "ps"]))
    workers = list(_workers(inputs, [node for node in rested if node.role == "worker"]))
    lower = [*servers, *workers]
    if not lower:
        return []
    first, *others = lower
    words = [f"{one.node.node} {_of_server(inputs, one)}" for one in servers]
    if workers:
        words.append(_of_workers(workers))
    back = sum(one.node.resources.memory - one.limit for one in lower)
    treatment = Treatment(
        at=inputs.at,
        node=first.node.node,
        host=first.node.host,
        cause="memory to spare",
        act=Resize(_resources(first), {one.node.node: _resources(one) for one in others}),
        reason=f"{format_bytes(back)} come back: {'; '.join(words)}",
        memory=first.band,
    )
    return [treatment]


def _is_calm(inputs: HealInputs) -> bool:
    """Say whether the newest profiles are of the nodes that run now, as large as they are now."""
    there = {node.node: round(node.resources.cores, 3) for node in inputs.nodes}

    def is_present(profile: Profile) -> bool:
        uses: list[WorkerUse | PsUse] = [*profile.workers, *profile.ps]
        return {use.node: round(use.cores, 3) for use in uses} == there

    newest = inputs.profiles[-inputs.policy.spare_windows :] if inputs.policy.spare_windows else ()
    return len(newest) == inputs.policy.spare_windows and all(map(is_present, newest))


def _changed_of_late(inputs: HealInputs, node: str) -> bool:
    """Say whether a treatment has changed the node's memory of late."""
    since = inputs.at - inputs.policy.spare_again_seconds
    return any(
        one.cause in _CAUSES
        and isinstance(one.act, Resize)
        and (one.node == node or node in one.act.others)
        and (one.done_at is None or one.done_at > since)
        for one in inputs.past
    )


def _is_worth_it(inputs: HealInputs, node: NodeNow, limit: int) -> bool:
    policy = inputs.policy
    share = policy.reclaim.worker_share if node.role == "worker" else policy.spare_share
    return limit <= (1 - share) * node.resources.memory


# --- parameter servers ----------------------------------------------------------------------------------------------


def _servers(inputs: HealInputs, nodes: Sequence[NodeNow]) -> Iterator[_Lower]:
    last = inputs.held[-1]
    used = {use.node: use.used_bytes for use in last.ps}
    over_used = inputs.policy.reclaim.over_used
    known = [node for node in nodes if _is_worth_it(inputs, node, math.ceil(used.get(node.node, 1 << 62) * over_used))]
    if not known or (found := forecast_of(inputs)) is None:
        return
    until = _samples_until(inputs)
    for node in known:
        now = _Now(used[node.node], _beyond(inputs, node), len(inputs.held))
        needed = _needs(found, node, until, now, inputs.policy.reclaim)
        if needed is None:
            continue
        limit = max(needed, inputs.least.get("ps", 0))
        if _is_worth_it(inputs, node, limit):
            yield _Lower(node, limit, memory_band(found, node.node, until, limit=limit))


def _samples_until(inputs: HealInputs) -> float:
    """Compute the number of samples until which what is left is to do: as far as a relief would give it, and at least until more could be
    taken. What is taken and given again at once is short in between."""
    return samples_ahead(inputs, inputs.policy.spare_again_seconds)


def _beyond(inputs: HealInputs, node: NodeNow) -> int:
    """Return the bytes that a PS has used at its peak beyond all that its levels tell: what snapshots and moves take for a while. A peak
    with rows that have left since isn't beyond these."""
    return max(0, node.used_bytes - _most_held(inputs.held, node.node))


def _most_held(levels: Sequence[Level], node: str) -> int:
    """Return the most bytes that a PS used by its levels."""
    if isinstance(levels, MemoryHistory):
        return levels.most_used(node)
    return max((use.used_bytes for level in levels for use in level.ps if use.node == node), default=0)


def _needs(found: Forecast, node: NodeNow, until: float, now: _Now, policy: ReclaimPolicy) -> int | None:
    """Compute the limit that surely is enough; None where that isn't known well, and little would come back."""
    memory, tables = found.of(node.node)
    expected, high = (float(value) for value in peak_bytes(memory, tables, until, (0.5, policy.sure))[:, 0])
    rows = float(peak_bytes(msgspec.structs.replace(memory, spill_part=0.0), tables, until, policy.sure)[0, 0])
    limit = max(rows * policy.headroom, high * policy.spill_headroom, now.used * policy.over_used)
    most = node.resources.memory * (1 - policy.unsure_share) if now.levels >= policy.least_levels else 0.0
    if limit > expected * policy.most_over_expected and limit > most:
        return None
    limit = max(limit, min((now.used + now.beyond) * policy.over_peak, limit * policy.most_by_peak), LEAST_PS)
    return math.ceil(limit / MIB) * MIB


def _of_server(inputs: HealInputs, one: _Lower) -> str:
    last = inputs.held[-1]
    seconds = (_samples_until(inputs) - last.samples_so_far) / max(last.samples_per_second, 1e-9)
    return (
        f"needs {format_bytes(one.band.expected)} at its peak within {duration(seconds)} (80% band {format_bytes(one.band.lower)} to "
        f"{format_bytes(one.band.upper)}), and keeps {format_bytes(one.limit)} of its {format_bytes(one.node.resources.memory)}"
    )


# --- workers --------------------------------------------------------------------------------------------------------


def _workers(inputs: HealInputs, nodes: Sequence[NodeNow]) -> Iterator[_Lower]:
    """Find the workers that have much more memory than they need. All do the same, so each may come to need as much as any has. An
    evaluation may take more than training: before the first one nobody knows."""
    used = [node.used_bytes for node in inputs.nodes if node.role == "worker"]
    if not inputs.evaluated or not used or not all(used):
        return
    most = max(*used, inputs.worker_peak)
    limit = max(worker_limit(most, steady=inputs.worker_steady), inputs.least.get("worker", 0))
    for node in nodes:
        if _is_worth_it(inputs, node, limit):
            yield _Lower(node, limit, MemoryBand(node.used_bytes, node.used_bytes, most, limit))


def _of_workers(workers: Sequence[_Lower]) -> str:
    names = ", ".join(one.node.node for one in workers)
    most = max(one.band.upper for one in workers)
    limits = sorted({one.node.resources.memory for one in workers})
    had = format_bytes(limits[0]) if len(limits) == 1 else f"{format_bytes(limits[0])} to {format_bytes(limits[-1])}"
    each = " each" if len(workers) > 1 else ""
    return f"{names}: no worker has used more than {format_bytes(most)}, {format_bytes(workers[0].limit)}{each} instead of {had}"


def _resources(one: _Lower) -> Resources:
    return Resources(one.node.resources.cores, one.limit)
