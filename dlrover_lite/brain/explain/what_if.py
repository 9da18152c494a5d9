"""What other plans would bring a job, by the model that was fitted to what was measured of it.

::

    known = known_job(history, entry, at=now)                  # all that the forecasts follow from
    found = foresee(known, [Asked(Candidate(8, 4, 1.0, 0.5))])    # pure
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, NoReturn

import msgspec
import numpy as np

from dlrover_lite.brain.background_load import BackgroundLoad
from dlrover_lite.brain.capacity import Capacity
from dlrover_lite.brain.explain.model_fit import limits_of_plan
from dlrover_lite.brain.explain.what_if_data import Axis, Beyond, Measured, PlanForecast, Prices, WhatIf
from dlrover_lite.brain.job_history import past_jobs
from dlrover_lite.brain.job_tracker import RegisteredJob, candidate
from dlrover_lite.brain.models.fitted_model import FittedModel, load_model
from dlrover_lite.brain.models.held_out import HeldOut, held_out, run_band
from dlrover_lite.brain.models.memory_forecast import need_of
from dlrover_lite.brain.models.throughput_forms import Setting
from dlrover_lite.brain.planning.job_view import JobView
from dlrover_lite.brain.planning.node_placement import HostSpace, place
from dlrover_lite.brain.planning.observed_job import candidate_of, fit_basis, windows_sd
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import MILLI, Candidate, MemoryBand, MemoryNeed, to_milli
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.history import Rows
from dlrover_lite.brain.store.records import JobEntry, demand_in
from dlrover_lite.core.decoding import convert
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.core.units import GIB, Resources, format_bytes
from dlrover_lite.protocol.demands import Demand, within
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.hosts import Host, HostNodes, largest_of
from dlrover_lite.protocol.plans import Plan
from dlrover_lite.protocol.profiles import Profile

__all__ = ["Asked", "KnownJob", "foresee", "known_job"]

_NEWEST = 256
"""The most profiles, the newest, that are looked at."""
_MOST_PLANS, _OF_A_PLAN = 32, 16
"""The most plans of before whose profiles are looked at, and the most of each."""
_OTHERS = 8
"""Number of the newest profiles that say what others take of the hosts."""
_WORKER_BAND = 1.1
"""Factor by which the most memory of a worker may be another one with another plan, in 80%: by far the most of it is the model's and its
batch's, whatever the plan."""
_RUN_SD = 1.2
"""Standard deviation of a run's throughput about what was measured of its plan, over that of an interval: how fast hosts are changes
slowly, so that neither the mean of a few intervals nor that of a run is much surer than one interval, and they are of different times."""
_OF_80_PERCENT = 1.2816
"""Half the width of a band that holds 80%, in standard deviations."""
_FREE = Prices()
_UNENDED = ("starting", "running", "queued")


class Asked(msgspec.Struct, frozen=True):
    """A plan that is asked about, with the memory of each node; None: as much as it is likely to need."""

    plan: Candidate
    worker_memory: int | None = None
    ps_memory: int | None = None


class KnownJob(msgspec.Struct, frozen=True, kw_only=True):
    """All that the forecasts of a job follow from."""

    view: JobView
    """The job as stage 2 takes it, with the present plan, what was measured, and the memory that it needs until the work is done."""
    present: Asked
    runs: bool
    samples: float | None
    """Number of samples to forecast for; None: not known."""
    whole: bool = False
    """These are all of the job's, not what is left of it."""
    measured: Measured
    held_out: tuple[HeldOut, ...] = ()
    windows_sd: float = 0.0
    """Relative standard deviation of an interval's throughput about its plan's."""
    most: Resources
    """The most that all nodes may have together."""
    hosts: tuple[Host, ...] = ()
    free_cores: dict[str, float] = {}
    """Cores of each host that others don't take."""
    worker_peak: int = 0
    """The most bytes of memory that a worker has used; 0: not known."""


# --- forecasts ------------------------------------------------------------------------------------------------------


class _Rates(NamedTuple):
    """How fast plans are: as they were measured, or by the model."""

    job: KnownJob
    known: Mapping[Candidate, Band]
    model: FittedModel

    def of(self, plan: Candidate) -> Band:
        if plan in self.known:
            return self.known[plan]
        found = run_band(self.model.fit, self.setting(plan), self.job.held_out)
        return Band(*(float(values[0]) for values in found))

    def setting(self, plan: Candidate) -> Setting:
        """Make the setting of a plan where its nodes would be; spread evenly where they find no place."""
        nodes = _places(self.job, plan, self.job.view.need)
        setting = self.model.setting(*plan.parts())
        return setting if nodes is None else _placed(setting, plan, nodes, self.job)


def _places(job: KnownJob, plan: Candidate, need: MemoryNeed) -> tuple[HostNodes, ...] | None:
    """Say where a plan's nodes would be; None where not all find a place, or there is only one host."""
    if len(job.hosts) < 2:
        return None
    return place(plan, need, HostSpace.of(job.hosts, (), job.view.host_speeds))


def _placed(setting: Setting, plan: Candidate, nodes: Sequence[HostNodes], job: KnownJob) -> Setting:
    """Return the setting with the speeds of the hosts that nodes are on, and the fullest of these."""
    speeds = job.view.host_speeds
    parts = [(one.host, one.workers / plan.workers, one.servers / plan.servers) for one in nodes]
    power = {host: job.free_cores[host] * speeds.get(host, 1.0) for host, _, _ in parts}

    def taken(part: tuple[str, float, float]) -> float:
        host, workers, servers = part
        wanted = workers * plan.workers * plan.worker_cores + servers * plan.servers * plan.ps_cores
        return wanted / max(job.free_cores[host], 1 / MILLI)

    host, host_workers, host_ps = max(parts, key=taken)
    found: dict[str, float] = {
        "worker_speed": sum(workers * speeds.get(host, 1.0) for host, workers, _ in parts),
        "ps_speed": sum(servers * speeds.get(host, 1.0) for host, _, servers in parts),
        "free_power": power[host],
        "host_workers": host_workers,
        "host_ps": host_ps,
        "card_share": max(workers + servers - 2 * workers * servers for _, workers, servers in parts),
    }
    return setting._replace(**{name: np.full(1, value) for name, value in found.items()})


def foresee(job: KnownJob, asked: Sequence[Asked], prices: Prices = _FREE) -> WhatIf:
    """Foresee what the plans would bring, beside the present one."""
    view, model = job.view, load_model(job.view.model)
    known = {one.plan: _of_run(one.throughput, job.windows_sd) for one in view.measured_before}
    if view.now is not None and view.measured is not None:
        known[view.now] = _of_run(view.measured, job.windows_sd)
    rates = _Rates(job, known, model)
    now = rates.of(job.present.plan)
    present = _forecast(job, job.present, rates, now, prices, is_present=True)
    plans = tuple(_forecast(job, one, rates, now, prices) for one in asked)
    return WhatIf(
        job=view.job,
        runs=job.runs,
        samples=job.samples,
        whole=job.whole,
        change_seconds=view.scale_seconds if job.runs else 0.0,
        measured=job.measured,
        present=present,
        plans=plans,
        prices=prices,
    )


def _of_run(measured: Band, windows_sd: float) -> Band:
    """Return the band of a run with a plan that was measured: at another time its hosts may be as much slower or faster, as long."""
    width = math.exp(math.hypot(_half(measured), _OF_80_PERCENT * _RUN_SD * windows_sd))
    return Band(measured.expected, measured.expected / width, measured.expected * width)


def _forecast(
    job: KnownJob, asked: Asked, rates: _Rates, now: Band, prices: Prices, *, is_present: bool = False
) -> PlanForecast:
    rate, plan = rates.of(asked.plan), asked.plan
    same = is_present or plan == job.present.plan
    change = 0.0 if same or not job.runs else job.view.scale_seconds
    need = _need(job.view.need, asked)
    limits, cores, memory = need.plan(plan), plan.cores, need.of(plan)
    seconds = None if job.samples is None else _seconds(rate, job.samples, change)
    core_hours, gib_hours = _hours(seconds, cores), _hours(seconds, memory / GIB)
    return PlanForecast(
        plan=limits,
        cores=cores,
        memory=memory,
        measured=plan in rates.known,
        samples_per_second=rate,
        seconds=seconds,
        saves_seconds=None if job.samples is None or same else _saved(rate, now, job.samples, change),
        core_hours=core_hours,
        gib_hours=gib_hours,
        money=_money(core_hours, gib_hours, prices),
        worker_memory=_worker_memory(job.worker_peak, limits.worker.each.memory),
        ps_memory=_ps_memory(job.view.need, plan, limits.ps.each.memory),
        limits=limits_of_plan(rates.model, plan, rates.setting(plan)),
        beyond=_beyond(rates.model, plan),
        idle_ps_cores=to_milli(plan.ps_cores) > to_milli(rates.model.fit.engine.ps_cores),
        refused="" if is_present else _refused(job, plan, need),
    )


def _seconds(rate: Band, samples: float, change: float) -> Band:
    return Band(change + samples / rate.expected, change + samples / rate.upper, change + samples / rate.lower)


def _saved(rate: Band, now: Band, samples: float, change: float) -> Band:
    """Compute the seconds that a plan saves: both plans are as unsure as their bands say, one apart from the other."""
    stay, ratio = samples / now.expected, now.expected / rate.expected
    together = math.exp(math.hypot(_half(rate), _half(now)))
    expected, lower, upper = (stay - change - stay * ratio * factor for factor in (1.0, together, 1 / together))
    return Band(expected, lower, upper)


def _half(rate: Band) -> float:
    """Return half of the band as a difference of logarithms, the wider half."""
    return max(math.log(rate.upper / rate.expected), math.log(rate.expected / rate.lower))


def _hours(seconds: Band | None, amount: float) -> Band | None:
    return None if seconds is None else Band(*(each * amount / 3600.0 for each in seconds))


def _money(core_hours: Band | None, gib_hours: Band | None, prices: Prices) -> Band | None:
    if core_hours is None or gib_hours is None or prices == _FREE:
        return None
    both = zip(core_hours, gib_hours, strict=True)
    return Band(*(cores * prices.core_hour + gib * prices.gib_hour for cores, gib in both))


def _need(need: MemoryNeed, asked: Asked) -> MemoryNeed:
    return msgspec.structs.replace(
        need,
        worker=need.worker if asked.worker_memory is None else asked.worker_memory,
        fixed_ps=need.fixed_ps if asked.ps_memory is None else asked.ps_memory,
    )


def _worker_memory(peak: int, limit: int) -> MemoryBand | None:
    return MemoryBand(peak, int(peak / _WORKER_BAND), int(peak * _WORKER_BAND), limit) if peak else None


def _ps_memory(need: MemoryNeed, plan: Candidate, limit: int) -> MemoryBand | None:
    band = need.band(plan)
    return None if band is None else msgspec.structs.replace(band, limit=limit)


def _beyond(model: FittedModel, plan: Candidate) -> tuple[Beyond, ...]:
    axes: dict[Axis, float] = {
        "workers": plan.workers,
        "ps": plan.servers,
        "worker_cores": plan.worker_cores,
        "ps_cores": plan.ps_cores,
    }
    found = []
    for axis, value in axes.items():
        least, most = model.fit.region.get(axis, (value, value))
        if not to_milli(least) <= to_milli(value) <= to_milli(most):
            found.append(Beyond(axis, value, least, most))
    return tuple(found)


def _refused(job: KnownJob, plan: Candidate, need: MemoryNeed) -> str:
    """Say why there is no place for a plan; "" if there is, as far as this job alone is concerned."""
    memory, most = need.of(plan), job.most
    if plan.cores > most.cores + 1 / MILLI:
        return f"it needs {_cores(plan.cores)}, and the job may have {_cores(most.cores)}"
    if memory > most.memory:
        return f"it needs {format_bytes(memory)} of memory, and the job may have {format_bytes(most.memory)}"
    if len(job.hosts) > 1 and _places(job, plan, need) is None:
        largest = largest_of(job.hosts)
        there = f"{_cores(largest.cores)} and {format_bytes(largest.memory)}"
        return f"its nodes find no place on the {len(job.hosts)} hosts, of which the largest has {there}"
    return ""


def _cores(cores: float) -> str:
    return "1 core" if abs(cores - 1) < 5e-4 else f"{cores:g} cores"


# --- from the history -----------------------------------------------------------------------------------------------


def known_job(
    history: Rows,
    entry: JobEntry,
    *,
    at: float,
    samples: float | None = None,
    whole: bool | None = None,
    worker_peak: int = 0,
) -> KnownJob:
    """Collect what is known of a job. ``samples``: to forecast for; None: what is left of a job that runs, all of one that has ended, or as
    ``whole`` says. ``worker_peak``: the most memory that any worker has used, where more is known than its outcome says.

    Raises HistoryError where nothing was measured of it, or what was stored can't be read.
    """
    known = _registered(history, entry, at=at)
    known.worker_peak = max(worker_peak, entry.outcome.peak_memory.get("worker", 0))
    capacity = _capacity(known.demand)
    free_cores = known.free_cores(capacity)
    view = known.view(free_cores=free_cores, at=at)
    observed = None if known.observed is None else known.observed[1]
    basis = fit_basis(known.profiles, prior=known.prior, depth=float(known.features.pipeline_depth))
    if observed is None or basis is None:
        _refuse_unmeasured(entry)
    work = _work(entry, observed.last, known.demand.total_samples, samples, whole)
    need = view.need
    if observed.forecast is not None:
        need = known.with_room(need_of(observed.forecast, work.until, worker=need.worker))
    tested = held_out(basis.observations, basis.fit)
    return KnownJob(
        view=msgspec.structs.replace(
            view,
            now=candidate_of(observed.last),
            measured=observed.measured,
            need=need,
            scale_seconds=known.scale_seconds,
        ),
        present=_present(history, entry, observed.last),
        runs=_runs(entry),
        samples=work.samples,
        whole=work.whole,
        measured=Measured(
            intervals=observed.fit.observations,
            plans=1 + len(observed.measured_before),
            error=observed.fit.relative_error,
            held_out=len(tested),
            held_out_error=statistics.median(abs(math.expm1(one.error)) for one in tested) if tested else 0.0,
        ),
        held_out=tuple(tested),
        windows_sd=windows_sd(known.profiles),
        most=capacity.total,
        hosts=capacity.hosts,
        free_cores=free_cores,
        worker_peak=known.worker_peak,
    )


def _runs(entry: JobEntry) -> bool:
    return entry.state in _UNENDED


def _registered(history: Rows, entry: JobEntry, *, at: float) -> RegisteredJob:
    """Return the job as the brain has it, with what was measured, waiting for a plan: that which it has is one among others."""
    features, demand = _told(entry)
    profiles = _profiles(history, entry)
    known = RegisteredJob(
        job=entry.id,
        features=features,
        demand=demand,
        began=entry.started_at or entry.created_at,
        history=tuple(past_jobs(history, at=at, without=entry.id)),
        evaluated=True,
        background=_background(profiles),
    )
    known.begin(_capacity(demand), at)
    for profile in profiles:
        known.add(profile)
    known.gave_way(at)
    return known


def _capacity(demand: Demand) -> Capacity:
    """Return what the job may have, other jobs apart."""
    shared = demand.shared.hosts if demand.shared is not None else ()
    return Capacity(within(demand), shared or demand.hosts)


class _Work(NamedTuple):
    """What is to be trained."""

    samples: float | None
    whole: bool
    until: float
    """Samples that the job will have trained on then, since it began, as far as is known."""


def _work(entry: JobEntry, last: Profile, total: float | None, samples: float | None, whole: bool | None) -> _Work:
    so_far = float(max(entry.samples, last.samples_so_far))
    whole = not _runs(entry) if whole is None else whole
    if samples is None and total is not None:
        samples = total if whole else max(0.0, total - so_far)
    ahead = samples or 0.0
    return _Work(samples, whole, max(so_far, ahead if whole else so_far + ahead))


def _told(entry: JobEntry) -> tuple[JobFeatures, Demand]:
    """Return what the job said of itself. Raises HistoryError where that isn't kept, or can't be read."""
    try:
        features, demand = convert(entry.features, JobFeatures), demand_in(entry.features)
    except msgspec.ValidationError:
        demand = None
    if demand is None or not within(demand).cores:
        raise HistoryError(
            f"What {entry.id} asked for isn't kept, or was stored by another version of dlrover-lite",
            hint=f"Ask about another job: dlrover-lite history lists them. What is known of this one: dlrover-lite history {entry.id}",
        )
    return features, demand


def _profiles(history: Rows, entry: JobEntry) -> list[Profile]:
    """Read the newest profiles, and some of each plan before these, the oldest first. Raises HistoryError where there are none."""
    newest = queries.readable_profiles(history, entry.id, newest=_NEWEST)
    if not newest:
        _refuse_unmeasured(entry)
    granted = queries.plans(history, entry.id, kind="granted", newest=_MOST_PLANS)
    earlier: list[Profile] = []
    before = math.nextafter(newest[0].at, 0.0)
    for one, after in pairwise([record.at for record in granted] + [before]):
        if one < before:
            until = min(after, before)
            earlier += queries.readable_profiles(history, entry.id, since=one, until=until, newest=_OF_A_PLAN)
    return [*earlier, *newest]


def _refuse_unmeasured(entry: JobEntry) -> NoReturn:
    """Say that nothing is known of what a job's minibatches cost. Raises HistoryError."""
    if _runs(entry):
        raise HistoryError(
            f"Nothing was measured of {entry.id} so far, so nobody knows what its minibatches cost",
            hint=f"That takes ten seconds of training: ask again once there is an interval (dlrover-lite profile {entry.id})",
        )
    raise HistoryError(
        f"Nothing that was measured of {entry.id} is kept: it trained for less than ten seconds, or it was pruned since",
        hint="Ask about a newer job like it; dlrover-lite brain settings profile-days=90 keeps measurements for longer.",
    )


def _background(profiles: Sequence[Profile]) -> dict[str, BackgroundLoad]:
    """Return what others took of each host of late."""
    taken: dict[str, list[float]] = {}
    for profile in profiles[-_OTHERS:]:
        for use in profile.hosts:
            taken.setdefault(use.host, []).append(use.other_cores)
    return {host: BackgroundLoad(statistics.median(each)) for host, each in taken.items()}


def _present(history: Rows, entry: JobEntry, last: Profile) -> Asked:
    """Return the plan that the job has, or had last, with the memory that it was given."""
    granted: Sequence[Plan] = [one.plan for one in queries.plans(history, entry.id, kind="granted", newest=1)]
    if granted:
        worker, ps = granted[-1].worker.each, granted[-1].ps.each
        return Asked(candidate(granted[-1]), worker.memory, ps.memory)
    plan = candidate_of(last)
    assert plan is not None  # it was trained with
    return Asked(plan)
