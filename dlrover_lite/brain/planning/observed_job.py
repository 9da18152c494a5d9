"""A running job as stage 2 takes it, from its profiles: fitted costs, what was measured with the present plan, memory, work left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dlrover_lite.brain.models.fitted_model import KeptModel, model_data
from dlrover_lite.brain.models.memory_forecast import Forecast, TableCurve, forecast, need_of, samples_in
from dlrover_lite.brain.models.throughput import Fit, Prior, fit
from dlrover_lite.brain.models.throughput_forms import ADDITIVE, DEPTH
from dlrover_lite.brain.planning.job_view import JobView, LastChange, MeasuredPlan, WorkShift
from dlrover_lite.brain.planning.node_placement import HostSpace, node_speeds
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import MILLI, Candidate, to_milli
from dlrover_lite.brain.planning.work_shift import MinibatchCost, Shift, cost_of, last_shift, suspected_shift
from dlrover_lite.brain.policies import USUAL, ObservationPolicy
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.demands import TableFacts
from dlrover_lite.protocol.hosts import Host, HostNodes
from dlrover_lite.protocol.profiles import Level, Observation, Profile, SeenProfile, SpeedComparisons

__all__ = [
    "Chosen",
    "FitBasis",
    "KeptWindows",
    "ObservedJob",
    "Windows",
    "additive_fit",
    "candidate_of",
    "chosen_windows",
    "fit_basis",
    "observe_job",
    "observed_view",
    "trained_windows",
    "windows_sd",
]

_OF_80_PERCENT = 1.2816
"""Half the width of a band that holds 80%, in standard deviations."""


def candidate_of(profile: Profile) -> Candidate | None:
    """Find the plan that a profile was measured with, nodes of a role taken as alike; None if there was no node of a role."""
    if not profile.workers or not profile.ps:
        return None
    worker, ps = (
        to_milli(sum(use.cores for use in uses) / len(uses)) / MILLI for uses in (profile.workers, profile.ps)
    )
    return Candidate(len(profile.workers), len(profile.ps), worker, ps)


class KeptWindows:
    """What a job's profiles tell each by itself, by time: the plan, and, on hosts of one speed, an observation and costs."""

    def __init__(self) -> None:
        self._plans: dict[float, Candidate | None] = {}
        self._seen: dict[float, SeenProfile | None] = {}
        self._costs: dict[float, MinibatchCost] = {}
        self.comparisons = SpeedComparisons()

    def forget(self, profiles: Sequence[Profile]) -> None:
        """Forget all profiles but these."""
        times = {profile.at for profile in profiles}
        for kept in (self._plans, self._seen, self._costs):
            for at in kept.keys() - times:
                del kept[at]
        self.comparisons.forget(times)

    def plan(self, profile: Profile) -> Candidate | None:
        if profile.at not in self._plans:
            self._plans[profile.at] = candidate_of(profile)
        return self._plans[profile.at]

    def observation(self, profile: Profile, speeds: Mapping[str, float]) -> Observation | None:
        if profile.at not in self._seen:
            self._seen[profile.at] = SeenProfile.of(profile)
        if (seen := self._seen[profile.at]) is None:
            return None
        return seen.observation(speeds) if _are_uneven(speeds) else seen.even

    def cost(self, profile: Profile, speeds: Mapping[str, float]) -> MinibatchCost:
        if _are_uneven(speeds):
            return cost_of(profile, speeds)
        if profile.at not in self._costs:
            self._costs[profile.at] = cost_of(profile, {})
        return self._costs[profile.at]


def _are_uneven(speeds: Mapping[str, float]) -> bool:
    return any(speed != 1.0 for speed in speeds.values())


class ObservedJob(NamedTuple):
    """What a job's profiles tell of it, whatever else goes on: it holds until there is another profile."""

    fit: Fit
    forecast: Forecast | None
    last: Profile
    measured: Band
    """Samples/s with the present plan."""
    measured_before: tuple[MeasuredPlan, ...]
    last_change: LastChange | None
    host_speeds: Mapping[str, float]
    """Speed of a core of each host that the job has been on, 1 being their mean."""
    shift: WorkShift | None = None
    suspected: WorkShift | None = None
    """A shift that only the newest windows speak of."""
    additive: Fit | None = None
    """The paper's model, fitted to the same windows; None: it wasn't asked for."""
    fitted_at: float = 0.0
    """Time of the last profile that the model was fitted to."""


class FitBasis(NamedTuple):
    """What a job's model is fitted to, and with."""

    observations: list[Observation]
    prior: Prior | None
    depth: float
    compute_share: float | None

    def fit(self, observations: Sequence[Observation] | None = None) -> Fit:
        """Fit the model. ``observations``: to these alone."""
        seen = self.observations if observations is None else observations
        return fit(seen, prior=self.prior, depth=self.depth, compute_share=self.compute_share)


def observe_job(
    profiles: Sequence[Profile],
    *,
    prior: Prior | None = None,
    depth: float = DEPTH,
    epoch_samples: float | None = None,
    curves: Sequence[TableCurve] = (),
    spill_part: float = 0.0,
    facts: TableFacts | None = None,
    levels: Sequence[Level] = (),
    additive: bool = False,
    windows: KeptWindows | None = None,
    before: ObservedJob | None = None,
    policy: ObservationPolicy = USUAL.observation,
) -> ObservedJob | None:
    """Fit and forecast from profiles, by time; None if nothing was trained yet. ``prior``: from jobs like it (stage 1); ``depth``: of its
    workers' pipelines; ``levels``: what its PS held; empty: as the profiles have it; ``additive``: fit the paper's model, too.

    ``windows``: what was found of profiles by themselves. ``before``: what was observed some profiles ago: its model is kept as long as
    new windows say little (``_still_fits``)."""
    trained = trained_windows(profiles, windows)
    if not trained.profiles:
        return None
    chosen = chosen_windows(trained, policy)
    since, shift = trained.since(chosen.first), chosen.shift
    present = sum(1 for _ in takewhile(lambda plan: plan == trained.plans[-1], reversed(trained.plans)))
    told = None if shift is None else _told(shift, since.profiles)
    keeps = before is not None and chosen.suspected is None and _still_fits(before, trained, told, present, policy)
    return ObservedJob(
        before.fit if keeps and before is not None else _fit_basis(trained, chosen, prior, depth, policy).fit(),
        forecast(levels or trained.profiles, curves, epoch_samples=epoch_samples, spill_part=spill_part, facts=facts),
        trained.profiles[-1],
        _measured(trained.profiles[-min(present, len(since.profiles), policy.newest_windows) :], policy),
        _measured_before(since, policy),
        _last_change(trained, present),
        trained.speeds,
        told,
        None if chosen.suspected is None else _told(chosen.suspected, trained.profiles[chosen.suspected.first :]),
        additive_fit(profiles, policy) if additive else None,
        before.fitted_at if keeps and before is not None else trained.profiles[-1].at,
    )


def fit_basis(
    profiles: Sequence[Profile],
    *,
    prior: Prior | None = None,
    depth: float = DEPTH,
    policy: ObservationPolicy = USUAL.observation,
) -> FitBasis | None:
    """Return what ``observe_job`` fits a model to; None if nothing was trained yet."""
    trained = trained_windows(profiles)
    if not trained.profiles:
        return None
    return _fit_basis(trained, chosen_windows(trained, policy), prior, depth, policy)


def _fit_basis(
    trained: Windows, chosen: Chosen, prior: Prior | None, depth: float, policy: ObservationPolicy
) -> FitBasis:
    share, shift = _compute_share(chosen.profiles, policy), chosen.shift
    if shift is not None and len(trained.profiles) - chosen.first < policy.prior_windows:
        earlier = chosen_windows(trained.until(chosen.first), policy).profiles
        before = FitBasis(_observations(earlier, trained, policy), prior, depth, share)
        prior = _prior_since(before.fit(), shift, policy)
    return FitBasis(_observations(chosen.profiles, trained, policy), prior, depth, share)


def additive_fit(profiles: Sequence[Profile], policy: ObservationPolicy = USUAL.observation) -> Fit | None:
    """Fit the paper's model to the profiles that ours is fitted to; None if nothing was trained yet."""
    trained = trained_windows(profiles)
    if not trained.profiles:
        return None
    return fit(_observations(chosen_windows(trained, policy).profiles, trained, policy), form=ADDITIVE)


def _still_fits(
    before: ObservedJob, trained: Windows, shift: WorkShift | None, present: int, policy: ObservationPolicy
) -> bool:
    """Say whether a model needn't be fitted anew yet: the windows since then are few beside those with the same plan, and as fast as these,
    and the work is the same."""
    fit_every = policy.fit_every_windows
    new = [profile for profile in trained.profiles[-fit_every:] if profile.at > before.fitted_at]
    if len(new) >= min(fit_every, max(1, present - len(new))):
        return False
    if (shift is None) != (before.shift is None) or before.suspected is not None:
        return False
    if shift is not None and (
        shift.windows < policy.prior_windows or before.shift is None or shift.at != before.shift.at
    ):
        return False
    usual = before.measured.expected
    return all(abs(math.log(profile.samples_per_second / usual)) <= policy.surprise for profile in new)


class Windows(NamedTuple):
    """Profiles in which something was trained, by time, with the plan of each, and the speeds of hosts."""

    profiles: Sequence[Profile]
    plans: Sequence[Candidate]
    speeds: Mapping[str, float]
    kept: KeptWindows

    def since(self, first: int) -> Windows:
        return Windows(self.profiles[first:], self.plans[first:], self.speeds, self.kept)

    def until(self, first: int) -> Windows:
        return Windows(self.profiles[:first], self.plans[:first], self.speeds, self.kept)


def trained_windows(profiles: Sequence[Profile], kept: KeptWindows | None = None) -> Windows:
    """Collect the profiles in which something was trained."""
    kept = kept or KeptWindows()
    known = [(profile, kept.plan(profile)) for profile in profiles if profile.samples > 0]
    trained = [(profile, plan) for profile, plan in known if plan is not None]
    there = [profile for profile, _ in trained]
    return Windows(there, [plan for _, plan in trained], kept.comparisons.speeds(there), kept)


class Chosen(NamedTuple):
    """The profiles that a model is fitted to."""

    profiles: list[Profile]
    first: int
    """Position of the first profile since the job's work has changed, of all; 0: it hasn't."""
    shift: Shift | None
    suspected: Shift | None
    """A shift that only the newest profiles speak of, with its position among all."""


def chosen_windows(trained: Windows, policy: ObservationPolicy = USUAL.observation) -> Chosen:
    """Choose the profiles that a model is fitted to, by time: the newest since the last shift, and not too many with the same plan."""
    costs = [trained.kept.cost(profile, trained.speeds) for profile in trained.profiles]
    shift = last_shift(costs, policy)
    first = 0 if shift is None else shift.first
    looked_at = max(first, len(costs) - policy.newest_windows)
    suspected = suspected_shift(costs[looked_at:], policy)
    if suspected is not None:
        suspected = suspected._replace(first=looked_at + suspected.first)
    counts: Counter[Candidate] = Counter()
    found: list[Profile] = []
    for profile, plan in zip(reversed(trained.profiles[first:]), reversed(trained.plans[first:]), strict=True):
        if counts[plan] < policy.most_of_a_plan:
            counts[plan] += 1
            found.append(profile)
            if len(found) == policy.newest_windows:
                break
    return Chosen(found[::-1], first, shift, suspected)


def _observations(windows: Sequence[Profile], trained: Windows, policy: ObservationPolicy) -> list[Observation]:
    """Make observations of profiles by time; the older, the less they count."""
    seen = [(profile, trained.kept.observation(profile, trained.speeds)) for profile in windows]
    return [
        msgspec.structs.replace(one, weight=0.5 ** ((windows[-1].at - profile.at) / policy.half_life_seconds))
        for profile, one in seen
        if one is not None
    ]


def _prior_since(before: Fit, shift: Shift, policy: ObservationPolicy) -> Prior:
    """Expect the costs of before a shift, those of the role whose work has changed so many times as large."""
    prefix = f"{shift.role}_"
    return Prior(
        {name: cost * (shift.times if name.startswith(prefix) else 1.0) for name, cost in before.coefficients.items()},
        relative_sd=policy.prior_sd,
        exponent=before.exponent,
        noise=before.noise,
    )


def _told(shift: Shift, since: Sequence[Profile]) -> WorkShift:
    began = since[0].at - since[0].seconds
    return WorkShift(at=began, windows=len(since), role=shift.role, times=shift.times)


def _compute_share(windows: Sequence[Profile], policy: ObservationPolicy) -> float | None:
    """Compute the share of workers' CPU that their computing threads have, by workers with one of these; None where it isn't measured."""
    alone = [use for profile in windows for use in profile.workers if use.cores < 2 and use.phase_cpu_seconds]
    computing = sum(use.phase_cpu_seconds.get("compute", 0.0) for use in alone)
    total = sum(use.cpu_seconds for use in alone)
    return max(policy.least_compute_share, min(1.0, computing / total)) if computing > 0 and total > 0 else None


def observed_view(
    view: JobView,
    observed: ObservedJob | None,
    *,
    free_cores: Mapping[str, float],
    total_samples: float | None = None,
    model: KeptModel | None = None,
    policy: ObservationPolicy = USUAL.observation,
) -> JobView:
    """Make ``view`` say what was observed of the job: its model, the present plan and what was measured with it, the last change, the work
    left, and the memory needed for the time ahead. The rest stays as it is: job, bounds, priority, bytes of each worker, what changes
    cost. ``view`` itself is returned if nothing was observed.

    ``free_cores``: those that this job's nodes could use, by host. ``model``: the one of before, if there was any.
    """
    if observed is None:
        return view
    last, need = observed.last, view.need
    if observed.forecast is not None:
        rate = observed.measured.expected
        samples = samples_in(
            min(policy.memory_seconds, policy.memory_times_so_far * last.samples_so_far / max(rate, 1e-9)),
            so_far=last.samples_so_far,
            per_second=rate,
            total=total_samples,
        )
        need = need_of(observed.forecast, samples, worker=need.worker, most_per_ps=need.most_per_ps)
    worker_speeds, ps_speeds = _node_speeds(view, observed, free_cores, policy.most_ps_by_speed)
    circumstances: dict[str, Any] = {
        "batch_size": last.batch_size,
        "free_cores": free_cores,
        "speed": _mean_speed(observed, free_cores),
        "worker_speeds": worker_speeds,
        "ps_speeds": ps_speeds,
        "shared_cores": last.shared_cores and len(free_cores) == 1,
    }
    return msgspec.structs.replace(
        view,
        model=(model or KeptModel()).data(observed.fit, **circumstances),
        additive=None if observed.additive is None else model_data(observed.additive, **circumstances),
        host_speeds=dict(observed.host_speeds) if len(free_cores) > 1 else {},
        need=need,
        remaining_samples=None if total_samples is None else max(0.0, total_samples - last.samples_so_far),
        now=candidate_of(last),
        guessed=False,
        measured=observed.measured,
        measured_before=observed.measured_before,
        last_change=observed.last_change,
        shift=observed.shift,
        suspected=observed.suspected,
    )


def _mean_speed(observed: ObservedJob, free_cores: Mapping[str, float]) -> float:
    """Compute the mean speed of the cores that are free."""
    together = sum(free_cores.values())
    speeds = {host: observed.host_speeds.get(host, 1.0) for host in free_cores}
    return sum(speeds[host] * cores for host, cores in free_cores.items()) / together if together > 0 else 1.0


def _node_speeds(
    view: JobView, observed: ObservedJob, free_cores: Mapping[str, float], most_ps: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Compute the speeds of workers and PS by the number of PS, rounded as they are measured; empty where all hosts are about as fast."""
    hosts = [Host(name, Resources(cores, 1 << 62)) for name, cores in free_cores.items()]
    on: dict[str, int] = Counter(use.host for use in observed.last.ps)
    space = HostSpace.of(hosts, [HostNodes(host, 0, count) for host, count in on.items()], observed.host_speeds)
    if not space.speed_class.any():
        return (), ()
    most = min(view.bounds.max_servers, max(1, math.ceil(sum(free_cores.values()))), most_ps)
    found = node_speeds(space.grouped(), np.arange(1, most + 1), 1.0)
    return np.round(found.workers, 3).tolist(), np.round(found.ps, 3).tolist()


def _measured(present: Sequence[Profile], policy: ObservationPolicy) -> Band:
    """Compute the throughput, with its band, of all windows with the present plan together."""
    seconds = sum(profile.seconds for profile in present)
    rate = sum(profile.samples for profile in present) / seconds
    parts = sum((profile.relative_sd * profile.seconds / seconds) ** 2 for profile in present)
    squares = sum((profile.samples_per_second / rate - 1) ** 2 for profile in present)
    worth = policy.window_sd_worth
    between = (squares + worth * policy.window_sd**2) / (len(present) - 1 + worth) / len(present)
    width = math.exp(_OF_80_PERCENT * max(policy.least_sd, math.sqrt(max(parts, between))))
    return Band(rate, rate / width, rate * width)


def _measured_before(trained: Windows, policy: ObservationPolicy) -> tuple[MeasuredPlan, ...]:
    """Collect what was measured with each plan but the present one, the last time that the job had it. A window differs from another by
    what windows of the same plan do."""
    by_plan: dict[Candidate, list[Profile]] = {}
    for profile, plan in zip(reversed(trained.profiles), reversed(trained.plans), strict=True):
        if len(of := by_plan.setdefault(plan, [])) < policy.most_of_a_plan:
            of.append(profile)
    means, sd = _by_plan(by_plan, policy)
    found = []
    for plan, of in by_plan.items():
        width = math.exp(_OF_80_PERCENT * max(policy.least_sd, sd / math.sqrt(len(of))))
        if plan != trained.plans[-1]:
            found.append(MeasuredPlan(plan, Band(means[plan], means[plan] / width, means[plan] * width)))
    return tuple(found[: policy.most_plans_before])


def _by_plan(
    by_plan: Mapping[Candidate, Sequence[Profile]], policy: ObservationPolicy
) -> tuple[dict[Candidate, float], float]:
    """Compute the mean throughput of windows with each plan, and the relative standard deviation of windows about that."""
    means = {plan: sum(p.samples for p in of) / sum(p.seconds for p in of) for plan, of in by_plan.items()}
    squares = sum((p.samples_per_second / means[plan] - 1) ** 2 for plan, of in by_plan.items() for p in of)
    freedom = sum(len(of) - 1 for of in by_plan.values())
    worth = policy.window_sd_worth
    return means, math.sqrt((squares + worth * policy.window_sd**2) / (freedom + worth))


def windows_sd(profiles: Sequence[Profile], policy: ObservationPolicy = USUAL.observation) -> float:
    """Compute the relative standard deviation of a window's throughput about that of all windows with its plan, since the last shift."""
    by_plan: dict[Candidate, list[Profile]] = {}
    for profile in chosen_windows(trained_windows(profiles), policy).profiles:
        if (plan := candidate_of(profile)) is not None:
            by_plan.setdefault(plan, []).append(profile)
    return _by_plan(by_plan, policy)[1]


def _last_change(trained: Windows, present: int) -> LastChange | None:
    if present == len(trained.plans):
        return None
    return LastChange(left=trained.plans[-1 - present], fresh_windows=present)
