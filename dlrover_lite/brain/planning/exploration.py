"""What it is worth to try a plan that was never measured, and what becomes of a try.

A plan's throughput is predicted with a band, so the seconds that it would save are a random variable too. The *expected improvement* is the
mean of what it saves where it is better than the best plan that was measured, and 0 where it isn't (Jones, Schonlau and Welch: Efficient
Global Optimization of Expensive Black-Box Functions, 1998). Throughputs are taken as log-normal, for which it has a closed form. A try
costs the change, the change back if it isn't better, and what it is slower meanwhile. The plan with the largest difference is tried.

How long a try lasts is fixed beforehand (``Exploration.seconds``): as long as it takes to tell apart what differs by as much as the plan is
expected to differ from the best one. A plan that isn't better then, or surely isn't before, is left again for the one before it; as
measured, whatever a model says of either.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.brain.planning.job_view import Exploration, Policy
from dlrover_lite.brain.planning.plan_grid import FloatArray, IntArray
from dlrover_lite.brain.planning.plan_values import Options

__all__ = [
    "Worth",
    "best_exploration",
    "expected_shortfall",
    "failed",
    "seconds_to_tell",
    "under_way",
    "worth_of_trying",
]

_OF_80_PERCENT = 1.2816
"""Half the width of a band that holds 80%, in standard deviations."""
_LEAST_SD = 1e-6
"""Least relative standard deviation of a prediction: a band of no width divides by nothing."""


class Worth(NamedTuple):
    """What trying plans of a job brings, [k] each. All in seconds, but for the chance."""

    at: IntArray
    """Positions of the plans in the job's options."""
    saves: FloatArray
    """Expected improvement."""
    chance: FloatArray
    """Chance that the plan is better than the best that was measured."""
    costs: FloatArray
    """Expected cost of the try."""
    costs_at_most: FloatArray
    """Cost of the try where the plan is as slow as the lower end of its band says."""
    try_seconds: FloatArray
    """Length of the try: seconds of intervals that are measured."""


def expected_shortfall(log_mean: FloatArray, sd: FloatArray) -> FloatArray:
    """Compute the mean of max(0, 1 - X), where the logarithm of X is normal."""
    from scipy.special import ndtr

    sd = np.maximum(sd, _LEAST_SD)
    below = -log_mean / sd
    found: FloatArray = ndtr(below) - np.exp(log_mean + sd**2 / 2) * ndtr(below - sd)
    return np.maximum(0.0, found)


def worth_of_trying(one: Options, at: IntArray, policy: Policy) -> Worth:
    """Compute what trying the plans at these positions brings to a job that runs, in what is left of it."""
    from scipy.special import ndtr

    assert one.now is not None
    view, points = one.view, one.points
    here = float(points.throughput[one.now])
    ahead = np.log(points.throughput[at] / here)
    # the best that was measured: the present plan is taken to be
    known = [float(points.throughput[points.are(its.plan)].max(initial=0.0)) for its in view.measured_before]
    best = math.log(max([here, *known]) / here)
    faster, slower = _log_sds(one, at, one.most_gain), _log_sds(one, at, one.least_gain)
    chance = ndtr((ahead - best) / faster)
    saves = one.stay_seconds * math.exp(-best) * expected_shortfall(best - ahead, faster)
    seconds = seconds_to_tell(ahead - best, policy)
    costs = view.scale_seconds * (2 - chance) + seconds * expected_shortfall(ahead, slower)
    slowest = np.maximum(0.0, 1 - points.lower[at] / here)
    return Worth(at, saves, chance, costs, 2 * view.scale_seconds + seconds * slowest, seconds)


def seconds_to_tell(ahead: FloatArray, policy: Policy) -> FloatArray:
    """Compute how long plans have to be tried that are expected to be ahead by this much, in logarithms: what is measured in a time has an
    error that goes by one over the root of it."""
    times = (policy.exploration_difference / np.maximum(np.abs(ahead), policy.exploration_difference)) ** 2
    return np.maximum(policy.exploration_seconds * times, policy.least_exploration_seconds)


def _log_sds(one: Options, at: IntArray, end: FloatArray) -> FloatArray:
    """Compute the standard deviations of the logarithms of throughputs over that of the present plan, from one ``end`` of gains' bands,
    which hold the bands of both. A plan may be much slower than expected, and not be faster than its cores allow, so the ends differ."""
    left = one.stay_seconds - np.where(at == one.now, 0.0, one.view.scale_seconds)
    times = np.abs(np.log((left - end[at]) / (left - one.gain[at])))
    return np.maximum(times / _OF_80_PERCENT, _LEAST_SD)


def best_exploration(
    one: Options, may: NDArray[np.bool_], budget: float, policy: Policy
) -> tuple[int, Exploration] | None:
    """Find the plan, of those that ``may`` be tried, that is most worth it, and make its try; None if none is. ``budget``: the most seconds
    that it may cost. What would save less than counts at all isn't worth a try."""
    assert one.now is not None
    worth = worth_of_trying(one, np.flatnonzero(may), policy)
    nets = worth.saves - worth.costs
    good = (worth.costs_at_most <= budget) & (nets > policy.tie_share * one.stay_seconds)
    if not good.any():
        return None
    best = int(np.where(good, nets, -np.inf).argmax())
    exploration = Exploration(
        back=one.points.candidate(one.now),
        seconds=float(worth.try_seconds[best]),
        saves_seconds=float(worth.saves[best]),
        chance=float(worth.chance[best]),
        costs_seconds=float(worth.costs[best]),
        costs_at_most_seconds=float(worth.costs_at_most[best]),
    )
    return int(worth.at[best]), exploration


# --- what becomes of a try --------------------------------------------------------------------------------------------


def under_way(one: Options) -> bool:
    """Say whether the job's present plan is tried, and the try isn't over: that ends it as well which leaves nothing to compare it with."""
    view, back = one.view, _back(one)
    if view.exploration is None or back is None or view.tried_seconds >= view.exploration.seconds:
        return False
    surely_worse = view.measured is not None and view.measured.upper < one.points.lower[back]
    return not (surely_worse and view.tried_seconds)


def _back(one: Options) -> int | None:
    """Find the position of the plan that the job had before its try; None: it can't have it any more, or what was measured with it says
    nothing any more."""
    exploration = one.view.exploration
    if exploration is None or all(known.plan != exploration.back for known in one.view.measured_before):
        return None
    found = one.points.are(exploration.back).nonzero()[0]
    return int(found[0]) if len(found) else None


def failed(one: Options) -> int | None:
    """Find the plan to go back to from a try that is over and hasn't shown a better plan; None: there is no such try, or the change back
    costs more than it brings."""
    back = _back(one)
    if back is None or under_way(one) or one.gain[back] <= 0:
        return None
    return back
