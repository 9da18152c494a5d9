"""What stage 3 goes by: when something is amiss, and what may be done. Each number says why it is what it is."""

from __future__ import annotations

import msgspec

__all__ = ["CeilingPolicy", "HealthPolicy", "ReclaimPolicy", "ReliefPolicy", "SlowNodePolicy", "SlowdownPolicy"]


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


class SlowNodePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a node one that holds its job up, and what is worth doing about it. Shares are parts of 1."""

    least_share_moved: float = 0.05
    """Least share of a PS's load that is worth moving: loads differ by as much by chance."""
    least_usual_windows: int = 3
    """Least number of windows before the present trouble that say what a PS takes usually."""
    most_usual_windows: int = 24
    """The most of these: four minutes of windows of 10 s."""
    in_a_row_seconds: float = 12.0
    """Least seconds that windows in a row take together: some are short, to see what has just changed."""
    replacement_worth: float = 0.5
    """Least seconds that a replacement has to save, as a part of the seconds that it takes to come: what it takes for that is taken from
    others."""
    least_more_cores: float = 1.2
    """Least factor of the cores that a node gets over those that it has, where its limit holds it back: less isn't worth a change."""
    uses_its_limit: float = 0.6
    """Least share of its cores that a node uses, if it is the limit that holds it back, and not what else happens on its host."""
    evidence_alone: float = 3.0
    """Factor on the evidence for a PS without peers: what the job itself does now may be the reason that it takes longer."""
    busy_if_slow: float = 0.5
    """Factor on the least time that a hot PS works, for one on a slow host: it is as slow at all that it does between requests."""
    mostly_here: float = 2.0
    """Least factor of what is asked of a PS over the median of its peers, for the job to wait for this one."""
    slower_job: float = 1.2
    """Least factor of the time of a minibatch over that before, for the job to count as slower: plans differ by as much from hour to
    hour on a shared machine."""


class ReliefPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How much more memory a PS gets before it is full. Shares are parts of 1."""

    times_ahead: float = 2.0
    """How long a new limit is to hold, as a multiple of the time that is looked ahead."""
    filled: float = 0.9
    """Share of a limit that rows may take after a move."""
    least_share_moved: float = 0.1
    """Least share of a PS's rows that is worth moving, and of its limit that is worth adding."""
    least_cores_share: float = 0.25
    """Least share of a PS's cores that another one gets which takes some of its rows, where no host has as many left."""
    times_to_act: float = 1.5
    """How long a new limit is to hold, as a multiple of the time that another relief would need."""
    young_seconds: float = 3.0
    """Seconds of training, at its present rate, from which nobody can tell how rows grow: with what is given in place then for 99 of 100
    courses a PS would have many times what it needs. Its master sees to it meanwhile that it isn't full
    (``master.autoscale.filling_servers``)."""
    oldest_seconds: float = 10.0
    """The most seconds that a job is taken to have gone on as fast as it did, after something was heard of it last."""
    least_more: float = 1.05
    """Least factor of a new limit over the present one of a PS in need: a little more than is needed, rather than again and again."""


class ReclaimPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How much memory nodes keep of which some is taken back."""

    sure: float = 0.99
    """Quantile of what a PS may need that it keeps: what is missing in the other one of a hundred is given back within a second."""
    headroom: float = 1.12
    """Factor on that quantile, snapshots aside, so that a PS isn't given more again as soon as it needs what was foreseen."""
    spill_headroom: float = 1.07
    """The same with what snapshots may need at the most: that is room for more rows, too, as a snapshot never takes more than half of what
    a PS has left (``master.checkpoints``). With less than 6.4% the PS would be in need at once (``HealthPolicy.act_on_oom``)."""
    most_over_expected: float = 1.38
    """The most that a new limit may be over what is expected, as a factor: where more has to be kept, it will be lowered again soon, and
    that is worth it only for much. Memory is to be no more than 1.4 times what is used at the peak."""
    unsure_share: float = 0.5
    """Least part of its limit that is taken from a PS then: a first limit may be many times what 99 of 100 courses need."""
    least_levels: int = 3
    """Least number of levels that such a forecast follows from: two points tell no curve."""
    over_used: float = 1.15
    """Least factor of a new limit over what is in use: a limit that would nearly be full is refused."""
    over_peak: float = 1.06
    """Factor of a new limit over the most that a PS has used, which snapshots need now and then."""
    most_by_peak: float = 1.25
    """The most by which that peak may raise a limit, as a factor: the PS may have had more slots then."""
    worker_share: float = 0.05
    """Least part of its limit that is taken from a worker: that takes a moment, and what a worker uses stays as it is."""
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
    """Least factor by which a hot PS works longer on each minibatch than it used to, its peers doing as they did."""
    evidence: float = 4.0
    """Evidence that a node has got slower than it was, as ``slowing`` counts it, that is needed to act before so many windows are over: a
    node that takes four times as long has it after 2.1 s, one that takes twice as long after 8 s."""
    least_excess: float = 0.1
    """Least part of a hot PS's work that goes to its peers, for all to work as long: to move slots takes a moment, and all that wait for it
    gain by it for the rest of the job. Loads that are even differ by half as much."""
    throttled: float = 0.1
    """Share of the time that a node is held back by its limit above which it needs more cores."""
    act_on_oom: float = 0.02
    """Chance of running out of memory before a relief takes effect from which on a relief is begun."""
    act_on_oom_by_end: float = 0.5
    """Chance of running out of memory before the job ends from which on a relief is begun, if it is likely to happen within
    ``ahead_seconds``."""
    ahead_seconds: float = 1800.0
    """Seconds that memory is looked ahead. New limits hold for twice as long, at least."""
    ahead_share: float = 0.35
    """How far memory is looked ahead at most, as a multiple of what has been trained so far: tables are forecast from that, and a limit in
    place takes seconds to raise, for which ``act_on_oom`` sees to it that it is done in time."""
    spare_windows: int = 1
    """Number of profiles in a row of the nodes that run now after which memory may be taken from a node."""
    spare_share: float = 0.1
    """Least part of its limit that is taken from a PS: it has to be tidied up for it, and may need more again as its tables grow."""
    spare_again_seconds: float = 60.0
    """Seconds since memory was given to a node or taken from it last, before any is taken."""
    most_replacements: int = 3
    """The most slow nodes of a role that are replaced in one job."""
    horizon_seconds: float = 3600.0
    """Remaining seconds that are assumed of a job that doesn't say how much work is left."""
    least_seconds_left: float = 3.0
    """Least seconds that a job has left where a node's cores are changed, or slots moved: it takes about as long until that is done."""
    slowdown: SlowdownPolicy = SlowdownPolicy()
    nodes: SlowNodePolicy = SlowNodePolicy()
    relief: ReliefPolicy = ReliefPolicy()
    reclaim: ReclaimPolicy = ReclaimPolicy()
    ceiling: CeilingPolicy = CeilingPolicy()
