"""Which of the jobs that were let in begin at once, and with what, while others still have the cores that they are to give up for them.

A job begins with what nobody has if it ends no later so than with what room is made for. One that is over before room could be made takes
no more than its smallest plan from anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dlrover_lite.brain.planning.change_policy import Settled
from dlrover_lite.brain.planning.job_view import Policy
from dlrover_lite.brain.planning.plan_values import Options

__all__ = ["Beginnings", "begin"]


class Beginnings(NamedTuple):
    plans: Mapping[str, int]
    """Position of each job's plan in its options."""
    early: Sequence[str]
    """Jobs that wait until others have made room, the first of the queue first."""
    smaller: bool
    """Some jobs have smaller plans than they could have: others need less room made for them."""


def begin(
    admitted: Sequence[str], options: Mapping[str, Options], settled: Settled, free_milli: int, policy: Policy
) -> Beginnings:
    """Plan the ``admitted`` jobs, in that order, that don't run yet. ``free_milli``: thousandths of a core that nobody has now. (Memory
    isn't taken from nodes that run: of that there may be less than none for a while.)"""
    plans: dict[str, int] = {}
    early = []
    smaller, free_memory = False, settled.free.memory
    for job in admitted:
        one = options[job]
        if one.now is not None:
            continue
        at = settled.verdicts[job].at
        plans[job] = at
        if one.points.milli[at] > free_milli:
            if (sooner := _sooner(one, at, free_milli, free_memory, policy)) is not None:
                plans[job] = sooner
            else:
                early.append(job)
                if one.seconds(one.minimum) <= policy.room_seconds:
                    plans[job] = one.minimum
        smaller |= plans[job] != at
        free_memory -= max(0, int(one.memory[plans[job]] - one.memory[at]))
        if job not in early:
            free_milli -= int(one.points.milli[plans[job]])
    return Beginnings(plans, early, smaller)


def _sooner(one: Options, at: int, free_milli: int, free_memory: int, policy: Policy) -> int | None:
    """Find the best plan within what is free, if the job ends no later with it than with the plan ``at`` once there is room for that."""
    fits = (one.points.milli <= free_milli) & (one.memory <= one.memory[at] + free_memory)
    best = int(np.where(fits, one.gain, -np.inf).argmax())
    return best if fits[best] and one.seconds(best) <= policy.room_seconds + one.seconds(at) else None
