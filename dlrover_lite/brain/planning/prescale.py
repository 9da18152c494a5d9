"""Stage 1, the plan that a job starts with: from the coefficients of jobs like it (warm), or a small one that learns fast (cold).

::

    decision = initial_plan(StartInputs(at=now, job="a", features=features, bounds=bounds, history=past, capacity=free))
    decision.plan, decision.reason
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dlrover_lite.brain.models.fitted_model import model_data
from dlrover_lite.brain.models.memory_model import HEADROOM, decayed_quantile, row_bytes, worker_limit
from dlrover_lite.brain.models.similarity import THRESHOLD, JobFeatures, Neighbour, distance, neighbours, pooled_prior
from dlrover_lite.brain.models.table_rows import Growth, fit_rows, quantile_rows
from dlrover_lite.brain.models.throughput import Fit, Prior, fit
from dlrover_lite.brain.planning.decision import Decision, decide
from dlrover_lite.brain.planning.job_view import JobView, Policy, RoundInputs
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, FloatArray, MemoryNeed, to_milli
from dlrover_lite.brain.policies import USUAL, StartPolicy
from dlrover_lite.core.units import Resources
from dlrover_lite.core.words import plural
from dlrover_lite.protocol.hosts import Host

__all__ = ["PastJob", "PastMemory", "StartInputs", "basis", "initial_plan", "initial_view", "similar_plans"]

_ROUNDING = 1e-6
"""Cores by which sums of floats may be off."""
_STATE_PARTS = {"sgd": 0, "adagrad": 1, "adam": 2, "ftrl": 2}
"""Numbers of the optimizer for each weight of a row."""
_DIMS = 416
"""Floats of a sample's rows at which these costs were measured, in CPU seconds: a Wide&Deep on Criteo's fields."""
_COSTS = {
    "worker_sample": 8e-6,
    "worker_minibatch": 1e-3,
    "worker_request": 2e-4,
    "ps_sample": 2e-6,
    "ps_request": 2e-4,
    "latency": 2e-3,
}
_WORKER_TIMES = {"dcn": 3.7, "xdeepfm": 6.6}
"""A sample's cost to the workers over that of a Wide&Deep, of built-in models with their usual options; measured with 26 fields of 16
floats. That of a DLRM is the same, that of a person's own model is taken to be."""


class PastMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a past job's memory tells of another's."""

    samples: tuple[float, ...]
    rows: tuple[float, ...]
    """Rows of all tables together when the job had trained on so many ``samples`` of its first epoch; both rising."""
    bytes_per_row: float
    """Bytes of memory per row at the end, index included."""
    base: int
    """Bytes of memory that a PS takes beside rows and index."""
    worker: int
    """The most bytes of memory that a worker used."""


class PastJob(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    features: JobFeatures
    fit: Fit
    """The last fit of the job."""
    age_seconds: float = 0.0
    """Seconds since the job ended."""
    memory: PastMemory | None = None
    plan: Candidate | None = None
    """The last plan that the job trained with; None: not known."""


class StartInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``initial_plan`` follows from."""

    at: float
    """Seconds since the epoch."""
    job: str
    features: JobFeatures
    bounds: Bounds
    """The plans that the recipe and the capacity leave open."""
    history: tuple[PastJob, ...] = ()
    """Past jobs, the oldest first."""
    capacity: Resources
    """Resources that this job may have: what others leave, and no more than its recipe's ceiling."""
    free: dict[str, Resources] = {}
    """What this job may have of each host, by name; empty: all of the capacity is on one."""
    total_samples: float | None = None
    """Number of samples to train on, over all epochs; None: not known."""
    shared_cores: bool = False
    """The job's nodes share the cores that they have together."""
    priority: float = 1.0
    policy: Policy = Policy()
    start: StartPolicy = StartPolicy()


class _Known(NamedTuple):
    near: list[Neighbour]
    prior: Prior | None
    words: str


def initial_plan(inputs: StartInputs) -> Decision:
    """Decide stage 1 for a job that has the capacity to itself; the action is ``start``, or ``refuse`` if not even the smallest plan fits.
    Everything follows from ``inputs``.

    Where several jobs share a capacity, put their ``initial_view``s into a round of stage 2.
    """
    known = _known(inputs)
    view = _view(inputs, known)
    hosts = tuple(Host(name, free) for name, free in inputs.free.items())
    one = RoundInputs(at=inputs.at, capacity=inputs.capacity, hosts=hosts, jobs=(view,), policy=inputs.policy)
    decision = decide(one).decisions[0]
    cause = known.words if decision.action == "start" else decision.cause
    return msgspec.structs.replace(decision, stage="initial", reason=f"{known.words}: {decision.reason}", cause=cause)


def basis(inputs: StartInputs) -> str:
    """Say what the first plan goes by."""
    return _known(inputs).words


def initial_view(inputs: StartInputs) -> JobView:
    """Make the job's view for stage 2 before anything of it is measured. Where nothing is known of it, its bounds hold a
    first plan of few cores and what is smaller alone: give ``observed_view`` one with the recipe's bounds later on."""
    return _view(inputs, _known(inputs))


def _known(inputs: StartInputs) -> _Known:
    history = [(past.job, past.features, past.fit) for past in inputs.history]
    near = neighbours(inputs.features, history)
    prior = pooled_prior(near)
    if prior is not None:
        if inputs.policy.name == "paper" and (similar := similar_plans(inputs.history, near, inputs.start)):
            return _Known(
                near, prior, f"warm start, by the smoothed plans of {plural(len(similar), 'past job')} like it"
            )
        names = f"{len(near)} past job{'s' * (len(near) > 1)} like it ({near[0].job} the most, at a distance of {near[0].distance:.2f})"
        return _Known(near, prior, f"warm start, by the costs of {names}")
    measured = [(distance(inputs.features, features), job) for job, features, fitted in history if fitted.observations]
    if not measured:
        return _Known([], None, f"cold start, as no past job was measured for ten seconds, {_cold(inputs)}")
    nearest, job = min(measured)
    words = f"the one most like it, {job}, is at a distance of {nearest:.2f}, beyond {THRESHOLD:g}"
    return _Known([], None, f"cold start, as no past job is like it ({words}), {_cold(inputs)}")


def _view(inputs: StartInputs, known: _Known) -> JobView:
    bounds = inputs.bounds if known.prior is not None else _cold_bounds(inputs)
    prior = known.prior or _guess(inputs)
    model = model_data(
        fit([], prior=prior, depth=float(inputs.features.pipeline_depth)),
        batch_size=inputs.features.batch_size,
        free_cores={host: free.cores for host, free in _free(inputs).items()},
        shared_cores=inputs.shared_cores and len(_free(inputs)) == 1,
    )
    return JobView(
        job=inputs.job,
        bounds=bounds,
        model=model,
        guessed=known.prior is None,
        similar=similar_plans(inputs.history, known.near, inputs.start) if inputs.policy.name == "paper" else (),
        need=_need(inputs, known, bounds),
        priority=inputs.priority,
        remaining_samples=inputs.total_samples,
    )


def similar_plans(
    history: Sequence[PastJob], near: Sequence[Neighbour], policy: StartPolicy = USUAL.start
) -> tuple[Candidate, ...]:
    """List the plans of the jobs that are the most like a new one, the most similar first: what the paper's policy smooths."""
    plans = {past.job: past.plan for past in history}
    return tuple(plan for one in near[: policy.smoothed_plans] if (plan := plans[one.job]) is not None)


def _free(inputs: StartInputs) -> dict[str, Resources]:
    return inputs.free or {"": inputs.capacity}


def _guess(inputs: StartInputs) -> Prior:
    """Guess the costs of anything that trains at all, by its rows' size, where that is known before it is built, and its model."""
    factor = max(inputs.features.dims or _DIMS, 16) / _DIMS
    scaled = {name: cost * (factor if name.endswith("_sample") else 1.0) for name, cost in _COSTS.items()}
    scaled["worker_sample"] *= _WORKER_TIMES.get(inputs.features.model, 1.0)
    return Prior(scaled, relative_sd=inputs.start.cold_prior_sd)


# --- cold -----------------------------------------------------------------------------------------------------------


def _cold(inputs: StartInputs) -> str:
    bounds = _cold_bounds(inputs)
    cores = bounds.max_workers * max(bounds.worker_sizes) + bounds.max_servers * max(bounds.ps_sizes)
    return f"with up to {cores:g} of the {inputs.capacity.cores:g} cores that it may have"


def _cold_bounds(inputs: StartInputs) -> Bounds:
    """Make bounds of which the largest plan has workers of about a core and a small PS, and the smallest is that of the recipe's bounds:
    the job begins with what fits beside others now."""
    bounds = inputs.bounds
    cores = min(inputs.start.cold_cores, inputs.capacity.cores)
    ps_size = _nearest_below(bounds.ps_sizes, min(1.0, cores * inputs.start.cold_ps_share / bounds.min_servers))
    left = max(0.0, cores - ps_size * bounds.min_servers)
    most = int(left / min(bounds.worker_sizes) + _ROUNDING)
    workers = min(max(min(math.ceil(left - _ROUNDING), most), bounds.min_workers), bounds.max_workers)
    worker_size = _nearest_below(bounds.worker_sizes, min(1.0, left / workers))
    spare = cores - workers * worker_size  # steps of sizes leave some of their part
    ps_size = _nearest_below(bounds.ps_sizes, min(1.0, spare / bounds.min_servers))
    return msgspec.structs.replace(
        bounds,
        max_workers=workers,
        max_servers=bounds.min_servers,
        worker_sizes=_up_to(bounds.worker_sizes, worker_size),
        ps_sizes=_up_to(bounds.ps_sizes, ps_size),
    )


def _up_to(sizes: Sequence[float], most: float) -> tuple[float, ...]:
    return tuple(size for size in sizes if to_milli(size) <= to_milli(most))


def _nearest_below(sizes: Sequence[float], wanted: float) -> float:
    """Return the largest size of at most ``wanted`` cores, or the smallest there is."""
    return max((size for size in sizes if to_milli(size) <= to_milli(wanted)), default=min(sizes))


# --- memory ---------------------------------------------------------------------------------------------------------


def _need(inputs: StartInputs, known: _Known, bounds: Bounds) -> MemoryNeed:
    """Estimate the memory that the job needs at first: by its past, or by what its data and model imply."""
    past = {one.job: one for one in inputs.history}
    memories = [
        (memory, past[one.job]) for one in known.near if (memory := past[one.job].memory) is not None and memory.rows
    ]
    if not memories or known.prior is None:
        return _cold_need(inputs, bounds)
    ages = [one.age_seconds for _, one in memories]

    def usual(values: Sequence[float] | FloatArray) -> float:
        return decayed_quantile(list(values), ages, half_life=inputs.start.memory_half_life_seconds)

    each = usual([memory.bytes_per_row * _row_ratio(inputs.features, one.features) for memory, one in memories])
    rows = np.array([_rows_of(memory, _first_samples(inputs, known.prior)) for memory, _ in memories])
    lower, expected, upper = float(rows[:, 0].min()), usual(rows[:, 1]), usual(rows[:, 2])
    return MemoryNeed(
        worker=worker_limit(int(usual([memory.worker for memory, _ in memories]))),
        ps=int(usual([memory.base for memory, _ in memories]) * HEADROOM),
        tables=int(upper * each * HEADROOM),
        tables_band=(int(lower * each), int(expected * each), int(upper * each)),
    )


def _row_ratio(ours: JobFeatures, theirs: JobFeatures) -> float:
    """Compute how many times as long a row is as another job's, by dims and optimizer; 1 where either isn't known."""
    if not (ours.tables and ours.dims and theirs.tables and theirs.dims):
        return 1.0
    one, other = (
        row_bytes(math.ceil(job.dims / job.tables), _STATE_PARTS.get(job.optimizer, 1)) for job in (ours, theirs)
    )
    return one / other


def _cold_need(inputs: StartInputs, bounds: Bounds) -> MemoryNeed:
    """Estimate what the data and the model imply for the first seconds, and a little more; but no more than a part of what there is."""
    on_one = int(max(free.memory for free in _free(inputs).values()) * inputs.start.cold_memory_share)  # host
    count = max(bounds.min_workers, min(bounds.max_workers, inputs.capacity.cores))
    return MemoryNeed(
        worker=min(on_one, int(inputs.capacity.memory * inputs.start.cold_memory_share / count), _cold_worker(inputs)),
        tables=min(on_one, _first_tables(inputs)),
    )


def _cold_worker(inputs: StartInputs) -> int:
    features, policy = inputs.features, inputs.start
    dims = features.dims or _DIMS
    beside = policy.built_in_bytes if features.dims else policy.own_model_bytes
    return beside + policy.minibatch_copies * 4 * dims * features.batch_size


def _first_tables(inputs: StartInputs) -> int:
    """Bound the memory that all tables take after the first seconds of anything that trains at all; with the dense parameters of a model
    that isn't known."""
    features, policy = inputs.features, inputs.start
    tables, dims = features.tables or policy.usual_tables, features.dims or _DIMS
    cores = min(policy.cold_cores, inputs.capacity.cores) * (1 - policy.cold_ps_share)
    each = _COSTS["worker_sample"] * max(dims, 16) / _DIMS + _COSTS["worker_minibatch"] / max(1, features.batch_size)
    rate = cores / each
    samples = min(rate * policy.tables_seconds, features.rows or math.inf)
    rows = policy.new_ids_share * samples * tables
    dense = 0 if features.dims else policy.own_model_bytes
    return max(policy.least_tables_bytes, dense + int(rows * row_bytes(math.ceil(dims / tables), 1)))


def _first_samples(inputs: StartInputs, prior: Prior) -> float:
    """Compute how many samples of its first epoch the job may train on before its own tables are known."""
    costs, batch = prior.coefficients, max(1, inputs.features.batch_size)
    each = sum(costs.get(name, 0.0) for name in ("worker_sample", "ps_sample"))
    each += sum(costs.get(name, 0.0) for name in ("worker_minibatch", "worker_request", "ps_request")) / batch
    samples = inputs.capacity.cores * inputs.start.warm_tables_seconds / max(each, 1e-9)
    return min([samples, *(float(one) for one in (inputs.features.rows, inputs.total_samples) if one)])


def _rows_of(memory: PastMemory, samples: float) -> tuple[float, float, float]:
    """Estimate the rows after so many samples, as the past job's tables would have them: lower end, expected, upper end."""
    fitted = fit_rows(memory.samples, memory.rows, growth=Growth())
    if fitted is None or not samples:
        return memory.rows[-1], memory.rows[-1], memory.rows[-1]
    if samples < fitted.counted:  # fewer than there were: what there was by then
        rows = float(np.interp(samples, memory.samples, memory.rows))
        return rows, rows, rows
    lower, expected, upper = (float(value) for value in quantile_rows(fitted, samples, (0.1, 0.5, 0.9))[:, 0])
    return lower, expected, upper
