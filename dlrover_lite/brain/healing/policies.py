"""What stage 3 goes by: when something is amiss, and what may be done. Each number says why it is what it is."""

from __future__ import annotations

import msgspec

__all__ = ["CeilingPolicy", "HealthPolicy", "ReclaimPolicy", "SlowdownPolicy"]


class SlowdownPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a node that has got slower than it was from noise."""

    most_windows: int = 24
    """The most windows that are looked at, the newest ones: four minutes of those of 10 s, after which slowness is usual."""
    most_seconds: float = 40.0
    """The most seconds that slow windows take together: longer ones are usual, and not a change any more."""
    least_seconds: float = 2.4
    """Least seconds that slow windows take together: anything may pause for a moment, a collection of garbage or a full disk buffer."""
    least_minibatches: float = 6.0
    """Least number of minibatches that the node would have done meanwhile at its usual rate: the mean of six is off by a sixth of one."""
    least_done: int = 2
    """Least number of minibatches in each window: a node that does nothing at all may be waiting, and is not slow."""
    usual_seconds: float = 4.0
    """Least seconds that say what is usual: more than those that say that it isn't so any more."""
    usual_windows: int = 6
    """The most windows that say what is usual: a minute of those of 10 s, in which a machine's pace hardly drifts."""
    most_times: float = 8.0
    """How many times slower a node counts as at most: slower than that is no more sure."""


class ReclaimPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How much memory nodes keep of which some is taken back."""

    sure: float = 0.99
    """Quantile of what a PS may need that it keeps: what is missing in the other one of a hundred is given back within a second."""
    headroom: float = 1.12
    """Factor on that quantile, so that a PS isn't given more again as soon as it needs what was foreseen."""
    most_over_expected: float = 1.38
    """The most that a new limit may be over what is expected, as a factor: where more would have to be kept, nothing is sure enough. Memory
    is to be no more than 1.4 times what is used at the peak."""
    over_used: float = 1.15
    """Least factor of a new limit over what is in use: a limit that would nearly be full is refused."""
    over_peak: float = 1.06
    """Factor of a new limit over the most that a PS has used, which snapshots need now and then."""
    most_by_peak: float = 1.25
    """The most by which that peak may raise a limit, as a factor: the PS may have had more slots then."""
    least_seconds_left: float = 15.0
    """Least seconds that a job has left where memory is taken back: one that is done sooner gives all of it back anyway."""


class CeilingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How far ahead memory that a job can never have is looked for."""

    least_levels: int = 3
    """Least number of levels that a forecast so far ahead follows from: two points tell no curve."""
    times_so_far: float = 10.0
    """How far is looked ahead at most, as a multiple of what was trained so far: the forecast's band has doubled by then."""
    steps: int = 24
    """Number of steps in which the moment is looked for at which the parameter servers are full: it is told in two digits."""


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When something is amiss, and what may be done. Shares are parts of 1."""

    windows: int = 3
    """Number of profiles, one after the other, in which trouble has to be seen, unless it came all at once."""
    slow_below: float = 0.6
    """Share of what its peers' rates let expect below which a worker is slow."""
    hot_busy: float = 0.6
    """Least share of the time that a hot PS works."""
    hot_queue: float = 0.3
    """Least mean number of requests that wait for a hot PS."""
    hot_over_peers: float = 1.5
    """Least factor by which a hot PS is busy longer than its peers, or works longer on each minibatch than it used to."""
    evidence: float = 4.0
    """Evidence that a node has got slower than it was, as ``slowing`` counts it, that is needed to act before so many windows are over: a
    node that takes four times as long has it after 2.1 s, one that takes twice as long after 8 s."""
    uneven: float = 1.25
    """Factor on the work that a PS is due above which it has too many hot slots."""
    throttled: float = 0.1
    """Share of the time that a node is held back by its limit above which it needs more cores."""
    act_on_oom: float = 0.02
    """Chance of running out of memory before a relief takes effect from which on a relief is begun."""
    act_on_oom_by_end: float = 0.5
    """Chance of running out of memory before the job ends from which on a relief is begun, if it is likely to happen within
    ``ahead_seconds``."""
    ahead_seconds: float = 1800.0
    """Seconds that memory is looked ahead. New limits hold for twice as long, at least."""
    ahead_share: float = 1.0
    """How far memory is looked ahead at most, as a multiple of what has been trained so far: tables are forecast from that, and memory that
    was given comes back late."""
    spare_windows: int = 3
    """Number of profiles in a row of the nodes that run now after which memory may be taken from a node."""
    spare_share: float = 0.25
    """Least part of its limit that is taken from a node."""
    spare_seconds: float = 3600.0
    """Seconds for which a node should do without the memory that is taken."""
    spare_again_seconds: float = 180.0
    """Seconds since memory was given to a node or taken from it last, before any is taken."""
    most_replacements: int = 3
    """The most slow nodes of a role that are replaced in one job."""
    horizon_seconds: float = 3600.0
    """Remaining seconds that are assumed of a job that doesn't say how much work is left."""
    slowdown: SlowdownPolicy = SlowdownPolicy()
    reclaim: ReclaimPolicy = ReclaimPolicy()
    ceiling: CeilingPolicy = CeilingPolicy()
