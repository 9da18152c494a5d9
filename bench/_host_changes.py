"""What becomes of jobs whose work changes on its way, and of plans that jobs have measured: on simulated hosts (``_host_jobs``)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _host_jobs import WINDOW_SECONDS, Cluster, SimulatedJob, changes_of
from _host_plans import Best, rate_of

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.brain.planning.plan_grid import Candidate

__all__ = ["Measured", "Shifted", "measured_plans", "shifted"]

Say = Callable[[str], object]


def _run(cluster: Cluster, job: SimulatedJob, seconds: float) -> None:
    """Let the job train for so long, or to its end."""
    cluster.arrives(job)
    while cluster.now - job.began < seconds and job.samples < job.total_samples:
        cluster.pass_window()
    cluster.close()
    for sentence in cluster.said:
        raise SystemExit(f"The brain complains: {sentence}")


def _tell(job: SimulatedJob, say: Say) -> None:
    for one in changes_of(job):
        what = one.choice.describe() if one.choice is not None else one.reason[:120]
        say(f"    {one.at - job.began:5.0f} s: {one.action} {what}")


# --- work that changes ------------------------------------------------------------------------------------------------

_SHIFT_AT, _WATCHED_SECONDS, _TIMES = 200.0, 200.0, 10.0
_HOST = [Machine(16.0)]
_REACHED, _IN_A_ROW = 0.95, 3
"""Share of the best plan's throughput that counts as reached, by the mean of so many windows."""
_NOT_BELOW = 0.9
_TOTAL_SECONDS = 2000.0


class Shifted(NamedTuple):
    seconds: float
    """Seconds from the shift until throughput is as good as the best plan's; as long as was watched, if it isn't."""
    below: int
    """Number of windows with less than 0.9 of what the plan at the shift gives. Those in which a change was under way don't count."""
    stays: float
    """Throughput of the plan at the shift, over that of the best, after it."""


def _best_of_all(costs: Costs) -> Best:
    """Look at all plans with servers of a core and workers of a half or a whole one: few minibatches a second are too rough for a search
    by single steps."""
    cores = int(_HOST[0].cores)
    plans = [
        Candidate(workers, servers, size, 1.0)
        for servers in range(1, cores)
        for size in (0.5, 1.0)
        for workers in range(1, int((cores - servers) / size) + 1)
    ]
    rates = {plan: rate_of(plan, _HOST, costs, seconds=4.0) for plan in plans}
    finalists = sorted(plans, key=rates.__getitem__, reverse=True)[:6]
    again = {plan: rate_of(plan, _HOST, costs, seed=1, seconds=16.0) for plan in finalists}
    best = max(again, key=again.__getitem__)
    return Best(best, again[best])


def shifted(seed: int, say: Say = lambda _: None) -> Shifted:
    """Let a job run on 16 cores whose PS cost ten times as much from one moment on."""
    before = Costs()
    after = Costs(ps=_TIMES * before.ps, ps_request=_TIMES * before.ps_request)
    best = _best_of_all(after)
    say(f"  after the shift: {best.plan.describe()}: {best.samples_per_second:,.0f} samples/s")
    job = SimulatedJob(
        "job", lambda at: before if at < _SHIFT_AT else after, _TOTAL_SECONDS * best.samples_per_second, seed
    )
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-bench-") as directory:
        _run(Cluster(_HOST, Path(directory)), job, _SHIFT_AT + _WATCHED_SECONDS)
    _tell(job, say)
    had = next(plan for at, plan, _ in reversed(job.history) if at <= _SHIFT_AT)
    stays = rate_of(had, _HOST, after, seed=1, seconds=16.0)
    since = [(at - _SHIFT_AT, plan, rate) for at, plan, rate in job.history if at > _SHIFT_AT]
    plans = [had, *(plan for _, plan, _ in since)]
    below = sum(
        plan == was and rate < _NOT_BELOW * stays for was, (_, plan, rate) in zip(plans[:-1], since, strict=True)
    )
    rates = np.array([rate for _, _, rate in since])
    means = np.convolve(rates, np.full(_IN_A_ROW, 1 / _IN_A_ROW), mode="valid")
    reached = np.flatnonzero(means >= _REACHED * best.samples_per_second)
    seconds = since[int(reached[0])][0] - WINDOW_SECONDS if len(reached) else _WATCHED_SECONDS
    return Shifted(seconds, below, stays / best.samples_per_second)


# --- plans that were measured -------------------------------------------------------------------------------------------

_SMALL_HOST = [Machine(4.0)]
_DECENT = Candidate(3, 1, 1.0, 1.0)
_JOB_SECONDS, _MOST_SECONDS = 600.0, 1200.0
_WORSE = 0.97


class Measured(NamedTuple):
    """A job at its end."""

    ratio: float
    """Throughput of the plan it has at its end, over that of the best plan that it has measured; both measured for long."""
    plans: int
    """Number of plans that it has measured."""
    again: int
    """Number of tries of plans that it had measured before."""

    @property
    def worse(self) -> bool:
        return self.ratio < _WORSE


def measured_plans(number: int, say: Say = lambda _: None) -> Measured:
    """Let a random job run to its end on 4 cores, for about 600 s."""
    costs = _random_costs(number)
    total = _JOB_SECONDS * rate_of(_DECENT, _SMALL_HOST, costs, seed=1, seconds=4.0)
    job = SimulatedJob("job", lambda _: costs, total, number)
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-bench-") as directory:
        _run(Cluster(_SMALL_HOST, Path(directory)), job, _MOST_SECONDS)
    _tell(job, say)
    known: list[Candidate] = []
    again = 0
    tries = {one.choice: one.at - job.began for one in changes_of(job) if one.action == "explore"}
    windows = [(at, plan) for at, plan, _ in job.history]
    for (_, was), (at, plan) in pairwise(windows):
        if plan == was and plan not in known:
            known.append(plan)
        elif plan != was and plan in known and tries.get(plan, -math.inf) >= at - 2 * WINDOW_SECONDS:
            again += 1
    last = windows[-1][1]
    rates = {plan: rate_of(plan, _SMALL_HOST, costs, seed=2, seconds=12.0) for plan in {*known, last}}
    return Measured(rates[last] / max(rates.values()), len(known), again)


def _random_costs(number: int) -> Costs:
    random = np.random.default_rng(number)
    usual = Costs()
    drawn = {
        name: getattr(usual, name) * float(random.lognormal(0, 0.6))
        for name in ("worker", "worker_request", "ps", "ps_request", "latency")
    }
    return Costs(**drawn)
