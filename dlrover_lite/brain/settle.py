"""From what would be best to what is done: who changes, who stays, who tries something.

A change needs the lower end of its gain's 80% band above zero; undoing one needs measurements that it was made without; trying plans that
nothing yet says are better has a budget, a share of the job's expected time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from dlrover_lite.brain.greedy import Stairs, Walk, cheapest_as_good, fewest_nodes, soonest, stairs_of
from dlrover_lite.brain.job_view import Action, Policy
from dlrover_lite.brain.lattice import Candidate
from dlrover_lite.brain.options import Options
from dlrover_lite.units import Resources

__all__ = ["Settled", "Verdict", "settle"]

_TRIES = 4
"""Walks before what is still not allowed simply stays."""
_LESS = "others need what it had more, or there is less than there was"


class Verdict(NamedTuple):
    at: int
    """Position in the job's options."""
    action: Action
    why: str
    """What decided, where numbers alone don't say it."""


class Settled(NamedTuple):
    verdicts: Mapping[str, Verdict]
    free: Resources
    """What is left over."""


def settle(options: Sequence[Options], capacity: Resources, policy: Policy, *, alone: bool, forced: bool) -> Settled:
    """Of all admitted jobs. ``alone``: this is the only job there is. ``forced``: others were let in or put out, so that plans may have
    to shrink. The smallest plans together fit into ``capacity``."""
    pinned = {one.view.job: one.now for one in options if one.view.fixed and one.now is not None}
    fixed = dict.fromkeys(pinned, "its plan is fixed: autoscaling is off for it")
    stairs = {one.view.job: stairs_of(one) for one in options}
    why: dict[str, str] = dict(fixed)
    walk = _walk(options, capacity, stairs, pinned, policy, alone=alone)
    for _ in range(_TRIES):
        vetoed = {
            one.view.job: veto
            for one in options
            if one.view.job not in pinned and (veto := _veto(one, walk.chosen[one.view.job], policy))
        }
        kept = _can_be_pinned(walk, pinned, vetoed, capacity, policy)
        if not kept:
            break
        pinned |= kept
        why |= {job: vetoed[job] for job in kept}
        walk = _walk(options, capacity, stairs, pinned, policy, alone=alone)
    _leave_alone(walk)
    saving: dict[str, str] = {}
    if alone:
        saving = _save(walk, fixed.keys(), policy)
        why |= saving
    if not forced and not alone and not _worth_it(walk) and _all_stay(walk):
        why |= {
            job: "what some would gain by a change is less than what others would lose"
            for job in walk.options
            if job not in why
        }
    verdicts = {}
    for one in options:
        job = one.view.job
        verdicts[job] = _verdict(one, walk, why.get(job, ""), policy, saves=job in saving)
    return Settled(verdicts, Resources(walk.free_milli / 1000, walk.free_memory))


def _walk(
    options: Sequence[Options],
    capacity: Resources,
    stairs: Mapping[str, Stairs],
    pinned: Mapping[str, int],
    policy: Policy,
    *,
    alone: bool,
) -> Walk:
    walk = Walk(options, capacity, stairs, pinned)
    for job, one in walk.options.items():
        if job in pinned:
            continue
        if alone and walk.has_room(job, best := soonest(one, capacity)):
            walk.move(job, best)
        if walk.chosen[job] != one.now:
            cheapest = cheapest_as_good(one, walk.chosen[job], policy.tie_share)
            walk.move(job, fewest_nodes(one, cheapest, policy.fewer_nodes_share))
    return walk


def _save(walk: Walk, fixed: Set[str], policy: Policy) -> dict[str, str]:
    """Gives a job that stays as it is, and is as fast with much less, that; says why."""
    why = {}
    for job, one in walk.options.items():
        if one.now is None or walk.chosen[job] != one.now or job in fixed:
            continue
        at = cheapest_as_good(one, one.now, policy.tie_share, most_loss=policy.saving_risk)
        saved = int(one.points.milli[one.now] - one.points.milli[at])
        if saved >= policy.least_saving * one.points.milli[one.now] and not _veto(one, at, policy):
            walk.move(job, at)
            why[job] = f"{saved / 1000:g} cores less make no difference"
    return why


def _veto(one: Options, at: int, policy: Policy) -> str:
    """Why a job's plan may not be changed to that one; "" if it may."""
    if one.now is None or at == one.now:
        return ""
    change = one.view.last_change
    wanted, now = one.points.candidate(at), one.points.candidate(one.now)
    if change is not None and change.fresh_windows < policy.reversal_windows and _undoes(change.left, now, wanted):
        return (
            f"that would undo the last change, of which {change.fresh_windows} windows have been measured "
            f"({policy.reversal_windows} are needed)"
        )
    if wanted in one.view.declined:
        return f"{wanted.describe()} was refused a short while ago"
    if one.gain[at] > 0 and one.least_gain[at] <= 0:
        return (
            f"{wanted.describe()} would save {one.gain[at]:.0f} s by the model, but that isn't certain: "
            f"at the lower end of its 80% band it loses {-one.least_gain[at]:.0f} s"
        )
    return ""


def _undoes(left: Candidate, now: Candidate, wanted: Candidate) -> bool:
    """Whether ``wanted`` goes back, on some axis, from where the change from ``left`` to ``now`` went."""
    axes = ("workers", "servers", "worker_cores", "ps_cores")
    return any(
        (getattr(now, axis) - getattr(left, axis)) * (getattr(wanted, axis) - getattr(now, axis)) < 0 for axis in axes
    )


def _can_be_pinned(
    walk: Walk, pinned: Mapping[str, int], vetoed: Mapping[str, str], capacity: Resources, policy: Policy
) -> dict[str, int]:
    """Those of ``vetoed`` that can keep their plan while all others have at least their smallest, the most important first; or have one
    that surely gains something, if what they wanted costs as much at least."""
    milli, memory = round(capacity.cores * 1000), capacity.memory
    for job, one in walk.options.items():
        base = pinned.get(job, one.minimum)
        milli -= int(one.points.milli[base])
        memory -= int(one.memory[base])
    kept = {}
    for job in sorted(vetoed, key=lambda job: (-walk.options[job].view.priority, job)):
        one = walk.options[job]
        assert one.now is not None
        more = int(one.points.milli[one.now] - one.points.milli[one.minimum])
        bytes_more = int(one.memory[one.now] - one.memory[one.minimum])
        if more <= milli and bytes_more <= memory:
            milli -= more
            memory -= bytes_more
            kept[job] = one.now
            spare = milli + int(one.points.milli[one.now]), memory + int(one.memory[one.now])
            if (surer := _surest(one, walk.chosen[job], spare, policy)) is not None:
                kept[job] = surer
                milli -= int(one.points.milli[surer] - one.points.milli[one.now])
                memory -= int(one.memory[surer] - one.memory[one.now])
    return kept


def _surest(one: Options, wanted: int, spare: tuple[int, int], policy: Policy) -> int | None:
    """The plan with the most to gain at the lower end of its band, that costs no more than ``wanted`` and ``spare`` (thousandths of a
    core, bytes); None if none surely gains."""
    milli, memory = min(spare[0], int(one.points.milli[wanted])), spare[1]
    may = (one.points.milli <= milli) & (one.memory <= memory) & (one.least_gain > 0)
    best = int(np.where(may, one.least_gain, -np.inf).argmax())
    return best if may[best] and not _veto(one, best, policy) else None


def _leave_alone(walk: Walk) -> None:
    """Nobody is made slower for what nobody uses: who would lose most first."""
    losers = [
        (float(one.value[walk.chosen[job]]), job)
        for job, one in walk.options.items()
        if one.now is not None and one.gain[walk.chosen[job]] <= 0 and walk.chosen[job] != one.now
    ]
    for _, job in sorted(losers):
        now = walk.options[job].now
        assert now is not None
        if walk.has_room(job, now):
            walk.move(job, now)


def _worth_it(walk: Walk) -> bool:
    """Whether the changes together are worth something at the lower ends of their bands."""
    total = 0.0
    for job, one in walk.options.items():
        at = walk.chosen[job]
        if one.now is None:
            return True
        if at != one.now and one.gain[at] != 0:
            total += float(one.value[at] / one.gain[at] * one.least_gain[at])
    return total > 0


def _all_stay(walk: Walk) -> bool:
    """Give everybody what he has, if that still fits."""
    before = dict(walk.chosen)
    for job, one in walk.options.items():
        assert one.now is not None
        walk.move(job, one.now)
    if walk.free_milli >= 0 and walk.free_memory >= 0:
        return True
    for job, at in before.items():
        walk.move(job, at)
    return False


def _verdict(one: Options, walk: Walk, why: str, policy: Policy, *, saves: bool) -> Verdict:
    at = walk.chosen[one.view.job]
    if one.now is None:
        return Verdict(at, "start", why)
    if at != one.now:
        return Verdict(at, "change", why if one.gain[at] > 0 or saves else _LESS)
    if not one.view.fixed and (trial := _to_explore(one, walk, policy)) is not None:
        walk.move(one.view.job, trial)
        return Verdict(trial, "explore", why)
    return Verdict(at, "stay", why)


def trial_seconds(one: Options, policy: Policy) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What trying each plan may cost: there and back, and what it is slower meanwhile at the lower end of its band."""
    assert one.now is not None
    slower = 1 - one.points.lower / one.points.throughput[one.now]
    cost: np.ndarray[tuple[int], np.dtype[np.float64]] = (
        2 * one.view.scale_seconds + policy.exploration_seconds * np.maximum(0.0, slower)
    )
    return cost


def _to_explore(one: Options, walk: Walk, policy: Policy) -> int | None:
    """The plan near the present one that may gain most, if trying it fits into what is left over and into the budget."""
    assert one.now is not None
    view, points = one.view, one.points
    budget = policy.exploration_share * (view.ran_seconds + one.stay_seconds) - view.explored_seconds
    cost = trial_seconds(one, policy)
    job, now = view.job, points.candidate(one.now)
    may = (points.milli <= walk.milli(job) + walk.free_milli) & (one.memory <= walk.memory(job) + walk.free_memory)
    may &= (cost <= budget) & (one.most_gain > cost)
    for axis, here in ((points.workers, now.workers), (points.servers, now.servers)):
        may &= (axis <= here * policy.exploration_step) & (axis * policy.exploration_step >= here)
    for size, its in ((points.worker_cores, now.worker_cores), (points.ps_cores, now.ps_cores)):
        may &= (size <= its * policy.exploration_step) & (size * policy.exploration_step >= its)
    may[one.now] = False
    for refused in view.declined:
        may &= ~points.are(refused)
    change = view.last_change
    if change is not None and change.fresh_windows < policy.reversal_windows:
        return None
    return int(np.where(may, one.most_gain - cost, -np.inf).argmax()) if may.any() else None
