"""From what would be best to what is done: who changes, who stays, who tries something.

A change needs the lower end of its gain's 80% band above zero; undoing one needs measurements that it was made without; trying plans that
nothing yet says are better has a budget, a share of the job's expected time, and has to be worth what it costs (``exploration``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Literal, NamedTuple

import numpy as np

from dlrover_lite.brain.models.fitted_model import shares_cores
from dlrover_lite.brain.planning.admission import aged_priority
from dlrover_lite.brain.planning.allowed_changes import as_good, floor_of, restrained, vetoed, withheld
from dlrover_lite.brain.planning.exploration import best_exploration, failed, under_way
from dlrover_lite.brain.planning.greedy import (
    Walk,
    cheapest_as_good,
    fewest_nodes,
    soonest,
    stairs_from_nothing,
    stairs_of,
)
from dlrover_lite.brain.planning.job_view import Action, Exploration, Policy
from dlrover_lite.brain.planning.plan_grid import to_milli
from dlrover_lite.brain.planning.plan_values import Options, reading_all, reading_limit, worth, worth_of_beginning
from dlrover_lite.core.units import Resources

__all__ = ["Settled", "Verdict", "may_wait", "settle"]

Cause = Literal["", "fixed", "spare", "exchange", "taken", "no place", "tried", "back", "unsettled"]
"""What decided, where numbers alone don't say it: the plan isn't to be changed; fewer cores do as well; an exchange between jobs that isn't
surely worth it; others take cores, or there are fewer; on no host is there a place for a node of the better plan; the present plan is
tried, and that isn't over; it was tried, and isn't better than the one before; the job's work may have changed, which is to be measured
first."""


class Verdict(NamedTuple):
    at: int
    """Position in the job's options."""
    action: Action
    cause: Cause = ""
    better: int | None = None
    """Position of a better plan that the job may not be changed to."""
    exploration: Exploration | None = None
    """The try that begins with the plan."""


class Settled(NamedTuple):
    verdicts: Mapping[str, Verdict]
    free: Resources
    """Resources that are left over."""
    rejected: Mapping[str, float]
    """Seconds that each job would have gained at the least by an exchange that wasn't surely worth it; empty: there was none."""
    held: tuple[str, ...] = ()
    """Jobs that wait, though their smallest plans would fit: others end so much sooner by their cores."""


def may_wait(options: Sequence[Options], policy: Policy) -> dict[str, float]:
    """Find the jobs that are to wait, though their smallest plans fit, where others end so much sooner by their cores; with what it is
    worth that they begin, to end some time rather than never. Nobody waits for that once none may pass him any more
    (``Policy.reserve_after_seconds``), nor once others make room for him: who has given way has done so for him."""
    if policy.rho <= 1.0 or len(options) == 1:
        return {}
    return {
        one.view.job: worth_of_beginning(aged_priority(one.view, policy), one.seconds(one.minimum), policy.rho)
        for one in options
        if one.now is None and not one.view.room_promised and one.view.waited_seconds < policy.reserve_after_seconds
    }


def settle(
    options: Sequence[Options],
    capacity: Resources,
    policy: Policy,
    *,
    alone: bool,
    forced: bool,
    beginnings: Mapping[str, float] | None = None,
) -> Settled:
    """Choose the plans of all admitted jobs. ``alone``: this is the only job there is. ``forced``: others were let in or put out, so that
    plans may have to shrink. ``beginnings``: jobs that may be told to wait, with what it is worth that they begin. The smallest plans of
    all together fit into ``capacity``."""
    beginnings = beginnings or {}
    fixed = {one.view.job: one.now for one in options if one.view.fixed and one.now is not None}
    whole = {one.view.job: one for one in options}
    free = [one if one.view.job in fixed else restrained(one, policy) for one in options]
    floors = _floors(free, fixed, capacity, policy)
    walk = _walk(free, capacity, fixed, floors, beginnings, policy, alone=alone)
    _leave_alone(walk)
    rejected: dict[str, float] = {}
    worth_it = forced or alone or _worth_it(walk, whole, policy)
    if not worth_it and (kept := _nobody_loses(free, fixed, capacity)):
        rejected = {job: float(whole[job].least_gain[at]) for job, at in walk.chosen.items()}
        walk = _walk(free, capacity, fixed, kept, beginnings, policy, alone=alone)
    _let_in(walk, beginnings)
    saving = _save(walk, whole, fixed.keys(), policy, alone=alone)
    _grow_in_place(walk, whole, fixed.keys(), policy)
    causes: dict[str, Cause] = {job: "exchange" for job, at in walk.chosen.items() if rejected and at == whole[job].now}
    causes.update(dict.fromkeys(fixed, "fixed"))
    causes.update(dict.fromkeys(saving, "spare"))
    verdicts = {
        job: _verdict(one, walk, causes.get(job, ""), policy) for job, one in whole.items() if job in walk.chosen
    }
    held = tuple(job for job in whole if job not in walk.chosen)
    return Settled(verdicts, Resources(walk.free_milli / 1000, walk.free_memory), rejected, held)


def _let_in(walk: Walk, beginnings: Mapping[str, float]) -> None:
    """Let jobs begin with what nobody else takes: those first for which it is worth the most."""
    for job in sorted(beginnings.keys() - walk.chosen.keys(), key=lambda job: (-beginnings[job], job)):
        if walk.has_room(job, walk.options[job].minimum):
            walk.move(job, walk.options[job].minimum)


def _walk(
    options: Sequence[Options],
    capacity: Resources,
    pinned: Mapping[str, int],
    floors: Mapping[str, int],
    beginnings: Mapping[str, float],
    policy: Policy,
    *,
    alone: bool,
) -> Walk:
    stairs = {
        one.view.job: stairs_from_nothing(one, beginnings[one.view.job])
        if one.view.job in beginnings
        else stairs_of(one, floors.get(one.view.job))
        for one in options
    }
    walk = Walk(options, capacity, stairs, pinned, floors, beginnings)
    for job, one in walk.options.items():
        if job in pinned or job not in walk.chosen:
            continue
        if alone and walk.has_room(job, best := soonest(one, capacity)):
            walk.move(job, best)
        if walk.chosen[job] != one.now and not (one.view.guessed and one.now is None):
            cheapest = cheapest_as_good(one, walk.chosen[job], policy.tie_share)
            walk.move(job, fewest_nodes(one, cheapest, policy.fewer_nodes_share))
    return walk


def _floors(
    options: Sequence[Options], pinned: Mapping[str, int], capacity: Resources, policy: Policy
) -> dict[str, int]:
    """Find the plans that jobs keep at the least whose last change is too fresh to be undone: the most important first, as far as all
    others can have their smallest."""
    milli, memory = to_milli(capacity.cores), capacity.memory
    for one in options:
        base = pinned.get(one.view.job, one.minimum)
        milli -= int(one.points.milli[base])
        memory -= int(one.memory[base])
    floors = {}
    for one in sorted(options, key=lambda one: (-one.view.priority, one.view.job)):
        if one.view.job in pinned or (floor := floor_of(one, policy)) is None:
            continue
        cores_more = int(one.points.milli[floor] - one.points.milli[one.minimum])
        memory_more = int(one.memory[floor] - one.memory[one.minimum])
        if cores_more <= milli and memory_more <= memory:
            floors[one.view.job] = floor
            milli -= cores_more
            memory -= memory_more
    return floors


def _better_but_for(one: Options, walk: Walk, policy: Policy) -> int | None:
    """Find the best plan that the job could have beside the others, if it may not be changed to that."""
    job = one.view.job
    here = walk.chosen[job]
    room = one.points.milli <= walk.milli(job) + walk.free_milli
    room &= one.memory <= walk.memory(job) + walk.free_memory
    better = vetoed(one, policy) & room & (one.gain > one.gain[here] + policy.tie_share * one.stay_seconds)
    return int(np.where(better, one.gain, -np.inf).argmax()) if better.any() else None


def _save(
    walk: Walk, options: Mapping[str, Options], fixed: Set[str], policy: Policy, *, alone: bool
) -> frozenset[str]:
    """Give a job that stays as it is, and is as fast with much less, that; returns which ones. One that is not alone keeps what nobody else
    gains by, unless reading is what limits it: then cores surely make no difference, and less has to be measured before a change is undone
    by that."""
    found = set()
    for job, one in options.items():
        if one.now is None or walk.chosen[job] != one.now or job in fixed or failed(one) is not None:
            continue
        reads_all = reading_limit(one.view, float(one.points.throughput[one.now])) is not None
        if not alone and not reads_all:
            continue
        withhold = withheld(one, policy.saving_windows) if reads_all else vetoed(one, policy)
        candidates = one
        if reads_all:
            candidates = reading_all(one)
            withhold |= candidates.points.throughput < (1 - policy.saving_share) * _most_measured(one)
            candidates = candidates._replace(gain=np.where(withhold, -np.inf, candidates.gain))
        withhold[one.now] = False
        tie_share = policy.saving_share if reads_all else policy.tie_share
        most_loss = policy.reading_risk if reads_all else policy.saving_risk
        at = cheapest_as_good(candidates, one.now, tie_share, most_loss=most_loss)
        saved = int(one.points.milli[one.now] - one.points.milli[at])
        if saved >= policy.least_saving * one.points.milli[one.now] and not withhold[at]:
            walk.move(job, at)
            found.add(job)
    return frozenset(found)


def _grow_in_place(walk: Walk, options: Mapping[str, Options], fixed: Set[str], policy: Policy) -> None:
    """Give cores that nobody uses to jobs whose present plan isn't measured yet, where all of a job's nodes share what it has: with the
    same nodes and more cores it surely is no slower, and there is nothing to wait for. Who gains most by that comes first."""
    jobs = [
        job
        for job, one in options.items()
        if one.view.unmeasured and job not in fixed and walk.chosen[job] == one.now and shares_cores(one.view.model)
    ]
    while walk.free_milli > 0 and jobs:
        found = [
            (float(options[job].value[at]), job, at)
            for job in jobs
            if (at := _best_in_place(walk, job, policy.tie_share)) is not None and options[job].gain[at] > 0
        ]
        if not found:
            return
        _, job, at = max(found)
        walk.move(job, at)
        jobs.remove(job)


def _best_in_place(walk: Walk, job: str, tie_share: float) -> int | None:
    """Find the plan with the job's present nodes, and more cores, that it ends soonest with; of those about as fast the largest, as nobody
    else has the cores, and what limits the job isn't sure before it was measured. None: none is there, or has room."""
    one = walk.options[job]
    assert one.now is not None
    points, here = one.points, one.now
    may = (points.workers == points.workers[here]) & (points.servers == points.servers[here])
    may &= (points.milli > points.milli[here]) & (points.milli <= points.milli[here] + walk.free_milli)
    may &= (one.memory <= one.memory[here] + walk.free_memory) & (points.throughput > points.throughput[here])
    if not may.any():
        return None
    good = may & (points.throughput >= (1 - tie_share) * points.throughput[may].max())
    return int(np.where(good, points.milli, -1).argmax())


def _most_measured(one: Options) -> float:
    """Return the most samples/s that were measured with any plan of a job that runs."""
    assert one.now is not None
    return max(
        float(one.points.throughput[one.now]), *(plan.throughput.expected for plan in one.view.measured_before), 0.0
    )


def _leave_alone(walk: Walk) -> None:
    """Let jobs keep their plan where nobody uses what a slower one would free: those that would lose most first."""
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


def _worth_it(walk: Walk, options: Mapping[str, Options], policy: Policy) -> bool:
    """Say whether the changes together are worth something at the lower ends of their bands."""
    total = 0.0
    for job, at in walk.chosen.items():
        one = options[job]
        if one.now is None:
            return True
        total += float(worth(one.view.priority, one.stay_seconds, one.least_gain[at : at + 1], policy.rho)[0])
    return total > 0


def _nobody_loses(options: Sequence[Options], pinned: Mapping[str, int], capacity: Resources) -> dict[str, int]:
    """Find for each job that runs a plan as good as its present one, from which on all may still gain; empty if there isn't room for
    these."""
    kept, milli, memory = {}, to_milli(capacity.cores), capacity.memory
    for one in options:
        if one.now is None:
            continue
        at = pinned.get(one.view.job, as_good(one))
        kept[one.view.job] = at
        milli -= int(one.points.milli[at])
        memory -= int(one.memory[at])
    return kept if milli >= 0 and memory >= 0 else {}


def _verdict(one: Options, walk: Walk, cause: Cause, policy: Policy) -> Verdict:
    at = walk.chosen[one.view.job]
    if one.now is None:
        return Verdict(at, "start", cause, _better(one, walk, cause, policy))
    back = failed(one)
    if at != one.now:
        if at == back:
            return Verdict(at, "change", "back")
        better = _better(one, walk, cause, policy)
        return Verdict(at, "change", cause if cause or one.gain[at] > 0 else "taken", better)
    if one.view.fixed or one.view.unmeasured:
        return Verdict(at, "stay", "fixed")
    if one.view.suspected is not None:
        return Verdict(at, "stay", "unsettled")
    if under_way(one):
        return Verdict(at, "stay", "tried")
    if back is not None and walk.has_room(one.view.job, back):
        walk.move(one.view.job, back)
        return Verdict(back, "change", "back")
    better = _better(one, walk, cause, policy)
    if (found := _to_explore(one, walk, policy)) is not None:
        at, exploration = found
        walk.move(one.view.job, at)
        return Verdict(at, "explore", cause, None if better == at else better, exploration)
    return Verdict(at, "stay", cause, better)


def _better(one: Options, walk: Walk, cause: Cause, policy: Policy) -> int | None:
    return None if cause else _better_but_for(one, walk, policy)


def _to_explore(one: Options, walk: Walk, policy: Policy) -> tuple[int, Exploration] | None:
    """Find the plan near the present one that is most worth a try, if that fits into what is left over and into the budget. What was
    measured isn't tried, nor is anything where reading is the limit: no plan is faster then."""
    assert one.now is not None
    view, points, change = one.view, one.points, one.view.last_change
    if change is not None and change.fresh_windows < policy.reversal_windows:
        return None
    if view.measured is not None and reading_limit(view, view.measured.expected) is not None:
        return None
    job, now = view.job, points.candidate(one.now)
    may = (points.milli <= walk.milli(job) + walk.free_milli) & (one.memory <= walk.memory(job) + walk.free_memory)
    for axis, here in ((points.workers, now.workers), (points.servers, now.servers)):
        may &= (axis <= here * policy.exploration_step) & (axis * policy.exploration_step >= here)
    for size, its in ((points.worker_cores, now.worker_cores), (points.ps_cores, now.ps_cores)):
        may &= (size <= its * policy.exploration_step) & (size * policy.exploration_step >= its)
    may[one.now] = False
    for known in (*view.declined, *(its.plan for its in view.measured_before)):
        may &= ~points.are(known)
    budget = policy.exploration_share * (view.ran_seconds + one.stay_seconds) - view.explored_seconds
    return best_exploration(one, may, budget, policy) if budget > 0 else None
