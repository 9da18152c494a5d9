"""Our policy and the paper's side by side, on simulated hosts: both drive the real advisor, with the same jobs and the same seeds.

``policies.lite_final``, ``policies.paper_final``: samples/s of a job that nothing is known of, over the last half minute of its first five,
over those of the best plan; ``…_way``: over all of the five minutes. Of all cases, of each the median over seeds, the median counts. What
is simulated is told in ``backends.sim.physics.queues`` and ``_host_jobs``.

``policies.lite_first``, ``policies.paper_first``: samples/s with the first plan of a job over those of the best plan, three jobs with about
the same costs having run before, on 4, 8 and 16 cores; ``…_first_error``: how far what was predicted for it is off, without its sign. Ours
predicts by the past jobs' pooled costs. The paper smooths plans: so what it expects is what these jobs had, smoothed the same way. Medians
over seeds and sizes of the new job's machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from _host_jobs import SimulatedJob, mean_rate, run_alone
from _host_plans import best_plan, rate_of
from common import Figure, arguments, emit
from hosts import CASES

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.brain.job_tracker import bounds_of
from dlrover_lite.brain.models.similarity import smoothed_plan
from dlrover_lite.brain.models.throughput import fit
from dlrover_lite.brain.planning.job_view import Policy
from dlrover_lite.brain.planning.paper.warm_start import SMOOTHING
from dlrover_lite.brain.planning.prescale import PastJob, StartInputs, initial_plan
from dlrover_lite.brain.policies import Policies
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.acts import PolicyName
from dlrover_lite.protocol.demands import Demand
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.profiles import observe

POLICIES: tuple[PolicyName, ...] = ("lite", "paper")
QUICK = ("4 cores", "16 cores")
FULL = ("2 cores", "4 cores", "8 cores", "16 cores", "64 cores", "4 x 16 cores", "4 unlike hosts")
SECONDS, LAST_SECONDS, WORK_SECONDS = 300.0, 30.0, 600.0
PAST_CORES, PAST_SECONDS = (4.0, 8.0, 16.0), 120.0
VARIATION = 0.1
"""Relative standard deviation of each cost of a past job about the new one's."""


class Ratios(NamedTuple):
    final: float
    way: float


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=[*CASES, "warm"], nargs="+", metavar="CASE", help=", ".join([*CASES, "warm"]))
    parser.add_argument("--seeds", type=int, help="(default 5; 2 with --quick)")


# --- jobs that nothing is known of ----------------------------------------------------------------------------------


def ratios(case: str, policy: PolicyName, seed: int) -> Ratios:
    """Let one job run alone, and compare what it reaches with the best plan."""
    costs, machines = Costs(), CASES[case]
    best = _best(case)
    job = SimulatedJob("job", lambda _: costs, WORK_SECONDS * best, seed)
    run_alone(job, machines, SECONDS, Policies(planning=Policy(name=policy)))
    return Ratios(mean_rate(job, SECONDS, since=SECONDS - LAST_SECONDS) / best, mean_rate(job, SECONDS) / best)


@cache
def _best(case: str) -> float:
    return best_plan(CASES[case], Costs()).samples_per_second


def from_nothing(cases: Sequence[str], seeds: int) -> list[Figure]:
    found: dict[PolicyName, dict[str, Ratios]] = {policy: {} for policy in POLICIES}
    for case in cases:
        for policy in POLICIES:
            each = [ratios(case, policy, seed) for seed in range(seeds)]
            medians = Ratios(*(statistics.median(values) for values in zip(*each, strict=True)))
            found[policy][case] = medians
            say(f"{case:14}  {policy:5}  at the end {medians.final:.3f}, on the way {medians.way:.3f}")
    return [
        Figure(f"policies.{policy}_{name}", statistics.median(values.values()), "x", detail=values)
        for policy in POLICIES
        for name in Ratios._fields
        for values in [{case: getattr(one, name) for case, one in found[policy].items()}]
    ]


# --- jobs like which there were some --------------------------------------------------------------------------------


class PastRun(NamedTuple):
    job: PastJob
    samples_per_second: float
    """Samples/s at its end."""


class First(NamedTuple):
    ratio: float
    """Samples/s with the first plan over those of the best plan."""
    error: float


def features_of(costs: Costs, samples: float) -> JobFeatures:
    return JobFeatures(
        model="wide_deep",
        tables=26,
        dims=int(costs.sample_bytes / 4),
        batch_size=costs.batch_size,
        rows=int(samples),
        optimizer="adagrad",
    )


def past_run(number: int, cores: float, seed: int) -> PastRun:
    """Let a job run with our policy, on a machine of so many cores, its costs a little other than the new one's."""
    random = np.random.default_rng(1000 * seed + number)
    usual = Costs()
    drawn = {name: getattr(usual, name) * float(random.lognormal(0, VARIATION)) for name in ("worker", "ps", "latency")}
    costs, machines = replace(usual, **drawn), [Machine(cores)]
    total = WORK_SECONDS * best_plan(machines, costs).samples_per_second
    job = SimulatedJob("past", lambda _: costs, total, seed)
    run_alone(job, machines, PAST_SECONDS)
    seen = [one for profile in job.profiles if (one := observe(profile)) is not None]
    past = PastJob(job=f"past-{number}", features=features_of(usual, total), fit=fit(seen), plan=job.plan)
    return PastRun(past, mean_rate(job, PAST_SECONDS, since=PAST_SECONDS - LAST_SECONDS))


def first(policy: PolicyName, runs: Sequence[PastRun], cores: float, seed: int) -> First:
    """Decide the first plan of a new job on a machine of so many cores, and simulate it."""
    costs, machines, there = Costs(), [Machine(cores)], Resources(cores, 64 * GIB)
    best = best_plan(machines, costs).samples_per_second
    demand = Demand(hosts=(Host("", there),), total_samples=WORK_SECONDS * best, epoch_samples=WORK_SECONDS * best)
    inputs = StartInputs(
        at=0.0,
        job="new",
        features=features_of(costs, WORK_SECONDS * best),
        bounds=bounds_of(demand),
        history=tuple(run.job for run in runs),
        capacity=there,
        total_samples=WORK_SECONDS * best,
        policy=Policy(name=policy),
    )
    decided = initial_plan(inputs)
    assert decided.choice is not None and decided.predicted is not None
    assert decided.reason.startswith("warm"), decided.reason
    measured = rate_of(decided.choice, machines, costs, seed=seed, seconds=8.0)
    expected = decided.predicted.throughput.expected
    if policy == "paper":
        (expected,) = smoothed_plan([[run.samples_per_second] for run in runs], smoothing=SMOOTHING)
    off = f"{measured / best:.2f} of the best plan, {expected / measured - 1:+.0%}"
    say(f"{cores:4.0f} cores  {policy:5}  first {decided.choice.describe():44}  {off}")
    return First(measured / best, abs(expected / measured - 1))


def warm(seeds: int) -> list[Figure]:
    found: dict[PolicyName, list[First]] = {policy: [] for policy in POLICIES}
    for seed in range(seeds):
        runs = [past_run(number, cores, seed) for number, cores in enumerate(PAST_CORES)]
        for cores in PAST_CORES:
            for policy in POLICIES:
                found[policy].append(first(policy, runs, cores, seed))
    figures = []
    for policy, each in found.items():
        all_ratios, errors = [one.ratio for one in each], [one.error for one in each]
        figures += [
            Figure(f"policies.{policy}_first", statistics.median(all_ratios), "x", detail={"each": all_ratios}),
            Figure(f"policies.{policy}_first_error", statistics.median(errors), "x", detail={"each": errors}),
        ]
    return figures


def say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    options = arguments("Our policy and the paper's, on the same simulated jobs.", extend)
    seeds = options.seeds or (2 if options.quick else 5)
    wanted = options.only or [*(QUICK if options.quick else FULL), "warm"]
    figures = []
    if cases := [case for case in CASES if case in wanted]:
        figures += from_nothing(cases, seeds)
    if "warm" in wanted:
        figures += warm(seeds)
    emit(options, figures)


if __name__ == "__main__":
    main()
