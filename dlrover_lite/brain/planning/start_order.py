"""Which of the jobs that were let in begin at once, and with what, while others still have the cores that they are to give up for them.

A job begins at once where nobody has what it is to have, or where others give it up quickly: limits are lower, and workers gone, by the
time that its nodes are up; a server that is to go moves its slots first. It also begins with what nobody has if it ends no later so than
with what room is made for. One that is over before room could be made takes no more than its smallest plan from anybody.

What a job leaves that begins with less than it could have is nobody's until the next round: whether there is any depends on everybody's
priority, so that who got it could end later for having a higher one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dlrover_lite.brain.planning.change_policy import Settled, Verdict
from dlrover_lite.brain.planning.job_view import JobView, Policy, held_milli
from dlrover_lite.brain.planning.plan_grid import to_milli
from dlrover_lite.brain.planning.plan_values import Options
from dlrover_lite.core.units import Resources

__all__ = ["Beginnings", "begin", "free_now", "no_more_than_free"]


class Beginnings(NamedTuple):
    settled: Settled
    """Plans of all jobs, those that begin with less than they could have among them."""
    early: Sequence[str]
    """Jobs that wait until others have made room, the first of the queue first."""


def free_now(views: Sequence[JobView], capacity: Resources) -> int:
    """Compute the thousandths of a core that no job holds just now. (Memory isn't taken from nodes that run: of that there may be less than
    none for a while.)"""
    return to_milli(capacity.cores) - sum(held_milli(view) for view in views)


def no_more_than_free(one: Options, free_milli: int, policy: Policy) -> Options:
    """Return the same options; of a job that doesn't run yet, and is over before room could be made, without the plans for which others
    would have to give up more than its smallest one needs. That doesn't depend on anybody's priority."""
    if one.now is not None or one.seconds(one.minimum) > policy.room_seconds:
        return one
    most = max(free_milli, int(one.points.milli[one.minimum]))
    may = one.points.milli <= most
    return one._replace(gain=np.where(may, one.gain, -np.inf), value=np.where(may, one.value, -np.inf))


def begin(
    admitted: Sequence[str], options: Mapping[str, Options], settled: Settled, free_milli: int, policy: Policy
) -> Beginnings:
    """Plan the ``admitted`` jobs, in that order, that don't run yet. ``free_milli``: thousandths of a core that nobody has now."""
    verdicts = dict(settled.verdicts)
    early = []
    left_milli, free_memory = to_milli(settled.free.cores), settled.free.memory
    free_milli += sum(_given_quickly(options[job], verdict.at) for job, verdict in verdicts.items())
    for job in admitted:
        one = options[job]
        if one.now is not None:
            continue
        at = wanted = verdicts[job].at
        if one.points.milli[at] > free_milli:
            if (sooner := _sooner(one, at, free_milli, free_memory, policy)) is None:
                early.append(job)
                continue
            at = sooner
            verdicts[job] = Verdict(at, "start", better=None)
        free_milli -= int(one.points.milli[at])
        left_milli += int(one.points.milli[wanted] - one.points.milli[at])
        free_memory -= int(one.memory[at] - one.memory[wanted])
    return Beginnings(settled._replace(verdicts=verdicts, free=Resources(left_milli / 1000, free_memory)), early)


def _given_quickly(one: Options, at: int) -> int:
    """Compute the thousandths of a core that a job which runs gives up before any server is gone."""
    view, wanted = one.view, one.points.candidate(at)
    has = view.changes_from or view.now
    if has is None:
        return 0
    with_servers = msgspec.structs.replace(wanted, servers=max(wanted.servers, has.servers))
    return max(0, held_milli(view) - with_servers.milli)


def _sooner(one: Options, at: int, free_milli: int, free_memory: int, policy: Policy) -> int | None:
    """Find the best plan within what is free, if the job ends no later with it than with the plan ``at`` once there is room for that."""
    fits = (one.points.milli <= free_milli) & (one.memory <= one.memory[at] + free_memory)
    best = int(np.where(fits, one.gain, -np.inf).argmax())
    return best if fits[best] and one.seconds(best) <= policy.room_seconds + one.seconds(at) else None
