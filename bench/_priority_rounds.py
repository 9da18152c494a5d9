"""Random rounds of ``decide``, each made twice: as it is, and with a higher priority of one of its jobs. That job must not end later.

"Later" is beyond what ``decide`` says of it: what counts as equal, the time in which room is made, and exchanges that would surely gain
nothing together. A plan that the job may not be changed to of its own accord counts with what it surely brings, and one that is only tried
doesn't count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np

from dlrover_lite.brain.models.fitted_model import load_model, model_data
from dlrover_lite.brain.models.throughput import Prior, fit
from dlrover_lite.brain.planning.allowed_changes import kept_to_its_end, restrained
from dlrover_lite.brain.planning.decision import Round, decide
from dlrover_lite.brain.planning.job_view import JobView, LastChange, Policy, RoundInputs
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, MemoryNeed
from dlrover_lite.brain.planning.plan_values import options_of
from dlrover_lite.core.units import GIB, MIB, Resources

__all__ = ["inversions"]

_BOUNDS = Bounds(max_workers=8, max_servers=3, worker_sizes=(0.25, 0.5, 1.0, 2.0), ps_sizes=(0.25, 0.5, 1.0))
_POLICY = Policy()
_AS_GOOD = (1 + _POLICY.tie_share) * (1 + _POLICY.fewer_nodes_share)
"""Times of the remaining time that count as equal."""
_COSTS = {
    "worker_sample": 2e-5,
    "worker_minibatch": 1e-3,
    "worker_request": 5e-4,
    "ps_sample": 8e-6,
    "ps_request": 1e-3,
    "latency": 5e-3,
}
_MEMORY = 1024 * GIB
"""Enough: where memory is short as well, plans are packed by two sizes, and one may fit worse."""


def _plan(random: np.random.Generator) -> Candidate:
    return Candidate(
        int(random.integers(1, 9)),
        int(random.integers(1, 4)),
        float(random.choice(_BOUNDS.worker_sizes)),
        float(random.choice(_BOUNDS.ps_sizes)),
    )


def _job(number: int, random: np.random.Generator) -> JobView:
    costs = {name: value * float(random.lognormal(0, 0.7)) for name, value in _COSTS.items()}
    prior = Prior(costs, relative_sd=float(random.choice([0.05, 0.3, 1.0])), exponent=6.0)
    runs = random.random() < 2 / 3
    change = LastChange(left=_plan(random), fresh_windows=int(random.integers(0, 6)))
    view = JobView(
        job=f"job-{number}",
        bounds=_BOUNDS,
        model=model_data(fit([], prior=prior), batch_size=1024, free_cores={"a": 1e3}),
        need=MemoryNeed(worker=100 * MIB, ps=100 * MIB),
        priority=float(random.choice([0.5, 1.0, 1.5, 4.0])),
        remaining_samples=float(random.choice([1e5, 1e6, 1e7, 1e8])),
        now=_plan(random) if runs else None,
        waited_seconds=0.0 if runs else float(random.choice([0.0, 100.0, 5000.0])),
    )
    if not runs:
        return view
    return msgspec.structs.replace(
        view,
        scale_seconds=float(random.choice([0.0, 5.0])),
        change_seconds=float(random.choice([0.0, 4.0])),
        last_change=change if random.random() < 0.5 else None,
        declined=(_plan(random),) if random.random() < 0.25 else (),
        fixed=random.random() < 0.1,
        stays="it takes no checkpoints" if random.random() < 0.25 else "",
        ran_seconds=float(random.choice([0.0, 10.0, 1000.0])),
    )


def inversions(numbers: Iterable[int]) -> list[str]:
    """Make the random rounds of these numbers; return what is wrong, a line for each in which a job with a higher priority ends later.
    Rounds in which the job gets nothing because all changes together would surely gain nothing are left out: ``decide`` says so."""
    found = []
    for number in numbers:
        random = np.random.default_rng(number)
        jobs = [_job(at, random) for at in range(int(random.integers(1, 6)))]
        capacity = Resources(float(random.choice([1.0, 2.0, 5.5, 9.0, 20.0])), _MEMORY)
        which = int(random.integers(len(jobs)))
        factor = float(random.choice([1.3, 3.0, 50.0]))
        raised = msgspec.structs.replace(jobs[which], priority=jobs[which].priority * factor)
        others = [*jobs[:which], raised, *jobs[which + 1 :]]
        before, after = (
            decide(RoundInputs(at=0.0, capacity=capacity, jobs=tuple(each), policy=_POLICY)) for each in (jobs, others)
        )
        seconds, later = _to_go(before, jobs[which], capacity), _to_go(after, raised, capacity)
        waits = _POLICY.room_seconds if after.of(raised.job).action == "queue" else 0.0
        if later > seconds * _AS_GOOD + waits + 1e-9 and not _exchange_refused(after):
            was, now = (one.of(raised.job) for one in (before, after))
            found.append(f"round {number}: {seconds:.1f} s ({was.reason}), {later:.1f} s ({now.reason})")
    return found


def _exchange_refused(found: Round) -> bool:
    return any("would surely gain" in one.reason for one in found.decisions)


def _to_go(found: Round, job: JobView, capacity: Resources) -> float:
    """Compute the seconds until the job ends, the wait for room included."""
    decision, options = found.of(job.job), options_of(job, load_model(job.model), capacity, _POLICY)
    if options is None:
        return 0.0
    options = options._replace(view=kept_to_its_end(options))
    if decision.predicted is None:
        return math.inf
    if decision.choice is None:
        return decision.predicted.seconds
    if decision.action == "explore":
        return options.stay_seconds
    return options.stay_seconds - float(restrained(options, _POLICY).gain[options.points.find(decision.choice)])
