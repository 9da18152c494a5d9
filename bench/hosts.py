"""How good the brain's plans are on machines and clusters other than this one: against the best plan there is, on simulated hosts.

``hosts.final_ratio``: samples/s of a job that nothing is known of, over the last half minute of its first five, over those of the best
plan. ``hosts.way_ratio``: the same over all of the five minutes, its start included. The worst case counts, of each the median over
seeds. ``hosts.median_miss``: the median of how far all changes of these jobs were off what was predicted. What is simulated, and how the
best plan is found, is told in ``backends.sim.physics.queues`` and ``_host_jobs``; ``hosts.reader_cores_kept`` in ``_reader_cores``.

``hosts.shift_s``: seconds from when PS begin to cost ten times as much until a job is as fast as the best plan; ``hosts.shift_below``:
windows meanwhile in which it is slower than nine tenths of what it would be if it stayed as it was. ``hosts.worse_than_measured``: random
jobs that end with a plan more than 3% slower than one that they had measured (``_host_changes``). ``hosts.priority_inversions``: random
rounds of ``decide`` in which a job ends later for having a higher priority (``_priority_rounds``).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from _host_changes import measured_plans, shifted
from _host_jobs import SimulatedJob, changes_of, mean_rate, run_alone
from _host_plans import Best, best_plan
from _priority_rounds import inversions
from _reader_cores import figure as reader_cores_kept
from common import Figure, arguments, emit

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs

CASES = {
    "2 cores": [Machine(2.0)],
    "4 cores": [Machine(4.0)],
    "8 cores": [Machine(8.0)],
    "16 cores": [Machine(16.0)],
    "64 cores": [Machine(64.0)],
    "96 cores": [Machine(96.0)],
    "200 cores": [Machine(200.0)],
    "4 x 16 cores": [Machine(16.0)] * 4,
    "20 x 16 cores": [Machine(16.0)] * 20,
    "4 unlike hosts": [Machine(8.0, 1.3), Machine(16.0), Machine(16.0, 0.7), Machine(4.0, 1.5)],
}
QUICK = ("4 cores", "16 cores")
COSTS = Costs()
SECONDS, LAST_SECONDS = 300.0, 30.0
WORK_SECONDS = 600.0
"""Seconds that the best plan would take for all of a job's work."""


def extend(parser: argparse.ArgumentParser) -> None:
    names = [*CASES, *OTHERS]
    parser.add_argument("--only", choices=names, nargs="+", metavar="CASE", help=", ".join(names))
    parser.add_argument("--seeds", type=int, help="(default 10; 2 with --quick)")


class Run(NamedTuple):
    """What became of a job: what it reached at its end and on its way, as shares of the best plan."""

    end: float
    way: float
    misses: list[float]
    """Difference between measured and predicted throughput of each change, as a share of what was predicted."""
    story: str


def run(case: str, best: Best, seed: int) -> Run:
    """Let one job run."""
    job = SimulatedJob("job", lambda _: COSTS, WORK_SECONDS * best.samples_per_second, seed)
    run_alone(job, CASES[case], SECONDS)
    changes = (one for one in changes_of(job) if one.choice is not None)
    story = "\n".join(
        f"    {one.at - job.began:5.0f} s: {one.action} {one.choice.describe()}" for one in changes if one.choice
    )
    end = mean_rate(job, SECONDS, since=SECONDS - LAST_SECONDS) / best.samples_per_second
    way = mean_rate(job, SECONDS) / best.samples_per_second
    return Run(end, way, [abs(effect.error) for effect in job.effects], story)


def against_the_best(cases: Sequence[str], seeds: int) -> list[Figure]:
    """Run all cases, on all cores that there are: nothing is timed."""
    found: dict[str, tuple[float, float]] = {}
    misses: list[float] = []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for case in cases:
            best = pool.submit(best_plan, CASES[case], COSTS).result()
            say(f"{case}: {best.plan.describe()}: {best.samples_per_second:,.0f} samples/s")
            each = list(pool.map(run, [case] * seeds, [best] * seeds, range(seeds)))
            for seed, one in enumerate(each):
                say(f"  seed {seed}: at the end {one.end:.3f}, on the way {one.way:.3f}\n{one.story}")
                misses += one.misses
            found[case] = (statistics.median(one.end for one in each), statistics.median(one.way for one in each))
            say(f"  at the end {found[case][0]:.3f}, on the way {found[case][1]:.3f}")
    if not found:
        return []
    return [
        Figure("hosts.final_ratio", min(end for end, _ in found.values()), "x", ">= 0.95", detail=found),
        Figure("hosts.way_ratio", min(way for _, way in found.values()), "x", ">= 0.75", detail=found),
        Figure("hosts.median_miss", statistics.median(misses), "x", "<= 0.1", detail={"changes": len(misses)}),
    ]


def after_a_shift(seeds: int, *, quick: bool) -> list[Figure]:
    found = [shifted(seed, say) for seed in range(seeds)]
    say(f"a shift: {found}")
    seconds, below = statistics.median(one.seconds for one in found), sum(one.below for one in found)
    detail = {"seconds": [one.seconds for one in found], "staying": [one.stays for one in found]}
    return [
        Figure("hosts.shift_s", seconds, "s", "<= 60", detail=detail),
        Figure("hosts.shift_below", below, "windows", "<= 0", detail=detail),
    ]


def plans_known(seeds: int, *, quick: bool) -> list[Figure]:
    found = [measured_plans(number, say) for number in range(4 if quick else 8)]
    say(f"plans that were measured: {found}")
    detail = {"ratios": [one.ratio for one in found], "again": sum(one.again for one in found)}
    return [Figure("hosts.worse_than_measured", sum(one.worse for one in found), "jobs", "<= 0", detail=detail)]


def priorities(seeds: int, *, quick: bool) -> list[Figure]:
    rounds = 500 if quick else 10_000
    found = inversions(range(rounds))
    for one in found[:5]:
        say(one)
    return [Figure("hosts.priority_inversions", len(found), "rounds", "<= 0", detail={"rounds": rounds})]


OTHERS = {"shift": after_a_shift, "measured": plans_known, "priorities": priorities}


def say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    options = arguments("The brain's plans on many kinds of hosts, against the best ones.", extend)
    seeds = options.seeds or (2 if options.quick else 10)
    wanted = options.only or [*(QUICK if options.quick else CASES), *OTHERS]
    figures = against_the_best([case for case in CASES if case in wanted], seeds)
    for name, measure in OTHERS.items():
        if name in wanted:
            figures += measure(seeds, quick=options.quick)
    if not options.only:
        figures.append(reader_cores_kept(seeds))
    emit(options, figures)


if __name__ == "__main__":
    main()
