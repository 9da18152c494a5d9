"""Which plans a running job may be changed to, before anybody shares anything: it doesn't depend on what others get, nor on priorities.

A change needs the lower end of its gain's 80% band above zero; undoing the last one needs measurements that it was made without; and what
was refused a short while ago isn't wanted again for now. A plan that is tried is kept until the try is over. A job that ends sooner than a
change would take effect keeps what it has.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.brain.models.fitted_model import shares_cores
from dlrover_lite.brain.planning.exploration import failed, under_way
from dlrover_lite.brain.planning.job_view import JobView, Policy
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.planning.plan_values import Options, worth
from dlrover_lite.core.words import plural

__all__ = ["as_good", "floor_of", "kept_to_its_end", "restrained", "veto", "vetoed", "withheld"]

Mask = NDArray[np.bool_]
_SIZES_AND_COUNTS = "workers", "servers", "worker_cores", "ps_cores"
_NO_GAIN = -1e-9
"""Gain in seconds that is less than staying brings."""


def vetoed(one: Options, policy: Policy) -> Mask:
    """Find the plans that the job may not be changed to of its own accord, [n]; never the present one."""
    if one.now is None:
        return np.zeros(len(one.gain), np.bool_)
    found = withheld(one, policy.reversal_windows) | ((one.gain > 0) & (one.least_gain <= 0))
    found[one.now] = False
    return found


def withheld(one: Options, windows: int) -> Mask:
    """Find the plans of a job that runs which would undo its last change before as many ``windows`` were measured, or end a try, or were
    refused a short while ago; all while the job's work may have changed, or its plan hasn't been measured, [n]. What others needed isn't
    undone by being had again, nor a try by the way back from it. A try is ended for plans of more cores than it is about: none of these
    surely paid, and found room, when it began."""
    assert one.now is not None
    points, view, found = one.points, one.view, np.zeros(len(one.gain), np.bool_)
    if view.suspected is not None or view.unmeasured:
        return ~found
    if view.exploration is not None and under_way(one):
        found = points.milli <= max(points.milli[one.now], points.milli[points.are(view.exploration.back)].max())
    for refused in view.declined:
        found |= points.are(refused)
    change = view.last_change
    if change is None or change.taken or change.fresh_windows >= windows:
        return found
    left, now = change.left, points.candidate(one.now)
    for axis in _axes(view):
        went = getattr(now, axis) - getattr(left, axis)
        found |= went * (getattr(points, axis) - getattr(now, axis)) < 0
    if (back := failed(one)) is not None:
        found[back] = False
    return found


def _axes(view: JobView) -> tuple[str, ...]:
    """List what of a plan a change may undo. Where nodes share their cores, it is no matter which of them brings these."""
    return ("workers", "servers", "milli") if shares_cores(view.model) else _SIZES_AND_COUNTS


def kept_to_its_end(one: Options) -> JobView:
    """Return the job's view; with its plan fixed, and as one that can't give way, if it ends sooner than a change would take effect."""
    view, lasts = one.view, max(one.view.scale_seconds, one.view.change_seconds)
    if one.now is None or view.remaining_samples is None or one.stay_seconds >= lasts:
        return view
    words = f"it ends in {one.stay_seconds:.0f} s, sooner than a change would take effect"
    return msgspec.structs.replace(view, fixed=True, held=view.held or words, stays=view.stays or words)


def restrained(one: Options, policy: Policy) -> Options:
    """Return the same options, in which plans that are ``vetoed`` are worth what they surely bring, and never as much as to stay: a job
    whose cores others need can still come to them."""
    mask = vetoed(one, policy)
    if not mask.any():
        return one
    sure = np.minimum(one.least_gain, _NO_GAIN)
    gain = np.where(mask, sure, one.gain)
    value = worth(one.view.priority, one.stay_seconds, gain, policy.rho)
    return one._replace(gain=gain, least_gain=np.where(mask, sure, one.least_gain), value=value)


def floor_of(one: Options, policy: Policy) -> int | None:
    """Find what a job keeps at the least whose smallest plan would undo its last change, or was refused: ``as_good``; None: its smallest
    plan will do. ``one``: restrained."""
    if one.now is None or one.now == one.minimum or not withheld(one, policy.reversal_windows)[one.minimum]:
        return None
    return as_good(one)


def as_good(one: Options) -> int:
    """Find the cheapest plan that is as good as the present one, and needs no more memory. ``one``: restrained, of a job that runs."""
    assert one.now is not None
    good = (one.gain >= 0) & (one.memory <= one.memory[one.now])
    return int(np.where(good, one.points.milli, np.iinfo(np.int64).max).argmin())


def veto(one: Options, at: int, policy: Policy) -> str:
    """Say why the job may not be changed to that plan of its own accord; "" if it may."""
    if one.now is None or at == one.now:
        return ""
    change, wanted = one.view.last_change, one.points.candidate(at)
    now = one.points.candidate(one.now)
    fresh = change is not None and not change.taken and change.fresh_windows < policy.reversal_windows
    if change is not None and fresh and _undoes(change.left, now, wanted, _axes(one.view)):
        measured = plural(change.fresh_windows, "interval")
        return (
            f"{wanted.describe()} would save {one.gain[at]:.0f} s, but would undo the last change "
            f"(it had {change.left.describe()} before): for that, {policy.reversal_windows} intervals have to be measured, "
            f"and so far it is {measured}"
        )
    if wanted in one.view.declined:
        return f"{wanted.describe()} would save {one.gain[at]:.0f} s, but was refused a short while ago"
    if one.gain[at] > 0 and one.least_gain[at] <= 0:
        return (
            f"{wanted.describe()} would save {one.gain[at]:.0f} s by the model, but that isn't certain: "
            f"at the lower end of its 80% band it loses {-one.least_gain[at]:.0f} s"
        )
    return ""


def _undoes(left: Candidate, now: Candidate, wanted: Candidate, axes: tuple[str, ...]) -> bool:
    """Say whether ``wanted`` goes back, on some axis, from where the change from ``left`` to ``now`` went."""
    return any(
        (getattr(now, axis) - getattr(left, axis)) * (getattr(wanted, axis) - getattr(now, axis)) < 0 for axis in axes
    )
