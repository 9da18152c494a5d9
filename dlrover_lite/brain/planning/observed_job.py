"""A running job as stage 2 takes it, from its profiles: fitted costs, what was measured with the present plan, memory, work left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from statistics import median
from typing import NamedTuple

import msgspec

from dlrover_lite.brain.models.fitted_model import model_data
from dlrover_lite.brain.models.memory_forecast import Forecast, TableCurve, forecast, need_of
from dlrover_lite.brain.models.throughput import Fit, Prior, fit
from dlrover_lite.brain.models.throughput_forms import DEPTH
from dlrover_lite.brain.planning.job_view import JobView, LastChange, MeasuredPlan
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import MILLI, Candidate, to_milli
from dlrover_lite.protocol.demands import TableFacts
from dlrover_lite.protocol.profiles import Observation, Profile, host_speeds, observe

__all__ = ["MinibatchCost", "ObservedJob", "candidate_of", "last_shift", "observe_job", "observed_view"]

_NEWEST = 64
"""Number of profiles that a model is fitted to, the newest."""
_OF_80_PERCENT = 1.2816
"""Half the width of a band that holds 80%, in standard deviations."""
_LEAST_SD = 0.01
"""Least relative standard deviation of a throughput that was measured: windows differ by more than each one's parts tell."""
_WINDOW_SD, _WINDOW_SD_WORTH = 0.03, 2.0
"""Relative standard deviation of a window's throughput about its plan's, as it is usual, and its weight as a number of windows."""
_SHIFT, _SHIFT_WINDOWS = 1.5, 3
"""Factor by which a minibatch's work has to change, and the number of windows in a row in which it has, before what was measured until then
is forgotten. What a host's other guests take of its caches and clock costs less."""
_MOST_BEFORE = 16
"""The most plans of before that are remembered as measured, the newest."""


def candidate_of(profile: Profile) -> Candidate | None:
    """Find the plan that a profile was measured with, nodes of a role taken as alike; None if there was no node of a role."""
    if not profile.workers or not profile.ps:
        return None
    worker, ps = (
        to_milli(sum(use.cores for use in uses) / len(uses)) / MILLI for uses in (profile.workers, profile.ps)
    )
    return Candidate(len(profile.workers), len(profile.ps), worker, ps)


class ObservedJob(NamedTuple):
    """What a job's profiles tell of it, whatever else goes on: it holds until there is another profile."""

    fit: Fit
    forecast: Forecast | None
    last: Profile
    measured: Band
    """Samples/s with the present plan."""
    measured_before: tuple[MeasuredPlan, ...]
    last_change: LastChange | None


def observe_job(
    profiles: Sequence[Profile],
    *,
    prior: Prior | None = None,
    depth: float = DEPTH,
    epoch_samples: float | None = None,
    curves: Sequence[TableCurve] = (),
    spill_part: float = 0.0,
    facts: TableFacts | None = None,
) -> ObservedJob | None:
    """Fit and forecast from profiles, by time; None if nothing was trained yet. ``prior``: from jobs like it (stage 1); ``depth``: of its
    workers' pipelines."""
    trained = [profile for profile in profiles if profile.samples > 0 and candidate_of(profile) is not None]
    if not trained:
        return None
    recent, speeds = trained[-_NEWEST:], host_speeds(trained)
    seen = [one for profile in recent if (one := observe(profile, speeds)) is not None]
    shift = last_shift([_cost_of(one) for one in seen])
    recent, seen = recent[shift:], seen[shift:]
    now = candidate_of(trained[-1])
    present = list(takewhile(lambda profile: candidate_of(profile) == now, reversed(trained)))
    return ObservedJob(
        fit(seen, prior=prior, depth=depth),
        forecast(trained, curves, epoch_samples=epoch_samples, spill_part=spill_part, facts=facts),
        trained[-1],
        _measured(present[: len(recent)]),
        _measured_before(recent, now),
        _last_change(trained, len(present)),
    )


class MinibatchCost(NamedTuple):
    """What a minibatch costs, as a window has measured it; 0: not known."""

    servers: float
    """Number of PS: each costs something for every minibatch, whatever it holds."""
    worker_cpu_seconds: float
    ps_cpu_seconds: float
    """CPU seconds of all PS together."""


def _cost_of(one: Observation) -> MinibatchCost:
    return MinibatchCost(one.ps, one.worker_cpu_seconds or 0.0, (one.ps_cpu_seconds or 0.0) * one.ps)


def last_shift(costs: Sequence[MinibatchCost]) -> int:
    """Find the window since which a job's minibatches cost what they do now (``costs``: by time); 0: it has been so all the time.

    A shift is several windows in a row that all cost workers, or PS, so much more, or so much less, than is usual of windows with as many
    PS since the shift before. It is looked for in CPU seconds, which depend on the plan and the host far less than throughput does.
    """
    began = 0
    for at in range(_SHIFT_WINDOWS, len(costs) - _SHIFT_WINDOWS + 1):
        new = costs[at : at + _SHIFT_WINDOWS]
        before = [one for one in costs[began:at] if one.servers == new[0].servers]
        if len(before) >= _SHIFT_WINDOWS and all(one.servers == new[0].servers for one in new):
            of_workers = _is_shift([one.worker_cpu_seconds for one in before], [one.worker_cpu_seconds for one in new])
            if of_workers or _is_shift([one.ps_cpu_seconds for one in before], [one.ps_cpu_seconds for one in new]):
                began = at
    return began


def _is_shift(before: Sequence[float], new: Sequence[float]) -> bool:
    usual = median(before)
    return usual > 0 and (min(new) > _SHIFT * usual or 0 < max(new) < usual / _SHIFT)


def observed_view(
    view: JobView,
    observed: ObservedJob | None,
    *,
    free_cores: Mapping[str, float],
    total_samples: float | None = None,
    ahead_seconds: float = 3600.0,
) -> JobView:
    """Make ``view`` say what was observed of the job: its model, the present plan and what was measured with it, the last change, the work
    left, and the memory needed within ``ahead_seconds``. The rest stays as it is: job, bounds, priority, bytes of each worker, what changes
    cost. ``view`` itself is returned if nothing was observed.

    ``free_cores``: those that this job's nodes could use, by host.
    """
    if observed is None:
        return view
    last, need = observed.last, view.need
    if observed.forecast is not None:
        ahead = last.samples_so_far + observed.measured.expected * ahead_seconds
        samples = ahead if total_samples is None else min(ahead, max(total_samples, last.samples_so_far))
        need = need_of(observed.forecast, samples, worker=need.worker, most_per_ps=need.most_per_ps)
    return msgspec.structs.replace(
        view,
        model=model_data(observed.fit, batch_size=last.batch_size, free_cores=free_cores),
        need=need,
        remaining_samples=None if total_samples is None else max(0.0, total_samples - last.samples_so_far),
        now=candidate_of(last),
        measured=observed.measured,
        measured_before=observed.measured_before,
        last_change=observed.last_change,
    )


def _measured(present: Sequence[Profile]) -> Band:
    """Compute the throughput, with its band, of all windows with the present plan together."""
    seconds = sum(profile.seconds for profile in present)
    rate = sum(profile.samples for profile in present) / seconds
    parts = sum((profile.relative_sd * profile.seconds / seconds) ** 2 for profile in present)
    between = 0.0
    if len(present) > 1:
        squares = sum((profile.samples_per_second / rate - 1) ** 2 for profile in present)
        between = squares / (len(present) - 1) / len(present)
    width = math.exp(_OF_80_PERCENT * max(_LEAST_SD, math.sqrt(max(parts, between))))
    return Band(rate, rate / width, rate * width)


def _measured_before(trained: Sequence[Profile], now: Candidate | None) -> tuple[MeasuredPlan, ...]:
    """Collect what was measured with each plan but the present one. A window differs from another by what windows of the same plan do."""
    by_plan: dict[Candidate, list[Profile]] = {}
    for profile in reversed(trained):
        if (plan := candidate_of(profile)) is not None:
            by_plan.setdefault(plan, []).append(profile)
    means = {plan: sum(p.samples for p in of) / sum(p.seconds for p in of) for plan, of in by_plan.items()}
    squares = sum((p.samples_per_second / means[plan] - 1) ** 2 for plan, of in by_plan.items() for p in of)
    freedom = sum(len(of) - 1 for of in by_plan.values())
    sd = math.sqrt((squares + _WINDOW_SD_WORTH * _WINDOW_SD**2) / (freedom + _WINDOW_SD_WORTH))
    found = []
    for plan, of in by_plan.items():
        width = math.exp(_OF_80_PERCENT * max(_LEAST_SD, sd / math.sqrt(len(of))))
        if plan != now:
            found.append(MeasuredPlan(plan, Band(means[plan], means[plan] / width, means[plan] * width)))
    return tuple(found[:_MOST_BEFORE])


def _last_change(trained: Sequence[Profile], present: int) -> LastChange | None:
    if present == len(trained):
        return None
    left = candidate_of(trained[-1 - present])
    assert left is not None  # of a profile that has workers and PS
    return LastChange(left=left, fresh_windows=present)
