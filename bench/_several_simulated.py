"""Jobs that come and go on one simulated host (``_host_jobs``): the brain against what ``_several_schedule`` divides, on any cores.

As there, six jobs come within half a minute: the longest first, one that can't shrink, one that is short and urgent when the host is full,
one that fails in mid-run, two others. Sizes, costs and times of arrival follow from a seed. The other policies divide a job's cores among
its nodes as was found best by trying, and change plans at once and for nothing. A job takes as long to start with all.

Beside them stands what nobody could better by much: who knows all that a job costs and how long it would take, has the job run that can't
shrink, and gives all that is left to the one that ends first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from _host_jobs import WINDOW_SECONDS, Cluster, SimulatedJob
from _host_plans import rate_of
from _several_schedule import BASELINES, Form, PolicyName, Workload, shares

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.brain.planning.plan_grid import Candidate

__all__ = ["Ratios", "ratios"]

_START_SECONDS = 4.0
_MOST_WINDOWS = 400
_LEAST_CORES, _ROUNDING = 0.25, 0.01
_NEARLY = 0.97
"""Share of the fastest plan's rate that a smaller plan has to have, so that the cores between them are others'."""
_SERVER_SHARES = (0.125, 0.25, 0.4)
_shares_cores = False
"""Nodes of a job share the cores that they have together: of a process, as all that is simulated in it."""


def _share_cores(shared: bool) -> None:
    global _shares_cores
    _shares_cores = shared


@dataclass(frozen=True)
class Arrival:
    """A job of a schedule, and what its minibatches cost."""

    job: Workload
    costs: Costs


class Ratios(NamedTuple):
    """The brain's times over those of the best of the others."""

    mean: float
    worst: float
    seconds: dict[str, float]
    """Mean completion time with each policy."""
    known_mean: float
    """The same as ``mean`` of who knows all."""
    known_worst: float


def schedule(seed: int, cores: float) -> list[Arrival]:
    """Make six jobs: two minutes and a half of work, about, for all the cores."""
    random = np.random.default_rng(seed)
    arrives, found = 0.0, []
    kinds = (
        ("long", 35.0, 60.0, 1.0),
        ("half", 15.0, 30.0, 1.0),
        ("fixed", 60.0, 110.0, 1.0),
        ("urgent", 8.0, 20.0, 4.0),
        ("fails", 15.0, 30.0, 1.0),
        ("last", 8.0, 25.0, 1.0),
    )
    for name, least, most, priority in kinds:
        costs = Costs(
            worker=0.02 * float(random.lognormal(0, 0.4)),
            ps=0.008 * float(random.lognormal(0, 0.5)),
            parallel=float(random.uniform(0.6, 0.9)),
            batch_size=int(random.choice([512, 1024, 2048])),
        )
        form = best_form(costs, cores)
        asked = form.plan(cores * float(random.uniform(0.5, 1.5)))
        whole = form.plan(cores)
        if name == "fixed":
            asked = whole = Candidate(1, 1, 0.5, 0.25) if cores <= 4 else Candidate(1, 1, 1.0, 0.5)
        samples = float(random.uniform(least, most)) * rate(whole, costs, cores)
        job = Workload(
            name,
            arrives=arrives,
            samples=round(samples),
            asked=asked,
            form=form,
            model=f"model-{name}",
            batch_size=costs.batch_size,
            priority=priority,
            fails_at=0.5 if name == "fails" else None,
            fixed=name == "fixed",
        )
        found.append(Arrival(job, costs))
        arrives += WINDOW_SECONDS * int(random.integers(1, 3))
    return found


@cache
def rate(plan: Candidate, costs: Costs, cores: float) -> float:
    return rate_of(plan, [Machine(max(cores, plan.cores + 0.01))], costs, shared_cores=_shares_cores)


@cache
def best_form(costs: Costs, cores: float) -> Form:
    forms = [
        Form(workers, servers, share)
        for workers in (1, 2, 3, 4, 6, 8)
        for servers in (1, 2, 4)
        for share in _SERVER_SHARES
        if workers <= 2 * cores and share * cores / servers <= 1.0
    ]
    return max(forms, key=lambda form: rate(form.plan(cores), costs, cores))


def ends_at(one: Arrival) -> float:
    """Return the number of samples at which a job is over."""
    return one.job.samples * (one.job.fails_at or 1.0)


def shortest_first(present: Sequence[Arrival], left: Mapping[str, float], cores: float) -> dict[str, Candidate]:
    """Divide the cores as who knows all would. ``left``: samples of each job until it is over."""
    found: dict[str, Candidate] = {}

    def seconds(one: Arrival) -> float:
        return left[one.job.name] / rate(useful(one.job.form, one.costs, cores, cores), one.costs, cores)

    free = cores
    for one in sorted(present, key=lambda one: (not one.job.fixed, seconds(one))):
        if free < _LEAST_CORES:
            break
        plan = one.job.asked if one.job.fixed else useful(one.job.form, one.costs, free, cores)
        if plan.cores <= free + _ROUNDING:
            found[one.job.name] = plan
            free -= plan.cores
    return found


@cache
def useful(form: Form, costs: Costs, free: float, cores: float) -> Candidate:
    """Return the smallest plan of a job's form that is nearly as fast as the fastest one within ``free`` cores."""
    steps = max(1, round(free / _LEAST_CORES))
    plans = [form.plan(free * step / steps) for step in range(1, steps + 1)]
    rates = [rate(plan, costs, cores) for plan in plans]
    return next(plan for plan, its in zip(plans, rates, strict=True) if its >= _NEARLY * max(rates))


def without_brain(policy: PolicyName | Literal["known"], arrivals: Sequence[Arrival], cores: float) -> dict[str, float]:
    """Compute the completion times in seconds."""
    now, left = 0.0, {one.job.name: ends_at(one) for one in arrivals}
    began: dict[str, float] = {}
    found: dict[str, float] = {}
    step = 1.0
    while left:
        present = [one for one in arrivals if one.job.name in left and one.job.arrives <= now]
        jobs = [one.job for one in present]
        plans = shortest_first(present, left, cores) if policy == "known" else shares(policy, jobs, cores)
        if policy == "static":
            wanted = sum(plan.cores for plan in plans.values())
            part = min(1.0, cores / wanted) if wanted else 1.0
            plans = {
                one.job.name: _smaller(plans[one.job.name], part)
                if one.job.fixed
                else one.job.form.plan(plans[one.job.name].cores * part)
                for one in present
            }
        for one in present:
            name = one.job.name
            if name not in plans:
                continue
            began.setdefault(name, now)
            if now - began[name] < _START_SECONDS:
                continue
            here = rate(plans[name], one.costs, cores)
            left[name] -= here * step
            if left[name] <= 0:
                found[name] = now + step + left[name] / here - one.job.arrives
                del left[name]
        now += step
    return found


def _smaller(plan: Candidate, part: float) -> Candidate:
    return Candidate(plan.workers, plan.servers, round(plan.worker_cores * part, 3), round(plan.ps_cores * part, 3))


def with_brain(
    arrivals: Sequence[Arrival], cores: float, seed: int, *, warm: bool = False, tell: bool = False
) -> dict[str, float]:
    """Compute the completion times in seconds. ``warm``: the brain has seen the schedule once before."""
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-bench-") as directory:
        if warm:
            before, now = _once(arrivals, cores, seed + 1_000, Path(directory), run="before", tell=False)
            assert len(before) == len(arrivals)
            return _once(arrivals, cores, seed, Path(directory), now=now, tell=tell)[0]
        return _once(arrivals, cores, seed, Path(directory), tell=tell)[0]


def _once(
    arrivals: Sequence[Arrival],
    cores: float,
    seed: int,
    directory: Path,
    *,
    now: float | None = None,
    run: str = "",
    tell: bool,
) -> tuple[dict[str, float], float]:
    """Have the schedule once, from ``now`` on; return the completion times, and when it is over. ``run``: what names of jobs begin with."""
    found: dict[str, float] = {}
    cluster = Cluster([Machine(cores)], directory, shared_cores=_shares_cores)
    cluster.now = cluster.now if now is None else now
    first, jobs = cluster.now, dict[str, SimulatedJob]()
    for _ in range(_MOST_WINDOWS):
        for at, one in enumerate(arrivals):
            if one.job.name not in jobs and one.job.arrives <= cluster.now - first:
                jobs[one.job.name] = SimulatedJob(
                    run + one.job.name,
                    lambda _, costs=one.costs: costs,  # type: ignore[misc]
                    float(one.job.samples),
                    seed=100 * seed + at,
                    priority=one.job.priority,
                    fixed=one.job.asked if one.job.fixed else None,
                    model=one.job.model,
                    checkpoints=True,
                )
                cluster.arrives(jobs[one.job.name])
        before = {name: job.samples for name, job in jobs.items()}
        cluster.pass_window()
        for one in arrivals:
            job = jobs.get(name := one.job.name)
            if job is None or name in found or job.samples < ends_at(one):
                continue
            part = (ends_at(one) - before[name]) / (job.samples - before[name])
            found[name] = cluster.now - WINDOW_SECONDS * (1 - part) - job.began
            cluster.ends(job)
        if len(found) == len(arrivals):
            break
    cluster.close()
    if tell:
        _tell(jobs.values(), first)
    for sentence in cluster.said:
        raise SystemExit(f"The brain complains: {sentence}")
    return found, cluster.now


def _tell(jobs: Iterable[SimulatedJob], first: float) -> None:
    told = sorted(((one.at - first, job.name, one) for job in jobs for one in job.decisions), key=lambda one: one[:2])
    for at, name, one in told:
        plan = "" if one.choice is None else one.choice.describe()
        print(f"    {at:5.0f} s {name:7}: {one.action} {plan}: {one.reason[:160]}", file=sys.stderr)


def ratios(seed: int, cores: float, *, warm: bool = False, tell: bool = False) -> Ratios:
    """Have the schedule of a seed by all policies."""
    arrivals = schedule(seed, cores)
    counted = [one.job.name for one in arrivals if one.job.fails_at is None]
    by: dict[str, dict[str, float]] = {policy: without_brain(policy, arrivals, cores) for policy in BASELINES}
    by["known"] = without_brain("known", arrivals, cores)
    by["brain"] = with_brain(arrivals, cores, seed, warm=warm, tell=tell)
    means = {policy: statistics.mean(each[name] for name in counted) for policy, each in by.items()}
    worsts = {policy: max(each[name] for name in counted) for policy, each in by.items()}
    if tell:
        for policy, each in by.items():
            print(f"  {policy}: { ({name: round(value) for name, value in each.items()}) }", file=sys.stderr)
    best, shortest = (min(of[policy] for policy in BASELINES) for of in (means, worsts))
    return Ratios(
        means["brain"] / best, worsts["brain"] / shortest, means, means["known"] / best, worsts["known"] / shortest
    )


def _one(what: tuple[int, float, bool]) -> Ratios:
    seed, cores, warm = what
    return ratios(seed, cores, warm=warm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(6)))
    parser.add_argument("--warm", action="store_true", help="the brain has seen the schedule once before")
    parser.add_argument("--tell", action="store_true", help="what was decided")
    parser.add_argument("--shared-cores", action="store_true", help="nodes of a job share what they have together")
    options = parser.parse_args()
    _share_cores(options.shared_cores)
    for cores in options.cores:
        if options.tell:
            each = [ratios(seed, cores, warm=options.warm, tell=True) for seed in options.seeds]
        else:
            with ProcessPoolExecutor(2, initializer=_share_cores, initargs=(options.shared_cores,)) as pool:
                each = list(pool.map(_one, [(seed, cores, options.warm) for seed in options.seeds]))
        for seed, one in zip(options.seeds, each, strict=True):
            seconds = ", ".join(f"{policy} {value:.0f} s" for policy, value in one.seconds.items())
            print(f"{cores:g} cores, seed {seed}: mean {one.mean:.3f}, worst {one.worst:.3f} ({seconds})")
        columns = zip(*[(one.mean, one.worst, one.known_mean, one.known_worst) for one in each], strict=True)
        mean, worst, known_mean, known_worst = (statistics.median(of) for of in columns)
        known = f"{known_mean:.3f} and {known_worst:.3f} with all known"
        print(f"{cores:g} cores: mean {mean:.3f}, worst {worst:.3f}, {known} (medians)", flush=True)


if __name__ == "__main__":
    main()
