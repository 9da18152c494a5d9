"""What the brain goes by, in numbers: each says its unit, and why it is what it is. Beside stage 2's (``planning.job_view.Policy``) and
stage 3's (``healing.policies``) those of a first plan, of what is seen of a job, and of what changes are taken to need."""

from __future__ import annotations

import msgspec

from dlrover_lite.brain.healing.policies import HealthPolicy
from dlrover_lite.brain.planning.job_view import Policy
from dlrover_lite.core.units import MIB

__all__ = ["USUAL", "ObservationPolicy", "Policies", "StartPolicy", "TrackingPolicy"]


class StartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a first plan goes by (``planning.prescale``)."""

    cold_cores: float = 4.0
    """The most cores that a job starts with that nothing is known of: enough to measure, and few enough to be given back soon."""
    cold_ps_share: float = 0.25
    """The PS's part of these cores: workers take most of the CPU in all models of the field."""
    cold_memory_share: float = 0.25
    """The most of what there is that all PS get together, and all workers, of such a job. The rest is for what grows."""
    cold_prior_sd: float = 1.5
    """Standard deviation of the logarithm of costs that are a guess: anything within a twentieth and twenty times of it."""
    tables_seconds: float = 10.0
    """Seconds of training, as fast as it could be, that tables have room for at the start: what grows is given more in place, within a
    second (``master.autoscale.filling_servers``)."""
    warm_tables_seconds: float = 20.0
    """The same of a job like past ones, whose costs say how fast it can be with all cores that it may have: its own tables tell more by
    then than those of others, which may have other ids."""
    new_ids_share: float = 0.1
    """Share of the ids that are read which are new ones: of click logs, a few in a hundred after the first minute."""
    least_tables_bytes: int = 256 * MIB
    """Least bytes of all tables: a small one grows at once."""
    usual_tables: int = 26
    """Number of tables that a person's own model is taken to have: that of Criteo's fields."""
    built_in_bytes: int = 512 * MIB
    """Bytes of a worker beside its minibatches, of a built-in model: it takes 45 to 70 MiB, the rest is for what reads the data."""
    own_model_bytes: int = 2048 * MIB
    """The same of a person's own model, which may have any dense parameters. All PS have these together, too."""
    minibatch_copies: int = 16
    """Times that a worker holds the rows of a minibatch: values and gradients, of each layer, of each minibatch under way."""
    heeds_past_jobs: bool = True
    """A first plan goes by jobs like it; a simulation that is to show what that brings has each begin as if there had been none."""
    smoothed_plans: int = 5
    """The most jobs whose plans the paper's policy smooths."""
    memory_half_life_seconds: float = 14 * 24 * 3600.0
    """Seconds after which what a past job's memory tells counts half as much: data changes with the weeks."""


class ObservationPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is made of a running job's profiles (``planning.observed_job``, ``planning.work_shift``). A window is what a profile is of."""

    newest_windows: int = 64
    """Number of windows that a model is fitted to, the newest: ten minutes of those of 10 s."""
    most_of_a_plan: int = 16
    """The most of these with the same plan: what other plans have shown says more than another window of the present one, of which there
    are ever more."""
    fit_every_windows: int = 4
    """Number of windows with the same plan after which a model is fitted anew, if they aren't surprising; or as many as there were, while
    there are few."""
    surprise: float = 0.1
    """Difference of the logarithm of a window's throughput from the mean of those before from which on a model is fitted anew at once."""
    half_life_seconds: float = 3600.0
    """Age at which a profile counts half. Little is lost within the minutes in which plans are compared; a day later, other guests are on
    the host, and other data is read."""
    least_sd: float = 0.01
    """Least relative standard deviation of a throughput that was measured: windows differ by more than each one's parts tell."""
    window_sd: float = 0.03
    """Relative standard deviation of a window's throughput about its plan's, as it is usual."""
    window_sd_worth: float = 2.0
    """Weight of that, as a number of windows."""
    most_plans_before: int = 32
    """The most plans of before that are remembered as measured, the newest."""
    prior_windows: int = 24
    """Number of windows since a shift until which the costs before it are the prior of the fit: what has changed is a role's work, and how
    it is made up is likely to be much the same."""
    prior_sd: float = 0.5
    """Relative standard deviation of these costs."""
    most_ps_by_speed: int = 256
    """The most PS for which the speeds of nodes are found: beside more of them as many workers are on slow hosts as ever."""
    least_compute_share: float = 0.6
    """Least share of a worker's CPU that its computing thread is taken to have: the others hold the interpreter's lock, too."""
    memory_seconds: float = 3600.0
    """The most seconds ahead for which a plan's parameter servers get memory: as long as new limits hold that a PS in need gets."""
    memory_times_so_far: float = 0.7
    """The same as a multiple of the time that what was trained so far took: tables are forecast from that, further ahead it is a guess,
    and what grows is given more in place."""
    shift_times: float = 1.5
    """Factor by which a minibatch's work has to change before what was measured until then is forgotten: what a host's other guests take
    of its caches and clock costs less."""
    shift_windows: int = 3
    """Number of windows in a row in which it has: one or two may be disturbed."""


class TrackingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a job, and what changes of it are taken to need until that was measured (``job_tracker``, ``effect``)."""

    most_profiles: int = 96
    """The most profiles that are kept; of more, every second one of the older half is dropped. A model is fitted to fewer."""
    most_levels: int = 128
    """The most levels of the PS' memory that are kept, likewise."""
    steady_seconds: float = 30.0
    """Least measured seconds since the most memory that any worker has used has risen, for it to count as steady: several looks at each."""
    steady_worker_seconds: float = 600.0
    """The same of all workers together: all do the same, so that the minibatches of each tell what others may meet. Ten minutes of one are
    thousands of minibatches, and many reads of what is read in pieces."""
    steady_share: float = 0.02
    """Share by which that may rise all the same, all together: allocators creep."""
    few_windows: int = 3
    """Number of profiles with a plan that are worth more than others: they are all that says how fast it was."""
    resize_seconds: float = 3.0
    """Seconds from when a PS was so full that it needs more memory until it has that. Used until it was measured, and as the least that is
    reckoned with."""
    least_relief_share: float = 0.1
    """Share of what all PS have that must be left for a relief in place."""
    move_start_seconds: float = 15.0
    """Seconds until another PS is there and slots begin to move to it, as far as memory is concerned."""
    move_bytes_per_second: float = 128 * MIB
    """Bytes/s at which slots move beside training, until it was measured: half of the pace that they keep to."""
    replace_seconds: float = 6.0
    """Seconds until another node has taken over from one that is slow, until it was measured."""
    scale_seconds: float = 2.0
    """Seconds of training that a change costs, until it was measured."""
    change_seconds: float = 4.0
    """Seconds from a decision until a change of the plan has taken effect, until it was measured."""
    rejected_seconds: float = 600.0
    """Seconds for which a plan isn't wanted again that a person has rejected."""
    given_up_seconds: float = 60.0
    """Seconds for which a plan isn't wanted again that couldn't be carried out: what was in its way may be gone by then."""
    changes_plans: bool = True
    """Plans of jobs that run are changed; a simulation that is to show what that brings has each job keep the one that it begins with."""
    newest_measured: int = 5
    """Number of the newest changes whose mean time and cost are reckoned with."""
    judged_after_windows: int = 2
    """Number of windows measured with a new plan before what it brought is judged."""
    much_missed_share: float = 0.25
    """A prediction that is off by more than this share, and outside of its own band, missed by much."""
    most_doubt: float = 4.0
    """The most that bands are widened by misses."""
    doubted_effects: int = 5
    """Number of the newest changes by which bands are widened."""


class Policies(msgspec.Struct, frozen=True, kw_only=True):
    """All that the brain goes by."""

    planning: Policy | None = None
    """Stage 2's; None: the usual one, with what the person prefers."""
    health: HealthPolicy = HealthPolicy()
    start: StartPolicy = StartPolicy()
    observation: ObservationPolicy = ObservationPolicy()
    tracking: TrackingPolicy = TrackingPolicy()
    decide_seconds: float | None = None
    """Least seconds between two looks at the plans of jobs that run; None: as the person prefers. A simulation has a fixed one, so that
    what it finds depends on nobody's preferences; what is reported in between is only kept, but for nodes in trouble."""


USUAL = Policies()
