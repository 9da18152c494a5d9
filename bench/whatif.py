"""How good ``whatif`` is: plans that a job never had, foreseen from those that it had, against runs with them, on simulated hosts.

Jobs are random: costs, hosts, how noisy these are, and which plans were measured for how long, either a few at random or those that the
brain had chosen by then. ``whatif.coverage``: share of the held-out runs whose throughput lies within the band that is to hold 80%.
``whatif.median_error``: median of how far they are off what was expected, as a share. What is simulated is told in
``backends.sim.physics.queues`` and ``_host_jobs``. ``--first SEED`` takes other jobs than those that are reported: to work on the band.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
import numpy as np
from _host_jobs import WINDOW_SECONDS, SimulatedJob, profile_of, run_alone
from _host_plans import measure, place
from common import Figure, arguments, emit

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.brain.explain.what_if import Asked, KnownJob, foresee
from dlrover_lite.brain.explain.what_if_data import Measured
from dlrover_lite.brain.models.held_out import held_out
from dlrover_lite.brain.planning import node_placement
from dlrover_lite.brain.planning.job_view import JobView, ModelData
from dlrover_lite.brain.planning.observed_job import candidate_of, fit_basis, observe_job, observed_view, windows_sd
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, MemoryNeed
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.hosts import Host, total_of
from dlrover_lite.protocol.profiles import Profile

JOBS, QUICK_JOBS = 100, 12
"""Jobs with the seeds from 0 on are those reported."""
HELD_OUT = 6
"""Plans of each job that are asked about, as far as they have a place."""
HOSTS = (
    [Machine(4.0)],
    [Machine(8.0)],
    [Machine(16.0)],
    [Machine(32.0)],
    [Machine(8.0)] * 2,
    [Machine(16.0)] * 3,
    [Machine(8.0, 1.3), Machine(16.0), Machine(8.0, 0.7)],
)
WORKER_SIZES, PS_SIZES = (0.25, 0.5, 1.0, 2.0, 4.0), (0.25, 0.5, 1.0)
NOISES = (0.0, 0.03, 0.06)
"""Standard deviations of the logarithm of how fast hosts are from one window to another."""
STEADINESS = 0.7
"""Correlation of that between two windows, one after the other."""
RUN_WINDOWS, RUN_SECONDS = 24, 6.0
"""Windows of a run whose throughput is foreseen, and how many of its seconds are simulated."""
READING_LIMITED = 0.15
"""Share of the jobs that samples come no faster for than some 20,000 to 200,000 a second."""
BRAIN_SECONDS = (45.0, 150.0)
"""Seconds for which jobs run that the brain has chosen plans for."""


class JobDraw(NamedTuple):
    """A random job."""

    machines: list[Machine]
    costs: Costs
    noise: float
    by_brain: bool
    plans: list[Candidate]
    """Plans that are measured, one after the other, where the brain doesn't choose them."""
    windows: list[int]
    seconds: float
    """Seconds for which the brain may choose."""


class Foreseen(NamedTuple):
    """A plan that was asked about, and a run with it."""

    plan: Candidate
    expected: float
    lower: float
    upper: float
    measured: float
    """Samples/s of the run."""
    doublings: float
    """How far the plan is from those measured, added up over the axes."""

    @property
    def inside(self) -> bool:
        return self.lower <= self.measured <= self.upper

    @property
    def error(self) -> float:
        return self.expected / self.measured - 1


class JobResult(NamedTuple):
    seed: int
    by_brain: bool
    noise: float
    plans: int
    """Number of plans that were measured."""
    windows: int
    runs: list[Foreseen]
    present: Foreseen
    """The plan that it had last: it was measured, and isn't among those that were held out."""


# --- jobs -----------------------------------------------------------------------------------------------------------


def draw(seed: int) -> JobDraw:
    random = np.random.default_rng([seed, 25])
    machines = HOSTS[int(random.integers(len(HOSTS)))]
    usual = Costs()
    names = ("worker", "worker_request", "ps", "ps_request", "latency")
    drawn = {name: getattr(usual, name) * float(random.lognormal(0, 0.6)) for name in names}
    read = float(random.uniform(2e4, 2e5)) if random.random() < READING_LIMITED else usual.samples_read_per_second
    costs = replace(
        usual,
        **drawn,
        parallel=float(random.uniform(0.5, 0.95)),
        variation=float(random.uniform(0.05, 0.3)),
        depth=int(random.integers(1, 4)),
        samples_read_per_second=read,
    )
    count = int(random.choice([1, 2, 3, 4, 6]))
    cores = sum(one.cores for one in machines)
    plans = [random_plan(random, machines, min(4.0, cores / 2))]
    while len(plans) < count:
        plans.append(random_plan(random, machines, cores * float(random.uniform(0.2, 0.8))))
    return JobDraw(
        machines,
        costs,
        float(random.choice(NOISES)),
        bool(random.random() < 0.5),
        plans,
        [int(random.integers(2, 9)) for _ in plans],
        float(random.uniform(*BRAIN_SECONDS)),
    )


def random_plan(random: np.random.Generator, machines: Sequence[Machine], cores: float) -> Candidate:
    """Draw a plan of at most so many cores, or the smallest there is, that has a place on the hosts."""
    largest = max(one.cores for one in machines)
    while True:
        size = float(random.choice([each for each in WORKER_SIZES if each <= max(0.25, min(largest, cores / 2))]))
        ps_size = float(random.choice([each for each in PS_SIZES if each <= max(0.25, cores / 2)]))
        most = max(1, int((cores - ps_size) / size))
        workers = max(1, round(math.exp(random.uniform(0, math.log(most + 0.49)))))
        most_ps = max(1, min(workers, int((cores - workers * size) / ps_size)))
        servers = max(1, round(math.exp(random.uniform(0, math.log(most_ps + 0.49)))))
        plan = Candidate(workers, servers, size, ps_size)
        if place(plan, machines) is not None:
            return plan


def paces(noise: float, windows: int, random: np.random.Generator) -> list[float]:
    """Draw how much longer than usual work takes in each window."""
    found, now = [], float(random.normal())
    for _ in range(windows):
        found.append(math.exp(noise * now))
        now = STEADINESS * now + math.sqrt(1 - STEADINESS**2) * float(random.normal())
    return found


def slowed(costs: Costs, pace: float) -> Costs:
    names = ("worker", "worker_request", "ps", "ps_request")
    return replace(costs, **{name: getattr(costs, name) * pace for name in names})


def measured_job(job: JobDraw, seed: int) -> SimulatedJob:
    """Measure the plans that the job has, one after the other."""
    pace = paces(job.noise, 400, np.random.default_rng([seed, 26]))

    def costs(at: float) -> Costs:
        return slowed(job.costs, pace[int(at / WINDOW_SECONDS + 0.5)])

    simulated = SimulatedJob("job", costs, 1e12, seed)
    if job.by_brain:
        run_alone(simulated, job.machines, job.seconds)
        return simulated
    at = simulated.began
    for plan, windows in zip(job.plans, job.windows, strict=True):
        hosts = place(plan, job.machines)
        assert hosts is not None
        simulated.plan, simulated.hosts = plan, hosts
        for _ in range(windows):
            simulated.windows += 1
            number = 1000 * seed + simulated.windows
            now = costs(at - simulated.began)
            window = measure(plan, hosts, job.machines, now, seed=number, seconds=2.0)
            at += WINDOW_SECONDS
            held = [0.0] * len(job.machines)
            simulated.profiles.append(profile_of(simulated, window, job.machines, at=at, held=held))
            simulated.samples += simulated.profiles[-1].samples
    return simulated


def run_rate(job: JobDraw, plan: Candidate, nodes: Placed, seed: int) -> float:
    """Measure the throughput of a run with one plan, at another time."""
    pace = statistics.fmean(paces(job.noise, RUN_WINDOWS, np.random.default_rng([seed, 27])))
    costs = slowed(job.costs, pace)
    window = measure(plan, nodes.hosts, job.machines, costs, seed=seed, seconds=RUN_SECONDS, shares=nodes.shares)
    return float(window.minibatches.sum()) * costs.batch_size / RUN_SECONDS


class Placed(NamedTuple):
    """Hosts of a plan's nodes, workers first, and the share of all work on rows that each PS has; empty: even."""

    hosts: list[int]
    shares: list[float]


def placed(plan: Candidate, machines: Sequence[Machine]) -> Placed:
    """Put a plan's nodes where the brain has them, with slots by the speeds of their hosts."""
    speeds = {f"host-{at}": one.speed for at, one in enumerate(machines)}
    found = node_placement.place(plan, MemoryNeed(), node_placement.HostSpace.of(hosts_of(machines), (), speeds))
    if found is None:
        hosts = place(plan, machines)
        assert hosts is not None
    else:
        names = list(speeds)
        hosts = [names.index(one.host) for one in found for _ in range(one.workers)]
        hosts += [names.index(one.host) for one in found for _ in range(one.servers)]
    of_ps = [machines[host].speed for host in hosts[plan.workers :]]
    return Placed(hosts, [speed / sum(of_ps) for speed in of_ps])


def hosts_of(machines: Sequence[Machine]) -> tuple[Host, ...]:
    return tuple(Host(f"host-{at}", Resources(one.cores, one.memory)) for at, one in enumerate(machines))


# --- what is foreseen -----------------------------------------------------------------------------------------------


def known_of(job: JobDraw, profiles: Sequence[Profile], present: Candidate) -> KnownJob:
    """Collect what is known of the job, as ``whatif`` does from the history. ``present``: the plan that it had last."""
    hosts = hosts_of(job.machines)
    depth = float(job.costs.depth)
    observed, basis = observe_job(profiles, depth=depth), fit_basis(profiles, depth=depth)
    assert observed is not None and basis is not None
    bounds = Bounds(worker_sizes=WORKER_SIZES, ps_sizes=PS_SIZES)
    view = observed_view(
        JobView(job="job", bounds=bounds, model=ModelData("", {})),
        observed,
        free_cores={host.name: host.resources.cores for host in hosts},
        total_samples=1e12,
    )
    return KnownJob(
        view=view,
        present=Asked(present, GIB, GIB),
        runs=True,
        samples=1e9,
        measured=Measured(observed.fit.observations, 0, observed.fit.relative_error),
        held_out=tuple(held_out(basis.observations, basis.fit)),
        windows_sd=windows_sd(profiles),
        most=total_of(hosts),
        hosts=hosts,
        free_cores={host.name: host.resources.cores for host in hosts},
    )


def foreseen(seed: int) -> JobResult:
    """Let a job be measured, and ask about plans that it never had."""
    job = draw(seed)
    simulated = measured_job(job, seed)
    profiles, present = simulated.profiles, simulated.plan
    assert present is not None
    had = {candidate_of(profile) for profile in profiles}
    random = np.random.default_rng([seed, 28])
    cores = sum(one.cores for one in job.machines)
    asked: list[Candidate] = []
    for _ in range(10 * HELD_OUT):
        plan = random_plan(random, job.machines, cores * float(random.uniform(0.1, 1.0)))
        if len(asked) < HELD_OUT and plan not in {*had, present, *asked}:
            asked.append(plan)
    known = known_of(job, profiles, present)
    found = foresee(known, [Asked(plan, GIB, GIB) for plan in asked])
    runs = []
    for at, (plan, one) in enumerate(zip([present, *asked], [found.present, *found.plans], strict=True)):
        nodes = placed(plan, job.machines) if at else Placed(simulated.hosts, simulated.shares)
        far = sum(math.log2(max(each.asked / each.most, each.least / each.asked)) for each in one.beyond)
        runs.append(Foreseen(plan, *one.samples_per_second, run_rate(job, plan, nodes, 100 * seed + at), far))
    return JobResult(seed, job.by_brain, job.noise, len(had), len(profiles), runs[1:], runs[0])


# --- figures --------------------------------------------------------------------------------------------------------


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, help=f"(default {JOBS}; {QUICK_JOBS} with --quick)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first job (default 0)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write what was foreseen of each plan, as JSON")


GROUPS: dict[str, Callable[[JobResult, Foreseen], bool]] = {
    "1 plan measured": lambda job, _: job.plans == 1,
    "2 or 3": lambda job, _: 2 <= job.plans <= 3,
    "more": lambda job, _: job.plans > 3,
    "plans of the brain": lambda job, _: job.by_brain,
    "plans at random": lambda job, _: not job.by_brain,
    "quiet hosts": lambda job, _: job.noise == 0,
    "noisy hosts": lambda job, _: job.noise > 0,
    "within what was measured": lambda _, one: one.doublings < 0.01,
    "up to 2 doublings beyond": lambda _, one: 0.01 <= one.doublings <= 2,
    "farther": lambda _, one: one.doublings > 2,
}


def figures_of(results: Sequence[JobResult]) -> list[Figure]:
    every = [(job, one) for job in results for one in job.runs]
    detail: dict[str, dict[str, float]] = {}
    for name, is_in in GROUPS.items():
        those = [one for job, one in every if is_in(job, one)]
        if those:
            detail[name] = summary(those)
            say(f"{name:26} {words(detail[name])}")
    say(f"{'the plan that a job had':26} {words(summary([job.present for job in results]))}")
    whole = summary([one for _, one in every])
    say(f"{'all':26} {words(whole)}")
    return [
        Figure("whatif.coverage", whole["coverage"], "x", "0.7 to 0.9", detail=detail),
        Figure("whatif.median_error", whole["median_error"], "x", "<= 0.1", detail=detail),
    ]


def summary(runs: Sequence[Foreseen]) -> dict[str, float]:
    return {
        "runs": len(runs),
        "coverage": sum(one.inside for one in runs) / len(runs),
        "median_error": statistics.median(abs(one.error) for one in runs),
        "median_width": statistics.median(one.upper / one.lower for one in runs),
    }


def words(of: dict[str, float]) -> str:
    return (
        f"{of['runs']:5.0f} runs, {of['coverage']:.1%} within the band, off by {of['median_error']:.1%} in the median, "
        f"upper end {of['median_width']:.2f} times the lower"
    )


def say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    options = arguments("How good forecasts of other plans are, on simulated hosts.", extend)
    seeds = range(options.first, options.first + (options.jobs or (QUICK_JOBS if options.quick else JOBS)))
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        results = list(pool.map(foreseen, seeds))
    if options.save is not None:
        options.save.write_bytes(msgspec.json.encode(results))
    emit(options, figures_of(results))


if __name__ == "__main__":
    main()
